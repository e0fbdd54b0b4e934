package verify

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// longestPause is the longest pause between two tries of a read.
const longestPause = 5 * time.Second

// held returns what the destination has of entities.
func (v *verifier) held(ctx context.Context, keys []outbox.Key, newest bool) (held []projections.Held, err error) {
	err = v.await(ctx, len(keys), func() (err error) {
		held, err = v.Sides.Held(ctx, keys, newest)
		return err
	})
	return held, err
}

// await reads what n items have, and again as long as the destination does not answer, for Wait at most, unless fewer items
// may do.
func (v *verifier) await(ctx context.Context, n int, read func() error) error {
	failed := false
	pause := backoff.NewExponentialBackOff()
	pause.MaxInterval = longestPause
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := read()
		if _, unanswered := errors.AsType[*elastic.UnansweredError](err); err != nil && (v.Wait == 0 || !unanswered || fewer(err, n)) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(v.Wait), backoff.WithNotify(func(err error, _ time.Duration) {
		if !failed {
			failed = true
			v.silent.begin()
		}
		if v.Waiting != nil {
			v.Waiting(err)
		}
	}))
	if failed {
		v.silent.end()
	}
	return err
}

// now is the time without that in which the destination did not answer: the pipeline could not write either.
func (v *verifier) now() time.Time { return time.Now().Add(-v.silent.lasted()) }

// silence is the time in which a read or more waited for the destination.
type silence struct {
	sync.Mutex
	reads int // that wait
	since time.Time
	past  time.Duration
}

func (s *silence) begin() {
	s.Lock()
	defer s.Unlock()
	if s.reads == 0 {
		s.since = time.Now()
	}
	s.reads++
}

func (s *silence) end() {
	s.Lock()
	defer s.Unlock()
	if s.reads--; s.reads == 0 {
		s.past += time.Since(s.since)
	}
}

func (s *silence) lasted() time.Duration {
	s.Lock()
	defer s.Unlock()
	if s.reads == 0 {
		return s.past
	}
	return s.past + time.Since(s.since)
}
