package chaos

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

// judged is what is known of one shard, or of a run without shards, and what was found.
type judged struct {
	shard string // its number; empty without shards
	history.Run
	*history.Verdict
}

// judge reads what was recorded and both stores, and keeps the evidence when
// something is wrong.
func (r *run) judge() {
	took := time.Since(r.began)
	r.screen.Line("Judging …")
	end := rig.Try(r.domain.end(r.Ctx, r.Place)).Must(r)
	parts := r.parts(end)
	result := r.measured(parts, took)
	result.WallClock, result.Surprises, result.Converged = len(r.clocks), len(r.unexpected), true
	result.Missing, result.Extra, result.Stale = end.Compared.Missing, end.Compared.Extra, end.Compared.Stale
	for n := range parts {
		parts[n].Verdict = history.Check(parts[n].Run)
		result.add(&parts[n])
	}
	r.result = result
	r.show(parts)
	if result.Err() == nil && r.opts.Evidence == "" {
		return
	}
	err := errors.Join(r.keepLogs(), r.keepSchedule(), r.keepFindings(parts))
	for _, j := range parts {
		err = errors.Join(err, r.keepRecord(j.shard, j.Log, j.Applied))
	}
	r.Must(err)
}

// parts reads the record of each shard, and gives each its part of the run.
func (r *run) parts(end *history.End) (parts []judged) {
	var logs []*history.Log
	for _, s := range r.shards {
		log := rig.Try(history.Read(r.Ctx, s.Pool, s.Outbox, s.Group)).Must(r)
		log.Finished = r.opts.Finished
		wrong := rig.Try(faults.WrongTimes(r.Ctx, s, r.opened, nil)).Must(r)
		logs, r.clocks = append(logs, log), append(r.clocks, wrong...)
	}
	applied := rig.Try(r.domain.judged(r.Ctx, r.Place, r.Recorder.Applied())).Must(r)
	all := history.Run{Log: logs[0], Acknowledged: r.domain.Acknowledged(), Applied: applied, Crashes: r.crashes(), End: end}
	if r.rebuilds != nil { // each index is judged by itself
		all.Alias = r.Index
		all.Index = rig.Try(r.InUse(r.Ctx)).Must(r)
	}
	if len(logs) == 1 {
		return []judged{{Run: all}}
	}
	home := rig.Try(r.homes(r.Ctx)).MustDo(r, "look up the shards of entities")
	return rig.Map(history.Deal(all, logs, home), func(part history.Run) judged { return judged{shard: r.shards[part.Shard].Shard, Run: part} })
}

func (r *Result) add(j *judged) {
	v := j.Verdict
	r.Bulk += len(j.Applied)
	r.Add(v)
	r.SentEarly += len(v.SentEarly)
	r.Kept += len(v.Kept)
	r.Regressions += len(v.Regressions)
	r.Resurrected += len(v.Resurrected)
	r.Misplaced += len(v.Misplaced)
	r.Converged = r.Converged && len(v.Diverged) == 0 && len(v.Unsettled) == 0
}

