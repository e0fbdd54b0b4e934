package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

// judge reads what was recorded and both stores, and keeps the evidence when
// something is wrong.
func (r *run) judge(ctx context.Context) (*Result, error) {
	took := time.Since(r.began)
	r.screen.Line("Judging …")
	log, err := history.Read(ctx, r.Pool, r.Outbox, r.Place.Group)
	if err != nil {
		return nil, err
	}
	log.Finished = r.opts.Finished
	end, err := r.domain.end(ctx, r.Place)
	if err != nil {
		return nil, err
	}
	wrong, err := faults.WrongTimes(ctx, r.Place, r.opened, nil)
	if err != nil {
		return nil, err
	}
	r.clocks = append(r.clocks, wrong...)
	applied, err := r.domain.judged(ctx, r.Place, r.Recorder.Applied())
	if err != nil {
		return nil, err
	}
	known, err := r.known(ctx, history.Run{Log: log, Acknowledged: r.domain.Acknowledged(), Applied: applied, Crashes: r.crashes(), End: end})
	if err != nil {
		return nil, err
	}
	v := history.Check(known)
	result := r.measured(log, took)
	result.Bulk = len(known.Applied)
	result.Lost, result.OutOfOrder, result.TwoClaimers = len(v.Lost), len(v.OutOfOrder), len(v.TwoActive)
	result.Unleased, result.SentEarly, result.Twice, result.Kept = len(v.Unleased), len(v.SentEarly), len(v.Twice), len(v.Kept)
	result.Regressions, result.Resurrected = len(v.Regressions), len(v.Resurrected)
	result.WallClock, result.Surprises, result.Failed = len(r.clocks), len(r.unexpected), len(v.DeadLetters)
	result.Missing, result.Extra, result.Stale = end.Compared.Missing, end.Compared.Extra, end.Compared.Stale
	result.Converged = len(v.Diverged) == 0 && len(v.Unsettled) == 0
	r.show(v)
	if result.Err() != nil || r.opts.Evidence != "" {
		err = errors.Join(r.keepLogs(ctx), r.keepSchedule(), r.keepRecord(log, known.Applied), r.keepFindings(known, v))
	}
	return result, err
}

// measured is what is counted and timed, without a judgement.
func (r *run) measured(log *history.Log, took time.Duration) *Result {
	pause, _ := log.LongestPause()
	out := &Result{
		ElasticNodes: r.opts.ElasticNodes, Patroni: r.opts.Patroni, PauseMS: pause.Milliseconds(),
		Seed: r.opts.Seed, Seconds: math.Round(took.Seconds()*10) / 10,
		Domain: cmp.Or(r.opts.Domain, Wordloom), Produced: r.domain.Produced(), Unknown: r.domain.Unknown(), Terms: len(log.Terms),
		Finished: string(r.opts.Finished), Upgrade: r.opts.Upgrade, OtherTerms: otherTerms(log.Terms, r.starts), Leases: len(log.Leases),
	}
	if b := r.rebuilds; b != nil {
		found := b.searcher.Found()
		out.Rebuilds = &Rebuilds{Done: b.done, Aborted: b.aborted, Killed: b.killed, Searches: found}
	}
	out.count(log, r.injections)
	return out
}

// crashes are the times in which PostgreSQL lost what had not reached the disk.
func (r *run) crashes() (out []history.FaultMark) {
	for _, i := range r.injections {
		if i.Skipped == "" && i.Crash {
			out = append(out, history.FaultMark{Name: i.Step.Kind, At: i.At, Until: i.Accepts})
		}
	}
	return out
}

