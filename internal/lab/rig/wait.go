package rig

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Await calls check, with a pause of period between, until it returns nil or an error that
// [Stop] has made. After bound it fails with check's last error; when ctx ends it returns
// the cause.
func Await(ctx context.Context, bound, period time.Duration, what string, check func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var last error
	_, err := backoff.Retry(limited, func() (struct{}, error) {
		err := check(limited)
		if limited.Err() == nil || last == nil {
			last = err
		}
		return struct{}{}, err
	}, backoff.WithBackOff(backoff.NewConstantBackOff(period)), backoff.WithMaxElapsedTime(0))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() == nil:
		return err
	default:
		return fmt.Errorf("no %s within %v: %w", what, bound, last)
	}
}

// Stop returns err as one that ends [Await] at once.
func Stop(err error) error { return backoff.Permanent(err) }

// Sleep waits for d or the end of ctx, whose cause it returns.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
