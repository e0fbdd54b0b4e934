package elastic

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// seen is a copy of an item.
type seen struct {
	Del    bool
	ID     string
	Status int
	Result string
	Err    string
}

func decodeAll(data []byte) ([]seen, error) {
	var out []seen
	_, err := decode(data, func(_ int, it *item) error {
		out = append(out, seen{it.del, string(it.id), it.status, string(it.result), string(it.err)})
		return nil
	})
	return out, err
}

func TestDecode(t *testing.T) {
	t.Parallel()
	got, err := decodeAll([]byte(` {"took":1.5e3,"errors":true,"x":[{},[],null,false,-0.1E+2,"A"],"items":[
		{"index":{"_index":"i","_id":"a\"é","status":201,"result":"created","_shards":{"total":1}}},
		{"delete":{"error":{"type":"t","reason":"}\"{"},"status":404,"_id":""}}]} `))
	if err != nil {
		t.Fatal(err)
	}
	want := []seen{
		{ID: `a"é`, Status: 201, Result: "created"},
		{Del: true, Status: 404, Err: `{"type":"t","reason":"}\"{"}`},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("items (-want +got):\n%s", d)
	}
	stop := errors.New("stop")
	if _, err := decode([]byte(`{"items":[{"index":{"_id":"a","status":200}}]}`), func(int, *item) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("error of visit: got %v, want %v", err, stop)
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"Nothing":       ``,
		"Array":         `[]`,
		"NoItems":       `{"errors":false}`,
		"ItemsTwice":    `{"items":[],"items":[]}`,
		"NoKind":        `{"items":[{}]}`,
		"TwoKinds":      `{"items":[{"index":{"_id":"a","status":200},"delete":{"_id":"a","status":200}}]}`,
		"OtherKind":     `{"items":[{"create":{"_id":"a","status":200}}]}`,
		"NoID":          `{"items":[{"index":{"status":200}}]}`,
		"NullID":        `{"items":[{"index":{"_id":null,"status":200}}]}`,
		"NoStatus":      `{"items":[{"index":{"_id":"a"}}]}`,
		"FloatStatus":   `{"items":[{"index":{"_id":"a","status":200.0}}]}`,
		"LongStatus":    `{"items":[{"index":{"_id":"a","status":2000}}]}`,
		"ZeroStatus":    `{"items":[{"index":{"_id":"a","status":000}}]}`,
		"StringStatus":  `{"items":[{"index":{"_id":"a","status":"200"}}]}`,
		"Tail":          `{"items":[]} x`,
		"BadEscape":     `{"items":[{"index":{"_id":"\q","status":200}}]}`,
		"ControlInText": "{\"items\":[{\"index\":{\"_id\":\"\n\",\"status\":200}}]}",
		"TrailingComma": `{"items":[{"index":{"_id":"a","status":200}},]}`,
		"LeadingZero":   `{"took":01,"items":[]}`,
		"Deep":          `{"x":` + string(bytes.Repeat([]byte("["), 1000)),
	} {
		if got, err := decodeAll([]byte(data)); err == nil {
			t.Errorf("%s: got %v, want an error", name, got)
		}
	}
	whole := `{"took":1,"errors":false,"items":[{"index":{"_id":"a","status":200,"error":{"a":["b",1.5,true,null]}}}]}`
	for n := range len(whole) {
		if got, err := decodeAll([]byte(whole[:n])); err == nil {
			t.Errorf("first %d bytes: got %v, want an error", n, got)
		}
	}
}

// FuzzDecode holds decode against encoding/json: what decode takes is valid JSON and
// says the same, and it takes nothing that lacks an id or a status.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"items":[{"index":{"_id":"a","status":201,"result":"created"}},{"delete":{"_id":"b","status":404,"result":"not_found"}}]}`,
		`{"took":3,"errors":true,"items":[{"index":{"_id":"\u0061","status":400,"error":{"type":"t","reason":"r","caused_by":{"type":"u"}}}}]}`,
		`{"items":[]}`, `{"items":[{"index":{"_id":"a","status":20`, `{"items":[{"index":{"_id":"a","_id":"b","status":200,"status":201}}]}`,
		`{"error":{"root_cause":[]},"status":400}`, "{\"items\":[{\"index\":{\"_id\":\"\xff\",\"status\":200}}]}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decodeAll(data)
		if err != nil {
			return
		}
		if !json.Valid(data) {
			t.Fatalf("took invalid JSON %q", data)
		}
		var whole map[string]json.RawMessage
		if err := json.Unmarshal(data, &whole); err != nil {
			t.Fatal(err)
		}
		var items []map[string]map[string]json.RawMessage
		if err := json.Unmarshal(whole["items"], &items); err != nil || len(items) != len(got) {
			t.Fatalf("got %d items of %q, want %d (%v)", len(got), data, len(items), err)
		}
		for i, ops := range items {
			for op, fields := range ops {
				var id string
				var status int
				if err := errors.Join(json.Unmarshal(fields["_id"], &id), json.Unmarshal(fields["status"], &status)); err != nil {
					t.Fatalf("item %d of %q: %v", i, data, err)
				}
				mine := string([]rune(got[i].ID)) // what is not UTF-8 as encoding/json reads it
				if got[i].Del != (op == "delete") || mine != id || got[i].Status != status {
					t.Fatalf("item %d of %q: got %+v, want %s %q %d", i, data, got[i], op, id, status)
				}
			}
		}
		for _, it := range got {
			fate := classifyItem(&item{del: it.Del, status: it.Status, result: []byte(it.Result), err: []byte(it.Err)})
			if fate.outcome.Verdict == 0 {
				t.Fatalf("no verdict for %+v", it)
			}
		}
	})
}
