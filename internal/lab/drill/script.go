package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
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
	return faults.New(fault, &faults.Target{Group: r.Group}, m, faults.Params{Variant: 1})
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
		if err == nil && len(i.Findings) > 0 {
			err = errors.New(strings.Join(i.Findings, ", "))
		}
		return err
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
		if err == nil && left > 0 {
			err = fmt.Errorf("%d left", left)
		}
		return err
	})
}

// param is a parameter as text.
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

// number is a parameter that is a number.
func (r *run) number(name string) float64 {
	v, err := strconv.ParseFloat(r.param(name), 64)
	if err != nil {
		r.Must(fmt.Errorf("parameter %s: %q is no number", name, r.param(name)))
	}
	return v
}

// count is a parameter that is a whole number within limits.
func (r *run) count(name string, low, high int) int {
	v, err := strconv.Atoi(r.param(name))
	if err != nil || v < low || v > high {
		r.Must(fmt.Errorf("parameter %s: %q is no number from %d to %d", name, r.param(name), low, high))
	}
	return v
}