// measured is what is counted and timed, without a judgement.
func (r *run) measured(parts []judged, took time.Duration) *Result {
	out := &Result{
		ElasticNodes: r.opts.ElasticNodes, Patroni: r.opts.Patroni,
		Seed: r.opts.Seed, Seconds: math.Round(took.Seconds()*10) / 10,
		Domain: cmp.Or(r.opts.Domain, Wordloom), Produced: r.domain.Produced(), Unknown: r.domain.Unknown(),
		Finished: string(r.opts.Finished), Upgrade: r.opts.Upgrade, Named: r.opts.DatabaseURL != "", Unread: r.Recorder.Unread(),
	}
	if len(parts) > 1 {
		out.Shards = len(parts)
	}
	var logs []*history.Log
	for _, j := range parts {
		logs = append(logs, j.Log)
		pause, _ := j.Log.LongestPause(time.Time{}, time.Time{})
		out.PauseMS = max(out.PauseMS, pause.Milliseconds())
		out.Inexact = out.Inexact || !j.Log.Exact
		out.Terms += len(j.Log.Terms)
		out.OtherTerms += otherTerms(j.Log.Terms, r.starts)
		out.Leases += len(j.Log.Leases)
	}
	if b := r.rebuilds; b != nil {
		found := b.searcher.Found()
		out.Rebuilds = &Rebuilds{Done: b.done, Aborted: b.aborted, Killed: b.killed, Searches: found}
	}
	out.count(logs, r.injections)
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

// count fills in the table of faults, with the times of each shard whose leader a fault has met.
func (r *Result) count(logs []*history.Log, injections []*injection) {
	r.Injected, r.Skipped, r.Delayed = map[string]int{}, map[string]int{}, map[string]int{}
	r.TakeoverMS = map[string]verdict.Latency{}
	var done []*injection
	for _, i := range injections {
		if i.Skipped != "" {
			r.Skipped[i.Step.Kind]++
			if i.never && !slices.Contains(r.Impossible, i.Step.Kind) {
				r.Impossible = append(r.Impossible, i.Step.Kind)
			}
			continue
		}
		r.Injected[i.Step.Kind]++
		done = append(done, i)
	}
	r.Faults = len(done)
	times := map[string][]time.Duration{}
	for shard, log := range logs {
		r.Spontaneous += spontaneous(log, done)
		marks := rig.Map(done, func(i *injection) history.FaultMark {
			return history.FaultMark{Name: i.Step.Kind, At: i.At, Epoch: i.met[shard].Epoch, Until: i.Healed}
		})
		for n, t := range history.Takeovers(log, marks) {
			i := done[n]
			r.Delayed[i.Step.Kind] += t.Delayed
			if !i.struck(shard) {
				continue
			}
			if d, ok := i.timed(log, &t); ok {
				times[i.Step.Kind] = append(times[i.Step.Kind], d)
			}
		}
	}
	for k, all := range times {
		r.TakeoverMS[k] = verdict.Millis(all).Latency()
	}
}

// spontaneous counts the terms that began while everything was well. What was before the first fault
// is left out: the first term, and the hand-overs to instances that came.
func spontaneous(log *history.Log, done []*injection) (n int) {
	for _, t := range log.Terms {
		if len(done) == 0 || t.At.Before(done[0].At) {
			continue
		}
		if !slices.ContainsFunc(done, func(i *injection) bool { return !t.At.Before(i.At) && !t.At.After(i.Calm) }) {
			n++
		}
	}
	return n
}

// timed returns what the table says of a fault that has met the leader of a shard: see
// [faults.Measure].
func (i *injection) timed(log *history.Log, t *history.Takeover) (time.Duration, bool) {
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
func (r *run) show(parts []judged) {
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
	for _, j := range parts {
		for _, b := range j.Breaches() {
			for _, f := range b.Findings {
				line(j.said(b.Invariant), f)
			}
		}
		for _, f := range j.Unsettled {
			line(j.said("not written again after a dead letter"), f)
		}
	}
}

// said is a title, with the shard where there are several.
func (j *judged) said(title string) string {
	if j.shard == "" {
		return title
	}
	return title + ", shard " + j.shard
}

// keepFindings writes what is wrong, and the story of the entities that it is about.
func (r *run) keepFindings(parts []judged) error {
	return r.keep("findings.txt", func(w io.Writer) error {
		section(w, "instances that ended by themselves or badly", r.unexpected)
		section(w, "times of another clock", r.clocks)
		for n := range parts {
			parts[n].tell(w)
		}
		return nil
	})
}

// section writes lines below a title that counts them.
func section[T any](w io.Writer, title string, lines []T) {
	fmt.Fprintf(w, "%s: %d\n", title, len(lines))
	for _, line := range lines {
		fmt.Fprintf(w, "  %v\n", line)
	}
}

func (j *judged) tell(w io.Writer) {
	breaches := j.Breaches()
	if len(j.Unsettled) > 0 {
		breaches = append(breaches, history.Breach{Invariant: "convergence, after a dead letter", Findings: j.Unsettled})
	}
	for _, b := range breaches {
		section(w, j.said(b.Invariant), b.Findings)
	}
	section(w, j.said("dead letters, which are legal"), j.DeadLetters)
	told := map[outbox.Key]bool{}
	for _, b := range breaches {
		for _, f := range b.Findings {
			if f.Key == (outbox.Key{}) || told[f.Key] || len(told) == maxStories {
				continue
			}
			told[f.Key] = true
			fmt.Fprintf(w, "\n%s: %v\n%s", j.said(b.Invariant), f, history.Story(j.Log, j.Applied, f.Key))
		}
	}
}
