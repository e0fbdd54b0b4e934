package observe

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/outbox"
)

// BenchmarkLines is what a batch of 64 events costs to tell of at the default level: when all
// went well, when each is one of a hot entity's twenty, and in a storm of no-ops.
func BenchmarkLines(b *testing.B) {
	const size = 64
	for _, bc := range []struct {
		name    string
		events  int // of each entity
		outcome outbox.Outcome
	}{{"distinct", 1, outbox.OK()}, {"hot", 20, outbox.OK()}, {"noops", 1, outbox.NoOp(outbox.NoopAlreadyApplied)}} {
		b.Run(bc.name, func(b *testing.B) {
			tel, err := telemetry.New(io.Discard, telemetry.Options{})
			if err != nil {
				b.Fatal(err)
			}
			f := newFlight(b, Tracing{}, tel.Log)
			groups, outcomes := make([][]outbox.Event, size), make([]outbox.Outcome, size)
			lease := &outbox.Lease{Events: groups, Obstacles: make([]*outbox.Obstacle, size)}
			for i := range size {
				for n := range bc.events {
					e := aRow(byte(i), outbox.Upsert)
					e.Key.Type, e.Version = fmt.Sprint("book", i), int64(n)
					groups[i] = append(groups[i], e)
				}
				outcomes[i] = bc.outcome
			}
			of, _ := f.answered(outcomes, groups...)
			b.ReportAllocs()
			for b.Loop() {
				f.o.Leased(context.Background(), theBatch, size, time.Now(), lease, nil).Settled(of, outbox.Settled{}, time.Now())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(size*bc.events), "ns/event")
		})
	}
}
