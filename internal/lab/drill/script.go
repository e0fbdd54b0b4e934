package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

// inject carries out a fault, unless the run is one without, and reports whether it did.
// back, if there is one, undoes the fault: when the script calls heal, or after it.
func (r *run) inject(what string, do, back func(context.Context) error) bool {
	if r.without {
		r.step("left out: %s", what)
		return false
	}
	r.Must(r.corner.site.guard(r.Ctx))
	if back != nil {
		r.undone = append(r.undone, undo{what, back})
	}
	r.mark(verdict.Fault, "%s", what)
	r.mu.Lock()
	r.recipe.Faults = append(r.recipe.Faults, what)
	r.mu.Unlock()
	r.Must(r.keepRecipe())
	r.MustDo(what, do(r.Ctx))
	return true
}

// injection is that of a fault of the catalogue, with a bulk request that arrives late where
// the fault has such a form.
func (r *run) injection(fault string, m *rig.Member) *faults.Injection {
	return faults.New(fault, &faults.Target{Group: r.Group, Place: r.Place}, m, faults.Params{Variant: 1})
}

// injectFault injects a fault of the catalogue into a member, of which it takes the last
// metrics before. Nobody starts again what the fault has ended.
func (r *run) injectFault(what, fault string, m *rig.Member) bool {
	i := r.injection(fault, m)
	var back func(context.Context) error
	if i.Fault.Heal != nil && fault != faults.SIGKILL && fault != faults.SIGTERM {
		back = i.Heal
	}
	return r.inject(what, func(ctx context.Context) error {
		r.scrape(ctx, m)
		err := i.Inject(ctx)
		return rig.Want(err, len(i.Findings) == 0, "%s", strings.Join(i.Findings, ", "))
	}, back)
}

// heal undoes all faults, the last one first.
func (r *run) heal() { r.Must(r.undoFaults(r.Ctx)) }

func (r *run) undoFaults(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tidyBound)
	defer cancel()
	var errs []error
	for _, u := range slices.Backward(r.undone) {
		if err := u.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", u.what, err))
		}
		r.mark(verdict.Heal, "over: %s", u.what)
	}
	r.undone = nil
	return errors.Join(errs...)
}

// await waits for a condition that the script needs to go on.
func (r *run) await(what string, well func(context.Context) error) {
	r.Must(rig.Await(r.Ctx, awaitBound, pollPeriod, what, func(ctx context.Context) error {
		limited, cancel := context.WithTimeout(ctx, queryBound)
		defer cancel()
		return well(limited)
	}))
}

// awaitNone waits until a query counts nothing.
func (r *run) awaitNone(what, query string, args ...any) {
	r.await(what, func(ctx context.Context) error {
		var left int
		err := r.Pool.QueryRow(ctx, query, args...).Scan(&left)
		return rig.Want(err, left == 0, "%d left", left)
	})
}

func (r *run) param(name string) string {
	if v, ok := r.set[name]; ok {
		return v
	}
	for _, p := range r.scenario.Params {
		if p.Name == name {
			return p.Default
		}
	}
	return ""
}

// count is a parameter that is a whole number within limits.
func (r *run) count(name string, low, high int) int {
	v, err := strconv.Atoi(r.param(name))
	r.Expect(err == nil && v >= low && v <= high, "parameter %s: %q is no number from %d to %d", name, r.param(name), low, high)
	return v
}

const scrapePeriod = 250 * time.Millisecond

// start starts an instance, waits until it is ready and takes its first metrics.
func (r *run) start(name string, env ...string) *rig.Member {
	if !r.scenario.proxied {
		env = append([]string{"DATABASE_URL=" + r.DatabaseURL}, env...)
	}
	m := rig.Try(r.Launch(r.Ctx, name, env...)).Must(r)
	r.mu.Lock()
	r.recipe.Settings[name] = verdict.Settings(append(append([]string(nil), r.Fleet.Env...), m.Env...))
	r.mu.Unlock()
	r.Must(m.Instance().Ready(r.Ctx))
	r.Must(r.measure(r.Ctx, m)) // what grows is told by it
	r.step("instance %s is ready", name)
	return m
}

