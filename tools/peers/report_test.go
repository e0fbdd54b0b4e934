package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLedgerAfterLeavesOutTheRowAtTheFault(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 10, 0, 0, 0, time.UTC)
	var l ledger
	for n := range 10 {
		l.ids = append(l.ids, int64(n))
		l.when = append(l.when, at.Add(time.Duration(n)*100*time.Millisecond))
	}
	cases := map[string]struct {
		fault time.Duration
		want  []int64
	}{
		"Between":  {250 * time.Millisecond, []int64{4, 5, 6, 7}},
		"NearEnd":  {750 * time.Millisecond, []int64{9}},
		"AfterAll": {time.Hour, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := l.after(at.Add(c.fault), 500*time.Millisecond); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestReportShowsFiguresAndReasons(t *testing.T) {
	t.Parallel()
	r := report{Rows: 10, Peers: []figures{
		{
			Name: "weft", Backlog: &backlog{Searchable: 1.25, Settled: 1.5, Wrong: wrong{Different: 2, Example: "document 2: title"}},
			Takeovers: []takeovers{
				{Fault: "kill -9", First: []float64{0.3, 0.1, 0.2}, All: []float64{1, 1, 1}},
				{Fault: "SIGSTOP", Note: "never", Wrong: 3},
			},
		},
		{Name: "pgstream", Reason: withoutHosts(errors.New("reading https://proxy.example.org/x:\n 403 Forbidden"))},
	}}
	var text strings.Builder
	r.print(&text)
	got := strings.Join(strings.Fields(text.String()), " ")
	for _, want := range []string{
		"weft 1.2 s 1.5 s 2 0.1 0.2 0.3 1.0 1.0 1.0 - - 3",
		"pgstream - - - - - - - -",
		"weft, SIGSTOP: never",
		"pgstream: not measured: reading REGISTRY/x: 403 Forbidden",
		"wrong documents, such as: document 2: title",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
}
