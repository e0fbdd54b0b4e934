package consumer_test

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

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/consumer/observe"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	minutes = 8
	// quiet is what the documentation of Silent promises for these limits.
	quiet = 2 * time.Minute
)

// paper is an outbox that answers as told; what is not told is empty. Its time is that of
// a synctest bubble.
type paper struct {
	list    func(ctx context.Context) (*outbox.List, error)
	lease   func(ctx context.Context) error
	settle  func(ctx context.Context) error
	resolve func(ctx context.Context) (settled bool, err error)
}

func (p *paper) List(ctx context.Context, _ outbox.ListRequest) (*outbox.List, error) {
	if p.list == nil {
		return &outbox.List{}, nil
	}
	return p.list(ctx)
}

func (p *paper) Lease(ctx context.Context, _ int64, _ uuid.UUID, groups []outbox.Group) (*outbox.Lease, error) {
	if p.lease != nil {
		if err := p.lease(ctx); err != nil {
			return nil, err
		}
	}
	l := &outbox.Lease{Obstacles: make([]*outbox.Obstacle, len(groups))}
	for _, g := range groups {
		l.Events = append(l.Events, []outbox.Event{{Row: g.Rows[0], Op: outbox.Upsert}})
	}
	return l, nil
}

func (p *paper) Settle(ctx context.Context, _ int64, _ uuid.UUID, _ []outbox.Settlement) (outbox.Settled, error) {
	if p.settle == nil {
		return outbox.Settled{At: time.Now()}, nil
	}
	return outbox.Settled{At: time.Now()}, p.settle(ctx)
}

func (p *paper) Resolve(ctx context.Context, _ int64, _ uuid.UUID, _ []outbox.Settlement) (outbox.Settled, bool, error) {
	if p.resolve == nil {
		return outbox.Settled{At: time.Now()}, true, nil
	}
	settled, err := p.resolve(ctx)
	return outbox.Settled{At: time.Now()}, settled, err
}

func (*paper) Split(context.Context, int64, uuid.UUID, [2]outbox.Half) error { return nil }
func (*paper) Abandon(context.Context, int64, []uuid.UUID) (int, error)      { return 0, nil }
func (*paper) PutOff(context.Context, int64, outbox.Key, outbox.Position, int) (int, error) {
	return 0, nil
}
func (*paper) PutOffEntities(context.Context, int, outbox.ID) ([]outbox.Key, []outbox.Key, outbox.ID, error) {
	return nil, nil, outbox.ID{}, nil
}
func (*paper) Wake(context.Context, int64, []outbox.Reason, int) (int, error)    { return 0, nil }
func (*paper) RecordProgress(context.Context, int64, time.Time) error            { return nil }
func (*paper) Holds(context.Context) (h outbox.Holds, k []outbox.Key, err error) { return h, k, nil }
func (*paper) ForeignClaim(context.Context, time.Duration) (string, time.Duration, error) {
	return "", 0, nil
}

// one lists an event at each call, ten times a second.
func one(context.Context) (*outbox.List, error) {
	time.Sleep(100 * time.Millisecond) // of the bubble's clock
	return &outbox.List{Ready: []outbox.Row{{ID: outbox.UUID(uuid.New()), Key: newKey(), Version: 1}}}, nil
}

// player is a projection that answers as told; what is not told is well.
type player struct {
	project func(context.Context, []outbox.Event) ([]outbox.Outcome, error)
	ready   func(context.Context) error
}

func (player) Name() string { return projName }

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
func onPaper(t *testing.T, store consumer.Store, proj consumer.Projection) (*consumer.Pipeline, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	m, err := observe.NewMetrics(reg, []string{projName})
	if err != nil {
		t.Fatal(err)
	}
	p, err := consumer.New(store, proj, consumer.Config{
		Group: "g", Instance: "me", BatchSize: 10, Concurrency: 3, Poll: time.Second, BreakerThreshold: 3, Grace: time.Second,
		Retry: consumer.RetryPolicy{MaxAttempts: 4, BaseBackoff: time.Second, MaxBackoff: time.Second}, CutOff: time.Hour,
	}, zap.NewNop(), m)
	if err != nil {
		t.Fatal(err)
	}
	return p, reg
}

