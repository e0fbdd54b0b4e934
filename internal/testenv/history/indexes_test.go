package history

import (
	"testing"
	"time"
)

// What a rebuild writes is judged in its own index, needs no lease and settles no event; after the
// move the alias leads there.
func TestCheckOfRebuilds(t *testing.T) {
	t.Parallel()
	ms := int64(10) // after the lease
	item := func(target, index string, version int64) Applied {
		ms++
		at := start.Add(time.Duration(ms) * time.Millisecond)
		a := Applied{
			Request: ms, Instance: "a", Sent: at, Answered: at, Op: Index, ID: entity.String(), Target: target, Version: version,
			Index: index, Status: 201, Result: "created", SeqNo: ms, PrimaryTerm: 1, ResultVersion: version, Forwarded: true, Known: true,
		}
		if index == "" {
			a.Status, a.Result, a.ResultVersion, a.Known, a.Answered = 0, "", 0, false, time.Time{}
		}
		return a
	}
	for name, tc := range map[string]struct {
		items []Applied
		want  string
	}{
		"Moved":       {items: []Applied{item("docs", "docs-v1", 2), item("docs-v2-writes", "docs-v2", 1), item("docs-v2-writes", "docs-v2", 2), item("docs", "docs-v2", 3)}},
		"AnswerLost":  {items: []Applied{item("docs", "docs-v1", 2), item("docs-v2-writes", "docs-v2", 2), item("docs", "", 3), item("docs", "docs-v2", 3)}},
		"TakenBack":   {items: []Applied{item("docs", "docs-v1", 3), item("docs-v2-writes", "docs-v2", 3), item("docs", "docs-v2", 1), item("docs", "docs-v2", 3)}, want: "versions never go back"},
		"BesideAlone": {items: []Applied{item("docs", "docs-v1", 2), item("docs-v2-writes", "docs-v2", 3)}, want: "no event lost"},
		"UpdateLost":  {items: []Applied{item("docs", "docs-v1", 3), item("docs-v2-writes", "docs-v2", 2)}, want: "versions never go back"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &script{}
			s.commit(enqueued(3))
			l := s.lease("a", 1, 3)
			s.tx = 100
			s.end(l, "a", done(3))
			end := &End{Documents: map[string]int64{entity.String(): 3}}
			v := Check(Run{Log: s.read(), Applied: tc.items, End: end, Alias: "docs", Index: "docs-v2"})
			var got string
			if b := v.Breaches(); len(b) > 0 {
				got = b[0].Invariant
			}
			if got != tc.want {
				t.Errorf("got %v, want %q", v.Breaches(), tc.want)
			}
		})
	}
}
