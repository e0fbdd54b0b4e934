package proxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// A refused document is tried again or final as its status says; the others are written.
func TestRefusal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		refusal Refusal
		reason  outbox.Reason
		hit     map[int]bool // of the documents 0 to 5
		header  map[string]string
	}{
		{"EveryThirdIs429", Refusal{Status: 429, EveryN: 3, Ops: []outbox.Op{outbox.Upsert}}, outbox.ReasonES429, map[int]bool{2: true, 5: true},
			map[string]string{
				elastic.Lab429Injected: "true", elastic.Lab429Mode: "every_n", elastic.Lab429EveryN: "3", elastic.Lab429Ratio: "0.333",
				elastic.Lab429Ops: "upsert", elastic.Lab429Counter: "2",
			}},
		{"DocumentIs400", Refusal{Status: 400, IDs: []string{"block:4"}}, outbox.ReasonES4xx, map[int]bool{4: true}, nil},
		{"DeletesOnly", Refusal{Status: 429, EveryN: 1, Ops: []outbox.Op{outbox.Delete}}, "", map[int]bool{},
			map[string]string{elastic.Lab429Mode: "every_n", elastic.Lab429Injected: "", elastic.Lab429Counter: ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.tap.Refuse(c.refusal)
			outcomes, err := r.sink(r.tap.URL()).Write(leading(t), docs(1, 6))
			must(t, err)
			for i, o := range outcomes {
				want := outbox.Reason("")
				if c.hit[i] {
					want = c.reason
				}
				if o.Reason != want {
					t.Errorf("document %d: got %v, want reason %q", i, o, want)
				}
			}
			if got, want := r.tap.Refusals(), len(c.hit); got.Hit != want {
				t.Errorf("refusals: got %+v, want %d hit", got, want)
			}
			r.tap.Refuse(c.refusal) // counts anew
			_, header, _ := r.do(http.MethodPost, r.bulkURL(r.tap), nil, bulkBody(2, 6))
			for name, want := range c.header {
				if got := header.Get(name); got != want {
					t.Errorf("%s: got %q, want %q", name, got, want)
				}
			}
			if c.header == nil && header.Get(elastic.Lab429Mode) != "" {
				t.Errorf("header: got %v, want no marks of a 429", header)
			}
			forwarded := 0
			for _, a := range r.rec.Applied() {
				if a.Forwarded {
					forwarded++
				}
			}
			if want := 2 * (6 - len(c.hit)); forwarded != want {
				t.Errorf("record: got %d items forwarded, want %d", forwarded, want)
			}
			r.tap.Clear()
			_, header, body := r.do(http.MethodPost, r.bulkURL(r.tap), nil, bulkBody(3, 6))
			if header.Get(elastic.Lab429Mode) != "" || strings.Contains(string(body), `"error"`) {
				t.Errorf("after Clear: got %v, %s", header, body)
			}
		})
	}
}

func TestRefusalChoice(t *testing.T) {
	t.Parallel()
	hits := func(r Refusal, n int) (hit []int) {
		x := newRefusing(r)
		for i := range n {
			if x.hits(line{op: history.Index}) {
				hit = append(hit, i)
			}
			x.hits(line{op: history.Delete})
		}
		return hit
	}
	upserts := []outbox.Op{outbox.Upsert}
	if d := cmp.Diff([]int{1, 3, 5}, hits(Refusal{Status: 429, EveryN: 2, Ops: upserts}, 6)); d != "" {
		t.Errorf("every second upsert (-want +got):\n%s", d)
	}
	one, again, other := hits(Refusal{Ratio: 0.3, Seed: 1, Ops: upserts}, 1000), hits(Refusal{Ratio: 0.3, Seed: 1, Ops: upserts}, 1000), hits(Refusal{Ratio: 0.3, Seed: 2, Ops: upserts}, 1000)
	if !cmp.Equal(one, again) || cmp.Equal(one, other) {
		t.Error("a seed must make the choice, and make it again")
	}
	if len(one) < 200 || len(one) > 400 {
		t.Errorf("ratio 0.3: got %d of 1000", len(one))
	}
}

func TestRefusalString(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]Refusal{
		"status=429 mode=every_n every_n=3 effective_ratio=0.333 ops=upsert,delete": {Status: 429, EveryN: 3},
		"status=429 mode=ratio ratio=0.250 seed=7 effective_ratio=0.250 ops=delete": {Status: 429, Ratio: 0.25, Seed: 7, Ops: []outbox.Op{outbox.Delete}},
		"status=400 mode=documents ids=block:1,block:2 ops=upsert,delete":           {Status: 400, IDs: []string{"block:1", "block:2"}},
	} {
		if got := r.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
