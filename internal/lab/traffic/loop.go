package traffic

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// Loop is an open loop of operations.
type Loop struct {
	Ops         int     // 0: until the context ends
	Rate        float64 // operations per second; 0 is as fast as possible
	Concurrency int     // operations under way at most
	// Skip leaves out operations that are late by more than this; 0: they are made up for as
	// fast as the connections allow.
	Skip time.Duration
}

// Run calls do for each operation when it is due. The end of ctx ends the loop, which is no
// error; the first error of do ends it, too.
func (l Loop) Run(ctx context.Context, do func(ctx context.Context, n int, due time.Time) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	var once sync.Once
	var failure error
	began := time.Now()
	for range l.Concurrency {
		workers.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if l.Ops > 0 && n >= l.Ops {
					return
				}
				due := time.Now()
				if l.Rate > 0 {
					due = began.Add(time.Duration(float64(n) / l.Rate * float64(time.Second)))
					if wait := time.Until(due); wait > 0 {
						_ = rig.Sleep(ctx, wait)
					}
				}
				if ctx.Err() != nil {
					return
				}
				if l.Skip > 0 && time.Since(due) > l.Skip {
					continue
				}
				if err := do(ctx, n, due); err != nil {
					once.Do(func() { failure = err })
					cancel(err)
					return
				}
			}
		})
	}
	workers.Wait()
	return failure
}