// count fills in the table of faults.
func (r *Result) count(log *history.Log, injections []*injection) {
	r.Injected, r.Skipped, r.Delayed = map[string]int{}, map[string]int{}, map[string]int{}
	r.TakeoverMS = map[string]verdict.Latency{}
	var done []*injection
	var marks []history.FaultMark
	for _, i := range injections {
		if i.Skipped != "" {
			r.Skipped[i.Step.Kind]++
			continue
		}
		r.Injected[i.Step.Kind]++
		done = append(done, i)
		marks = append(marks, history.FaultMark{Name: i.Step.Kind, At: i.At, Epoch: i.Epoch, Until: i.Healed})
	}
	r.Faults = len(done)
	for _, t := range log.Terms {
		if !slices.ContainsFunc(done, func(i *injection) bool { return !t.At.Before(i.At) && !t.At.After(i.Calm) }) {
			r.Spontaneous++
		}
	}
	r.Spontaneous = max(0, r.Spontaneous-1) // the first one was nobody's fault
	times := map[string][]time.Duration{}
	for n, t := range history.Takeovers(log, marks) {
		i := done[n]
		r.Delayed[i.Step.Kind] += t.Delayed
		if d, ok := i.timed(log, &t); ok {
			times[i.Step.Kind] = append(times[i.Step.Kind], d)
		}
	}
	for k, all := range times {
		r.TakeoverMS[k] = verdict.Millis(all).Latency()
	}
}

// timed returns what the table says of i: see [faults.Measure]. Nothing is timed of a fault
// that hit a standby.
func (i *injection) timed(log *history.Log, t *history.Takeover) (time.Duration, bool) {
	if !i.Leader {
		return 0, false
	}
	switch i.Measure {
	case faults.Takeover:
		return t.Settle(), t.Happened()
	case faults.Handover:
		return t.Gap(), t.Happened() && !t.Last.IsZero()
	case faults.Restarted:
		first, ok := log.FirstDoneAfter(i.Accepts)
		return first.At.Sub(i.Accepts), ok
	default:
		return 0, false
	}
}

const (
	maxShown   = 5  // findings of a kind that are printed
	maxStories = 20 // entities whose story is told in the evidence
)

// show prints the first findings of each kind; the evidence has all.
func (r *run) show(v *history.Verdict) {
	shown := map[string]int{}
	line := func(kind string, what any) {
		if shown[kind]++; shown[kind] <= maxShown {
			r.screen.Line("  %s: %v", kind, what)
		}
	}
	for _, s := range r.unexpected {
		line("an instance's end", s)
	}
	for _, s := range r.clocks {
		line("another clock", s)
	}
	for _, b := range v.Breaches() {
		for _, f := range b.Findings {
			line(b.Invariant, f)
		}
	}
	for _, f := range v.Unsettled {
		line("not written again after a dead letter", f)
	}
}

// keepFindings writes what is wrong, and the story of the entities that it is about.
func (r *run) keepFindings(known history.Run, v *history.Verdict) error {
	return r.keep("findings.txt", func(w io.Writer) error {
		told := map[outbox.Key]bool{}
		section := func(title string, findings []history.Finding) {
			fmt.Fprintf(w, "%s: %d\n", title, len(findings))
			for _, f := range findings {
				fmt.Fprintf(w, "  %v\n", f)
			}
		}
		for _, title := range []struct {
			name  string
			lines []string
		}{{"instances that ended by themselves or badly", r.unexpected}, {"times of another clock", r.clocks}} {
			fmt.Fprintf(w, "%s: %d\n", title.name, len(title.lines))
			for _, line := range title.lines {
				fmt.Fprintf(w, "  %s\n", line)
			}
		}
		breaches := v.Breaches()
		if len(v.Unsettled) > 0 {
			breaches = append(breaches, history.Breach{Invariant: "convergence, after a dead letter", Findings: v.Unsettled})
		}
		for _, b := range breaches {
			section(b.Invariant, b.Findings)
		}
		section("dead letters, which are legal", v.DeadLetters)
		for _, b := range breaches {
			for _, f := range b.Findings {
				if f.Key == (outbox.Key{}) || told[f.Key] || len(told) == maxStories {
					continue
				}
				told[f.Key] = true
				fmt.Fprintf(w, "\n%s: %v\n%s", b.Invariant, f, history.Story(known.Log, known.Applied, f.Key))
			}
		}
		return nil
	})
}
