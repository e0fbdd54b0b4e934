package consumer

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	minutes  = 8
	patience = 2 * time.Minute // what the documentation of Silent promises for these limits
)

// paper is an outbox that answers as told; what is not told is empty.
type paper struct {
	Store
	claim func(ctx context.Context) (*outbox.Claimed, error)
	wait  func(ctx context.Context) error
}

func (p *paper) Lease() time.Duration               { return 30 * time.Second }
func (p *paper) Peek(context.Context) (bool, error) { return false, nil }
func (p *paper) List(context.Context, int) ([]outbox.Listed, time.Duration, error) {
	return nil, 0, nil
}
func (p *paper) Claim(ctx context.Context, _ outbox.ClaimRequest) (*outbox.Claimed, error) {
	if p.claim == nil {
		return &outbox.Claimed{}, nil
	}
	return p.claim(ctx)
}
func (p *paper) Settle(context.Context, int64, []outbox.Settlement) (outbox.Settled, error) {
	return outbox.Settled{}, nil
}
func (p *paper) Renew(context.Context, int64, []outbox.Event) (int, error) { return 0, nil }
func (p *paper) Waits(ctx context.Context, _ []outbox.Event, _ func(outbox.Wait)) error {
	if p.wait == nil {
		return nil
	}
	return p.wait(ctx)
}
func (p *paper) Wake(context.Context, int64, []outbox.Reason) (int, error) { return 0, nil }
func (p *paper) GiveBackUnknown(context.Context, int64, []outbox.Event) (int, error) {
	return 0, nil
}
func (p *paper) RecordProgress(context.Context, int64, time.Time) error { return nil }

// one claims an event at each call, ten times a second.
func one(context.Context) (*outbox.Claimed, error) {
	time.Sleep(100 * time.Millisecond)
	e := outbox.Event{ID: uuid.New(), Key: outbox.Key{Type: "block", ID: uuid.New()}, Op: outbox.Upsert, Version: 1}
	return &outbox.Claimed{Ready: []outbox.Event{e}, ReadyCandidates: 1}, nil
}

// player is a projection that answers as told; what is not told is well.
type player struct {
	project func(context.Context, []outbox.Event) ([]outbox.Outcome, error)
	ready   func(context.Context) error
}

func (p player) Name() string { return projName }

func (p player) Ready(ctx context.Context) error {
	if p.ready == nil {
		return nil
	}
	return p.ready(ctx)
}

func (p player) Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
	if p.project == nil {
		return slices.Repeat([]outbox.Outcome{outbox.OK()}, len(events)), nil
	}
	return p.project(ctx, events)
}

// onPaper is a pipeline without servers.
func onPaper(t *testing.T, store Store, proj Projection) *Pipeline {
	t.Helper()
	m, err := NewMetrics(prometheus.NewRegistry(), []string{projName})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(store, proj, Config{
		Group: "g", BatchSize: 10, Concurrency: 3, Poll: time.Second, BreakerThreshold: 3, Grace: time.Second,
		Retry: RetryPolicy{MaxAttempts: 4, BaseBackoff: time.Second, MaxBackoff: time.Second},
	}, zap.NewNop(), m)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// silence is how long a pipeline is silent at most, and at the end, of some minutes.
func silence(t *testing.T, store Store, proj Projection) (most, last time.Duration, stop func()) {
	t.Helper()
	p := onPaper(t, store, proj)
	if s := p.Silent(); s != 0 {
		t.Errorf("silent for %v before a term", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, &aTerm{epoch: 1, stop: make(chan struct{})}) }()
	for range minutes * 60 {
		time.Sleep(time.Second)
		synctest.Wait()
		last = p.Silent()
		most = max(most, last)
	}
	return most, last, func() {
		cancel()
		<-done
		if s := p.Silent(); s != 0 {
			t.Errorf("silent for %v after the term", s)
		}
	}
}

func TestSilenceOfWhatGetsSomewhere(t *testing.T) {
	t.Parallel()
	shared := &outbox.Fault{Reason: outbox.ReasonESConnect, Shared: true, Err: errors.New("refused")}
	away := errors.New("no answer")
	// By its deadline, a call without an answer ends.
	slow := func(ctx context.Context, d time.Duration) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		<-ctx.Done()
	}
	for _, tc := range []struct {
		name  string
		store *paper
		proj  player
	}{
		{"Idle", &paper{}, player{}},
		{"Busy", &paper{claim: one}, player{}},
		{"DestinationAway", &paper{claim: one}, player{
			project: func(context.Context, []outbox.Event) ([]outbox.Outcome, error) { return nil, shared },
			ready:   func(context.Context) error { return away }}},
		{"DestinationDeaf", &paper{claim: one}, player{
			project: func(ctx context.Context, _ []outbox.Event) ([]outbox.Outcome, error) {
				<-ctx.Done()
				return nil, shared
			},
			ready: func(ctx context.Context) error { <-ctx.Done(); return away }}},
		{"OutboxDeaf", &paper{claim: func(ctx context.Context) (*outbox.Claimed, error) {
			slow(ctx, 10*time.Second)
			return nil, away
		}}, player{}},
		{"WaitsNotLoaded", &paper{wait: func(ctx context.Context) error { slow(ctx, time.Minute); return away }}, player{}},
		{"BreakerOpen", &paper{claim: one}, player{
			project: func(_ context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
				return slices.Repeat([]outbox.Outcome{{Verdict: outbox.Failed, Reason: outbox.ReasonES4xx}}, len(events)), nil
			}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				most, _, stop := silence(t, tc.store, tc.proj)
				stop()
				if most > patience {
					t.Errorf("silent for %v, want at most %v", most, patience)
				}
			})
		})
	}
}

func TestSilenceOfWhatHangs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		with func(free chan struct{}) (*paper, player)
	}{
		{"OneBatchOfMany", func(free chan struct{}) (*paper, player) {
			var first atomic.Bool
			return &paper{claim: one}, player{project: func(_ context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
				if first.CompareAndSwap(false, true) {
					<-free // whatever its deadline says
				}
				return slices.Repeat([]outbox.Outcome{outbox.OK()}, len(events)), nil
			}}
		}},
		{"CallOfTheLoop", func(free chan struct{}) (*paper, player) {
			return &paper{claim: func(context.Context) (*outbox.Claimed, error) {
				<-free
				return &outbox.Claimed{}, nil
			}}, player{}
		}},
		{"ProbeOfTheDestination", func(free chan struct{}) (*paper, player) {
			return &paper{claim: one}, player{
				project: func(context.Context, []outbox.Event) ([]outbox.Outcome, error) {
					return nil, &outbox.Fault{Reason: outbox.ReasonESConnect, Shared: true, Err: errors.New("refused")}
				},
				ready: func(context.Context) error { <-free; return nil },
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				free := make(chan struct{})
				store, proj := tc.with(free)
				_, last, stop := silence(t, store, proj)
				close(free)
				stop()
				if last < (minutes-1)*time.Minute {
					t.Errorf("silent for %v, want nearly all of %d minutes", last, minutes)
				}
			})
		})
	}
}
