package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// ElasticURL returns the URL of the Elasticsearch server, without a trailing slash.
func ElasticURL(t testing.TB) string {
	t.Helper()
	return strings.TrimRight(server(t, elasticEnv), "/")
}

// Index returns a name that no index or alias has. When the test ends, the index of
// that name and every index whose name starts with it (name-v1, …) are deleted.
func Index(t testing.TB) string {
	t.Helper()
	base := ElasticURL(t)
	name := uniqueName(t.Name(), "weft-test-", "-")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), serverTimeout)
		defer cancel()
		if err := deleteIndices(ctx, base, name); err != nil {
			t.Errorf("testenv: delete index %s: %v", name, err)
		}
	})
	return name
}

// deleteIndices resolves the pattern first: the server refuses to delete by wildcard,
// and an alias cannot be deleted as if it were its index.
func deleteIndices(ctx context.Context, base, name string) error {
	body, err := call(ctx, http.MethodGet, base+"/"+name+"*/_settings?expand_wildcards=all&filter_path=*.settings.index.uuid")
	if err != nil {
		return err
	}
	var found map[string]json.RawMessage
	if err := json.Unmarshal(body, &found); err != nil {
		return fmt.Errorf("list of indices: %w", err)
	}
	for index := range found {
		if _, err := call(ctx, http.MethodDelete, base+"/"+index+"?ignore_unavailable=true"); err != nil {
			return err
		}
	}
	return nil
}

// call uses a connection of its own, so that no idle one is taken for a leaked goroutine.
func call(ctx context.Context, method, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s: %s", method, request.URL.Path, response.Status, body)
	}
	return body, nil
}
