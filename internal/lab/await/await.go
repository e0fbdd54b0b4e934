package await

import (
	"context"
	"fmt"
	"time"
)

// Await calls well, with a pause of period between, until it returns nil. After bound it
// fails with well's last error; the end of ctx is returned as its cause.
func Await(ctx context.Context, bound, period time.Duration, what string, well func(context.Context) error) error {
	limit, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var last error
	for {
		err := well(limit)
		if err == nil {
			return nil
		}
		if limit.Err() == nil || last == nil {
			last = err
		}
		if Sleep(limit, period) != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("no %s within %v: %w", what, bound, last)
		}
	}
}

// Sleep waits for d or the end of ctx, whose cause it returns.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
