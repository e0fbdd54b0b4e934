package outbox_test

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A command has other sessions than an instance. With statistics of a moment without dead letters it must not
// compare each of those that there are with each that it sends.
func TestReplayAndDiscardReadNoRowTwice(t *testing.T) {
	t.Parallel()
	for _, statistics := range []string{ofBacklog, ofDrained} {
		t.Run(statistics, func(t *testing.T) {
			t.Parallel()
			b := crowded(t, false, statistics)
			most := int64(b.count("true"))
			cost := &explained{Pool: testenv.Pool(t, b.pool.Config().ConnString()), t: t}
			d, err := outbox.OpenDeadLetters(t.Context(), cost, table, "p", leaseTime)
			if err != nil {
				t.Fatal(err)
			}
			r, err := d.BeginReplay(t.Context(), outbox.LetterOrder{By: "a", Why: "b"}, 1)
			if err != nil {
				t.Fatal(err)
			}
			ids, err := r.Next(t.Context(), 500)
			if err != nil {
				t.Fatal(err)
			}
			cost.rows = 0
			if found, err := d.List(t.Context(), outbox.Selector{IDs: ids[:20]}, 50); err != nil || len(found) != 20 || cost.rows > 20 {
				t.Errorf("by their ids: %d found, %v; a step reads %d rows, want 20", len(found), err, cost.rows)
			}
			cost.rows = 0
			if sent, err := r.Send(t.Context(), ids); err != nil || len(sent) != 500 || cost.rows > most {
				t.Errorf("replay: %d sent, %v; a step reads %d rows of %d", len(sent), err, cost.rows, most)
			}
			cost.rows = 0
			out, err := d.Discard(t.Context(), outbox.LetterOrder{By: "a", Why: "b"})
			if err != nil || out.Skipped != 0 || out.Discarded < 4500 || cost.rows > most {
				t.Errorf("discard: %+v, %v; a step reads %d rows of %d", out, err, cost.rows, most)
			}
		})
	}
}
