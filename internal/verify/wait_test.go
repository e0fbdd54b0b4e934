package verify

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// away is a projection of one row without a document, whose destination does not answer for a while.
type away struct {
	projections.Projection
	back time.Time
	key  outbox.Key
}

func (a *away) Name() string                                  { return "p" }
func (a *away) State(context.Context) (string, error)         { return "", nil }
func (a *away) Size(context.Context) (int64, int64, error)    { return 1, 0, nil }
func (a *away) ByVersionOnly(context.Context) (string, error) { return "", nil }

func (a *away) Entities(_ context.Context, after outbox.Key, _ int) ([]outbox.Key, error) {
	if after == a.key {
		return nil, nil
	}
	return []outbox.Key{a.key}, nil
}

func (a *away) Wanted(context.Context, []outbox.Key) ([]projections.Wanted, error) {
	return []projections.Wanted{{Found: true, Version: 1}}, nil
}

func (a *away) Held(_ context.Context, _ []outbox.Key, newest bool) ([]projections.Held, error) {
	if newest && time.Now().Before(a.back) {
		return nil, &elastic.UnansweredError{Hosts: "h"}
	}
	return nil, nil
}

func (a *away) Known(context.Context, []outbox.Key) ([]bool, error) { return nil, nil }

func (a *away) Documents(context.Context, string) ([]projections.Held, string, error) {
	return nil, "", nil
}

// open says that the entity has an open event until half a minute after the destination is back.
type open struct {
	Events
	*away
}

func (o open) Standing(context.Context, []outbox.Key) ([]outbox.Standing, error) {
	return []outbox.Standing{{Open: time.Now().Before(o.back.Add(30 * time.Second))}}, nil
}
func (open) OwnsVersions() bool { return true }
func (open) Unnumbered(_ context.Context, keys []outbox.Key) ([]bool, error) {
	return make([]bool, len(keys)), nil
}

// A destination that does not answer is waited for, and what could not settle meanwhile has its time to settle afterwards.
func TestDestinationIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		away, wait time.Duration
		ends       bool
	}{
		"Back":    {away: 4 * time.Minute, wait: 5 * time.Minute, ends: true},
		"TooLong": {away: 6 * time.Minute, wait: 5 * time.Minute},
		"NoWait":  {away: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, told := time.Now(), 0
				a := &away{back: began.Add(c.away), key: outbox.Key{Type: "t", ID: outbox.Text("1")}}
				report, err := Run(t.Context(), Options{Sides: a, Events: open{away: a}, Wait: c.wait, Waiting: func(error) { told++ }})
				_, unanswered := errors.AsType[*elastic.UnansweredError](err)
				switch {
				case c.ends && (err != nil || report.Missing != 1 || report.Unsettled != 0 || told == 0):
					t.Errorf("got %+v, %v, want one missing document; told of %d tries", report, err, told)
				case !c.ends && (!unanswered || time.Since(began) > c.wait+time.Second):
					t.Errorf("got %v after %s, want that nothing answers, after %s", err, time.Since(began), c.wait)
				}
			})
		})
	}
}

// shared is an index with documents of two shards, of which this one has the first.
type shared struct {
	projections.Sides
	Events
}

func (shared) Known(_ context.Context, keys []outbox.Key) ([]bool, error) {
	return make([]bool, len(keys)), nil
}

func (shared) Owns(_ context.Context, keys []outbox.Key) ([]bool, error) {
	own := make([]bool, len(keys))
	own[0] = true
	return own, nil
}

// Documents of rows of another shard are neither counted nor taken off the count.
func TestDocumentsOfOtherShardsAreLeftOut(t *testing.T) {
	t.Parallel()
	var held []projections.Held
	for _, id := range []string{"own", "other", "another"} {
		held = append(held, projections.Held{Key: outbox.Key{Type: "t", ID: outbox.Text(id)}})
	}
	v := &verifier{Options: Options{Sides: shared{}, Events: shared{}}}
	got, err := v.rowless(t.Context(), held)
	if err != nil || got.found.Documents != 0 || len(got.suspects) != 1 || got.suspects[0] != held[0].Key {
		t.Errorf("got %d documents and the suspects %v, %v, want 0 and %v", got.found.Documents, got.suspects, err, held[0].Key)
	}
}