// scrape takes the metrics of an instance. When it does not answer, its last metrics stay.
func (r *run) scrape(ctx context.Context, m *rig.Member) { _ = r.measure(ctx, m) }

// measure is scrape where an instance has to answer.
func (r *run) measure(ctx context.Context, m *rig.Member) error {
	families, err := verdict.Scrape(ctx, m.Instance())
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.before[m.Name] == nil {
		r.before[m.Name], r.last[m.Name] = families, map[string]float64{}
	}
	r.after[m.Name] = families
	if changed := verdict.Changed(r.last[m.Name], families.Samples()); len(changed) > 0 {
		r.changes = append(r.changes, verdict.Change{At: time.Now().UTC(), Instance: m.Name, Values: changed})
	}
	return nil
}

// now returns the sum of a metric of all instances as of the last scrape.
func (r *run) now(name string, labels ...string) (sum float64) {
	for _, m := range r.Members() {
		sum += r.nowOf(m, name, labels...)
	}
	return sum
}

// nowOf returns the sum of a metric of one instance as of the last scrape.
func (r *run) nowOf(m *rig.Member, name string, labels ...string) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.after[m.Name].Samples().Sum(name, labels...)
}

// awaitMetric waits until the sum of a metric of all instances is at least so much.
func (r *run) awaitMetric(least float64, name string, labels ...string) {
	r.await(fmt.Sprintf("%s%v of %g", name, labels, least), func(context.Context) error {
		got := r.now(name, labels...)
		return rig.Want(nil, got >= least, "it is %g", got)
	})
}

// watch takes the metrics of all instances all the time, and ends the run when an instance
// ends that nobody has asked to.
func (r *run) watch(ctx context.Context) (stop func()) {
	return rig.During(ctx, func(ctx context.Context) {
		for rig.Sleep(ctx, scrapePeriod) == nil {
			if err := r.Fleet.Alive(ctx); err != nil {
				r.cancel(err)
				return
			}
			for _, m := range r.Members() {
				if i := m.Instance(); i != nil && !i.HasEnded() {
					r.scrape(ctx, m)
				}
			}
			r.screen.Refresh(fmt.Sprintf("%6.1f s  lag %.0f  done %.0f  failed %.0f  retried %.0f", time.Since(r.recipe.Started).Seconds(),
				r.now("outbox_lag_events"), r.now("outbox_processed_total"), r.now("outbox_failed_total"), r.now("outbox_retry_scheduled_total")))
		}
	})
}

func (r *run) awaitLeader(m *rig.Member) {
	r.await("term of "+m.Name, func(ctx context.Context) error {
		l, err := r.Leader(ctx)
		return rig.Want(err, l.Instance == m.Name && !l.Released, "%v", l)
	})
}

// terminate ends an instance with SIGTERM, which must end in exit status 0.
func (r *run) terminate(m *rig.Member) {
	r.scrape(r.Ctx, m)
	r.Must(m.Instance().Terminate(r.Ctx))
	r.step("instance %s has ended with exit status 0", m.Name)
}

type readiness struct {
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"`
}

// awaitReadiness waits for an answer of that status and keeps it as a probe.
func (r *run) awaitReadiness(m *rig.Member, status int, probe string) {
	var last readiness
	r.await(fmt.Sprintf("readiness %d of %s", status, m.Name), func(ctx context.Context) error {
		code, body, err := m.Instance().Ask(ctx, "/health/ready")
		last = readiness{code, body}
		switch {
		case err != nil:
			return err
		case !json.Valid(body):
			return fmt.Errorf("readiness: %d: no JSON: %.200q", code, body)
		case code != status:
			return fmt.Errorf("it is %d: %s", code, body)
		}
		return nil
	})
	r.probe(probe, last)
}

// refuse makes the member's proxy refuse documents until the faults are undone.
func (r *run) refuse(m *rig.Member, what string, refusal proxy.Refusal) {
	r.inject(what+refusal.String(), func(context.Context) error { m.Tap.Refuse(refusal); return nil },
		func(context.Context) error { m.Tap.Clear(); return nil })
}