// silence is how long a pipeline is silent at most, and at the end, of some minutes.
func silence(t *testing.T, store consumer.Store, proj consumer.Projection) (most, last time.Duration, stop func()) {
	t.Helper()
	p, _ := onPaper(t, store, proj)
	if s := p.Silent(); s != 0 {
		t.Errorf("silent for %v before a term, want 0", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, &aTerm{epoch: 1, stop: make(chan struct{})}) }()
	for range minutes * 60 {
		time.Sleep(time.Second) // of the bubble's clock
		synctest.Wait()
		last = p.Silent()
		most = max(most, last)
	}
	return most, last, func() {
		cancel()
		<-done
		if s := p.Silent(); s != 0 {
			t.Errorf("silent for %v after the term, want 0", s)
		}
	}
}

func TestSilenceEndsWithProgress(t *testing.T) {
	t.Parallel()
	shared := &outbox.Fault{Reason: outbox.ReasonESConnect, Shared: true, Err: errors.New("refused")}
	away := errors.New("no answer")
	// By its deadline, a call without an answer ends.
	slow := func(ctx context.Context, d time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		<-ctx.Done()
		return away
	}
	deaf := func(ctx context.Context) error { return slow(ctx, 10*time.Second) }
	for _, tc := range []struct {
		name  string
		store *paper
		proj  player
	}{
		{"Idle", &paper{}, player{}},
		{"Busy", &paper{list: one}, player{}},
		{"DestinationAway", &paper{list: one}, player{
			project: func(context.Context, []outbox.Event) ([]outbox.Outcome, error) { return nil, shared },
			ready:   func(context.Context) error { return away }}},
		{"DestinationDeaf", &paper{list: one}, player{
			project: func(ctx context.Context, _ []outbox.Event) ([]outbox.Outcome, error) {
				<-ctx.Done()
				return nil, shared
			},
			ready: func(ctx context.Context) error { <-ctx.Done(); return away }}},
		{"ListsDeaf", &paper{list: func(ctx context.Context) (*outbox.List, error) { return nil, deaf(ctx) }}, player{}},
		{"LeasesDeaf", &paper{list: one, lease: deaf}, player{}},
		{"SettlesDeaf", &paper{list: one, settle: deaf, resolve: func(ctx context.Context) (bool, error) { return false, deaf(ctx) }}, player{}},
		{"BreakerOpen", &paper{list: one}, player{
			project: func(_ context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
				return slices.Repeat([]outbox.Outcome{{Verdict: outbox.Failed, Reason: outbox.ReasonES4xx}}, len(events)), nil
			}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				most, _, stop := silence(t, tc.store, tc.proj)
				stop()
				if most > quiet {
					t.Errorf("silent for %v, want at most %v", most, quiet)
				}
			})
		})
	}
}

func TestSilenceGrowsWhileACallHangs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		with func(free chan struct{}) (*paper, player)
	}{
		{"OneBatchOfMany", func(free chan struct{}) (*paper, player) {
			var first atomic.Bool
			return &paper{list: one}, player{project: func(_ context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
				if first.CompareAndSwap(false, true) {
					<-free // whatever its deadline says
				}
				return slices.Repeat([]outbox.Outcome{outbox.OK()}, len(events)), nil
			}}
		}},
		{"OneSettleOfMany", func(free chan struct{}) (*paper, player) {
			var first atomic.Bool
			return &paper{list: one, settle: func(context.Context) error {
				if first.CompareAndSwap(false, true) {
					<-free
				}
				return nil
			}}, player{}
		}},
		{"ProbeOfTheDestination", func(free chan struct{}) (*paper, player) {
			return &paper{list: one}, player{
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
