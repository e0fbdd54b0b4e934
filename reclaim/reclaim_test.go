package reclaim_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/reclaim"
)

func TestMain(m *testing.M) { testenv.MainNoServers(m) }

// pages is a store that answers call after call. What a reclaim does to the rows is
// tested with the statement, in package outbox.
type pages struct {
	leases   [][]outbox.Reclaimed
	answers  [][]outbox.Reclaimed
	errs     []error
	requests []outbox.ReclaimRequest
}

func (p *pages) ReclaimLeases(context.Context, outbox.ReclaimRequest) ([]outbox.Reclaimed, error) {
	if len(p.leases) == 0 {
		return nil, nil
	}
	got := p.leases[0]
	p.leases = p.leases[1:]
	return got, nil
}

func (p *pages) ReclaimRows(_ context.Context, r outbox.ReclaimRequest) ([]outbox.Reclaimed, error) {
	n := len(p.requests)
	p.requests = append(p.requests, r)
	if n < len(p.errs) && p.errs[n] != nil {
		return nil, p.errs[n]
	}
	if n < len(p.answers) {
		return p.answers[n], nil
	}
	return nil, nil
}

func newReclaimer(t *testing.T, store reclaim.Store) (*reclaim.Reclaimer, *observer.ObservedLogs, *prometheus.Registry) {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	reg := prometheus.NewRegistry()
	m, err := reclaim.NewMetrics(reg, []string{"p"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := reclaim.New(store, reclaim.Config{Projection: "p", Interval: 5 * time.Second, MaxProcessing: time.Minute, MaxReclaims: 10}, zap.New(core), m)
	if err != nil {
		t.Fatal(err)
	}
	return r, logs, reg
}

func TestRunOnceTakesAllPagesAndSaysFromWhom(t *testing.T) {
	t.Parallel()
	settled := outbox.Reclaimed{Owner: "b", Epoch: 2, Cause: outbox.CauseOlderEpoch} // a lease without open events
	store := &pages{leases: [][]outbox.Reclaimed{
		{settled, settled, settled, settled}, {{Owner: "b", Epoch: 3, Cause: outbox.CauseOlderEpoch, Rows: 64}},
	}, answers: [][]outbox.Reclaimed{
		{{Owner: "a", Epoch: 3, Cause: outbox.CauseOlderEpoch, Rows: 2000}},
		{{Owner: "a", Epoch: 3, Cause: outbox.CauseOlderEpoch, Rows: 7}, {Owner: "py", Cause: outbox.CauseLeaseExpired, Failed: true, Rows: 1}},
	}}
	r, logs, reg := newReclaimer(t, store)
	n, err := r.RunOnce(t.Context(), 4)
	if err != nil || n != 2072 || len(store.requests) != 3 || len(store.leases) != 0 {
		t.Fatalf("took back %d in %d calls, %v, want 2072: every lease, and rows until there are none", n, len(store.requests), err)
	}
	if got := store.requests[0]; got.Epoch != 4 || got.MaxProcessing != time.Minute || got.MaxReclaims != 10 {
		t.Errorf("request %+v", got)
	}
	line := logs.FilterMessage("leases taken back").All()
	if len(line) != 4 || line[1].ContextMap()["from_owner"] != "a" || line[1].ContextMap()["from_epoch"] != int64(3) ||
		line[1].ContextMap()["cause"] != "older_epoch" || line[3].Level != zap.ErrorLevel {
		t.Errorf("log lines %v, want owner, epoch and cause, and an error for what has failed", line)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, m := range families[0].Metric {
		got[m.Label[0].GetValue()] = m.Counter.GetValue()
	}
	if got["older_epoch"] != 2071 || got["lease_expired"] != 1 || len(got) != len(outbox.Causes()) {
		t.Errorf("counted %v, want every cause, 2071 and 1", got)
	}
}

func TestRunGoesOnAfterFaultsAndEndsWhenFenced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		store := &pages{errs: []error{nil, away, away, nil, away, outbox.ErrFenced}}
		r, logs, _ := newReclaimer(t, store)
		start := time.Now()
		if err := r.Run(t.Context(), 1); !errors.Is(err, outbox.ErrFenced) {
			t.Errorf("Run returned %v, want ErrFenced", err)
		}
		if got := time.Since(start); got != 30*time.Second {
			t.Errorf("six looks took %v, want one per interval", got)
		}
		if got := logs.FilterMessage("reclaim fails; weft tries again every interval").Len(); got != 2 {
			t.Errorf("%d lines about two faults, want one each", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Run(ctx, 1); err != nil {
			t.Errorf("Run returned %v after its context ended, want nil", err)
		}
	})
}

func TestNewNamesAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := reclaim.New(nil, reclaim.Config{Projection: "p", MaxReclaims: 1}, zap.NewNop(), nil)
	for _, want := range []string{"reclaim interval 0s", "max processing 0s", "max reclaims 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
}

// slow is a store that takes too long for more than 300 rows.
type slow struct{ left int }

func (s *slow) ReclaimLeases(_ context.Context, r outbox.ReclaimRequest) ([]outbox.Reclaimed, error) {
	if s.left == 0 {
		return nil, nil
	}
	n := min(r.Limit, s.left)
	if n > 300 {
		return nil, context.DeadlineExceeded
	}
	s.left -= n
	return slices.Repeat([]outbox.Reclaimed{{Owner: "b", Epoch: 1, Cause: outbox.CauseOlderEpoch, Rows: n / 4}}, outbox.LeasesAtOnce), nil
}

func (*slow) ReclaimRows(context.Context, outbox.ReclaimRequest) ([]outbox.Reclaimed, error) {
	return nil, nil
}

// A reclaim that takes longer than its deadline is tried again with fewer rows: a term does not
// wait for it for ever.
func TestReclaimThatIsTooSlowTakesFewerRows(t *testing.T) {
	t.Parallel()
	store := &slow{left: 5000}
	r, _, _ := newReclaimer(t, store)
	for tries := 1; ; tries++ {
		_, err := r.RunOnce(t.Context(), 2)
		if err == nil {
			break
		}
		if tries == 10 {
			t.Fatalf("try %d: %v", tries, err)
		}
	}
	if store.left != 0 {
		t.Errorf("%d events are left", store.left)
	}
}
