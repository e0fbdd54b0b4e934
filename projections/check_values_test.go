package projections

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// A value of which the check warns is one that the real server refuses.
func TestRefusedValuesAreRefusedByTheServer(t *testing.T) {
	t.Parallel()
	base := testenv.ElasticURL(t) + "/" + testenv.Index(t)
	mapping, types := mappedField{Properties: map[string]mappedField{}}, map[string]map[string]string{}
	for typ := range takes {
		mapping.Properties[typ], types[typ] = mappedField{Type: typ}, map[string]string{"type": typ}
	}
	for _, typ := range objects {
		mapping.Properties[typ], types[typ] = mappedField{Type: typ}, map[string]string{"type": typ}
	}
	send := func(method, url string, body any) int {
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	delete(mapping.Properties, "flattened") // OpenSearch knows no such type
	delete(types, "flattened")
	if code := send(http.MethodPut, base, map[string]any{"mappings": map[string]any{"properties": types}}); code != http.StatusOK {
		t.Fatalf("make the index: got %d", code)
	}
	refused := 0
	for typ, field := range mapping.Properties {
		for _, text := range strings.Fields(`true 0 1 -1 1.5 127 128 -128 -129 65519 70000 2147483647 2147483648 -2147483649 9223372036854775807 1e19 1e38 1e39 1e300 "" "true" "1" "1.5" "x"
			"10.0.0.1" "10.0.0.1/8" "::1" "2026" "2026-11" "2026-11-22" "2026-11-22T10:00:00" "2026-11-22T10:00:00.123456Z" "22.11.2026" "P1D" {} {"a":1} {"gte":1} [] [1,"x"] [{}] null`) {
			decoder := json.NewDecoder(strings.NewReader(text))
			decoder.UseNumber()
			var v any
			if err := decoder.Decode(&v); err != nil {
				t.Fatal(err)
			}
			if path, _ := field.refuses(typ, v); path == "" {
				continue
			}
			refused++
			if code := send(http.MethodPost, base+"/_doc", map[string]any{typ: json.RawMessage(text)}); code != http.StatusBadRequest {
				t.Errorf("%s in a field of type %s: got %d, want %d", text, typ, code, http.StatusBadRequest)
			}
		}
	}
	if refused < 100 {
		t.Errorf("got %d values that are refused, want 100 at least", refused)
	}
}
