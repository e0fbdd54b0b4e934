package history

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

func TestDiverged(t *testing.T) {
	t.Parallel()
	doc := entity.String()
	source := func(version int64, deleted bool) []SourceChange {
		return []SourceChange{{Tx: 5, At: start, Key: entity, Version: version - 1}, {Tx: 6, At: start, Key: entity, Version: version, Deleted: deleted}}
	}
	difference := func(kind reconcile.Kind, fields ...string) []reconcile.Difference {
		return []reconcile.Difference{{Kind: kind, ID: doc, Fields: fields}}
	}
	ended := func(to Status) []Change {
		s := takeover()
		s.commit(enqueued(9))
		s.batch("b", 2, became(9, to))
		return s.read().Changes
	}
	for name, tc := range map[string]struct {
		log                 Log
		end                 End
		diverged, unsettled []string
	}{
		"Equal":          {Log{Source: source(3, false)}, End{Documents: map[string]int64{doc: 3}}, nil, nil},
		"EqualWhenGone":  {Log{Source: source(3, true)}, End{}, nil, nil},
		"NoSourceRecord": {Log{}, End{Documents: map[string]int64{doc: 3}}, nil, nil},
		"Missing": {
			Log{Changes: ended(Done), Source: source(9, false)}, End{Differences: difference(reconcile.Missing)},
			[]string{"version 9 (event 00000000-0000-0000-0000-000000000009): missing " + doc + " (last written as version 9 in transaction 6)"}, nil,
		},
		"StaleField": {
			Log{Source: source(3, false)}, End{Documents: map[string]int64{doc: 3}, Differences: difference(reconcile.Stale, "text is old, want new")},
			[]string{"stale " + doc + ": text is old, want new"}, nil,
		},
		"MissingByTheRecordAlone": {Log{Source: source(3, false)}, End{}, []string{"missing " + doc}, nil},
		"ExtraByTheRecordAlone":   {Log{Source: source(3, true)}, End{Documents: map[string]int64{doc: 3}}, []string{"extra " + doc + " (last deleted after version 3"}, nil},
		"OldByTheRecordAlone":     {Log{Source: source(3, false)}, End{Documents: map[string]int64{doc: 2}}, []string{"_version is 2, want 3"}, nil},
		"DeadLetterExplainsIt": {
			Log{Changes: ended(Failed), Source: source(9, false)}, End{Documents: map[string]int64{doc: 3}, Differences: difference(reconcile.Stale, "text")},
			nil, []string{"version 9 (event 00000000-0000-0000-0000-000000000009): stale"},
		},
		"OlderDeadLetterDoesNot": {
			Log{Changes: append(ended(Failed), Change{Tx: 99, Event: id(10), Key: entity, Version: 10, To: Done}), Source: source(10, false)}, End{},
			[]string{"version 10 (event 00000000-0000-0000-0000-00000000000a): missing"}, nil,
		},
		"DeadLetterOfAnotherDoesNot": {
			Log{Changes: []Change{{Event: id(9), Key: another, Version: 9, To: Failed}}}, End{Differences: difference(reconcile.Missing)},
			[]string{"missing"}, nil,
		},
		"PendingOneDoesNot": {
			Log{Changes: ended(Pending)}, End{Differences: difference(reconcile.Missing)}, []string{"missing"}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			diverged, unsettled := Diverged(&tc.log, &tc.end)
			expect(t, "diverged", diverged, tc.diverged...)
			expect(t, "unsettled", unsettled, tc.unsettled...)
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	// Requests are 20 and 40 ms after the start.
	sound := &script{}
	sound.term(1, "a")
	sound.commit(enqueued(1), enqueued(3))
	one := sound.lease("a", 1, 1)
	sound.tx = 34
	sound.end(one, "a", done(1))
	three := sound.lease("a", 1, 3)
	sound.tx = 59
	sound.end(three, "a", done(3))
	v := Check(Run{Log: sound.read(), Applied: newTraffic().send(Index, 1).send(Index, 3).applied, End: ends(3)})
	if bad := v.Breaches(); len(bad) != 0 {
		t.Errorf("sound run: got %v", bad)
	}

	// A record in which nothing was sent is one; see Run.Applied.
	v = Check(Run{Log: sound.read(), Applied: []Applied{}})
	expect(t, "lost when all passed by the record", v.Lost,
		"done before Elasticsearch had confirmed a version", "done before Elasticsearch had confirmed a version")

	s := takeover()
	s.batch("a", 1, became(6, Failed))
	s.commit(enqueued(7))
	s.commit(enqueued(8))
	s.commit(done(8), Change{Version: 1, From: Done, To: Done})
	v = Check(Run{
		Log: s.read(), Applied: newTraffic().send(Index, 3).send(Index, 2).send(Delete, 5).send(Index, 4).applied,
		End: &End{Differences: []reconcile.Difference{{Kind: reconcile.Missing, ID: entity.String()}}},
	})
	var got []string
	for _, b := range v.Breaches() {
		got = append(got, b.Invariant)
	}
	want := []string{"one claimer", "a lease for every verdict", "a lease before every send", "no event lost", "done once", "order per entity", "versions never go back", "deleted documents stay deleted", "convergence"}
	if len(got) != len(want) {
		t.Fatalf("breaches: got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("breach %d: got %q, want %q", i, got[i], want[i])
		}
	}
}
