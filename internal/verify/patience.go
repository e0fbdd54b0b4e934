package verify

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// longestPause is the longest pause between two tries of a read.
const longestPause = 5 * time.Second

// held returns what the destination has of entities, and how long it was waited for beyond the first try.
func (v *verifier) held(ctx context.Context, keys []outbox.Key, newest bool) (held []projections.Held, waited time.Duration, err error) {
	waited, err = v.patiently(ctx, len(keys), func() (err error) {
		held, err = v.Sides.Held(ctx, keys, newest)
		return err
	})
	return held, waited, err
}

// patiently reads what n items have, and again as long as the destination does not answer and patience lasts, unless fewer
// items may do. It returns how long that took beyond the first try.
func (v *verifier) patiently(ctx context.Context, n int, read func() error) (waited time.Duration, err error) {
	var failed time.Time
	pause := backoff.NewExponentialBackOff()
	pause.MaxInterval = longestPause
	_, err = backoff.Retry(ctx, func() (struct{}, error) {
		err := read()
		if unanswered := new(elastic.UnansweredError); err != nil && (v.Patience == 0 || fewer(err, n) || !errors.As(err, &unanswered)) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(v.Patience), backoff.WithNotify(func(err error, _ time.Duration) {
		if failed.IsZero() {
			failed = time.Now()
		}
		if v.Waiting != nil {
			v.Waiting(err)
		}
	}))
	if !failed.IsZero() {
		waited = time.Since(failed)
	}
	return waited, err
}
