package rig

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAwait(t *testing.T) {
	t.Parallel()
	missing := errors.New("not there")

	t.Run("ReturnsAsSoonAsTheConditionHolds", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			began, calls := time.Now(), 0
			err := Await(t.Context(), time.Minute, time.Second, "thing", func(context.Context) error {
				if calls++; calls < 4 {
					return missing
				}
				return nil
			})
			if took := time.Since(began); err != nil || took != 3*time.Second {
				t.Errorf("got %v after %v, want nil after 3s", err, took)
			}
		})
	})

	t.Run("BoundSaysWhatWasMissing", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			err := Await(t.Context(), 10*time.Second, time.Second, "thing", func(ctx context.Context) error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return missing
			})
			if !errors.Is(err, missing) || !strings.Contains(err.Error(), "no thing within 10s") {
				t.Errorf("got %v, want what was missing and the bound", err)
			}
		})
	})

	t.Run("EndOfTheContextIsItsCause", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("over")
		err := Await(ctx, time.Hour, time.Hour, "thing", func(context.Context) error { cancel(cause); return missing })
		if !errors.Is(err, cause) {
			t.Errorf("got %v, want %v", err, cause)
		}
	})

	t.Run("StopEndsTheWait", func(t *testing.T) {
		t.Parallel()
		err := Await(t.Context(), time.Hour, time.Hour, "thing", func(context.Context) error { return Stop(missing) })
		if !errors.Is(err, missing) {
			t.Errorf("got %v, want %v", err, missing)
		}
	})
}
