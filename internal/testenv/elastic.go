package testenv

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
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
		es, err := reconcile.NewClient(base)
		if err == nil {
			// An idle connection would be taken for a leaked goroutine; tests have some of their own.
			defer http.DefaultClient.CloseIdleConnections()
			defer es.Close()
			err = es.DeleteIndices(ctx, name)
		}
		if err != nil {
			t.Errorf("testenv: delete index %s: %v", name, err)
		}
	})
	return name
}
