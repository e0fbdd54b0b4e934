package schedule_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// TestTranscripts plays what has happened to a scheduler and prints what it decides. In
// testdata, a3 is the event of version 3 of the entity a, a3' a second one of the same
// version, and a3..a9 are seven; each command is an answer, or time that goes by. After it stands every decision
// until there is nothing to do; that no rows are put off is answered by itself. `go test -run Transcripts ./consumer/schedule -rewrite`
// writes the decisions anew.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		t.Parallel()
		var p *play
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			switch d.Cmd {
			case "new":
				p = newPlay(d)
			case "apart": // how many entities are; blocked as well
				return fmt.Sprintln(p.s.Apart())
			case "blocked":
				return fmt.Sprintln(p.s.Blocked())
			default:
				p.answer(t, d)
			}
			return p.decisions()
		})
	})
}

// play is a scheduler, and the names of what it has asked for.
type play struct {
	s       *schedule.Scheduler
	start   time.Time
	now     time.Time
	phase   schedule.Phase
	serial  int
	batches map[string]*schedule.Batch
	groups  map[string][]outbox.Group
	parts   map[string]*schedule.Part
	events  map[outbox.ID]string
}

func newPlay(d *datadriven.TestData) *play {
	p := &play{
		start: time.Unix(1_000_000, 0), phase: schedule.Running, batches: map[string]*schedule.Batch{},
		groups: map[string][]outbox.Group{}, parts: map[string]*schedule.Part{}, events: map[outbox.ID]string{},
	}
	p.now = p.start
	number := func(name string, otherwise int) int {
		if d.HasArg(name) {
			n, err := strconv.Atoi(arg(d, name))
			if err != nil {
				panic(err)
			}
			return n
		}
		return otherwise
	}
	p.s = schedule.New(schedule.Config{
		BatchSize: number("batch", 4), Concurrency: number("concurrency", 2), Page: number("page", 100), Poll: 100 * time.Millisecond,
		BreakerThreshold: number("threshold", 3),
		Retry:            schedule.RetryPolicy{MaxAttempts: number("attempts", 5), BaseBackoff: time.Second, MaxBackoff: time.Minute},
		Jitter:           func(d time.Duration) time.Duration { return d },
		Strict:           d.HasArg("strict"),
		NewID: func() uuid.UUID {
			p.serial++
			return uuid.UUID{15: byte(p.serial)}
		},
	})
	return p
}

func arg(d *datadriven.TestData, name string) string { return strings.Join(args(d, name), " ") }

func args(d *datadriven.TestData, name string) []string {
	for _, a := range d.CmdArgs {
		if a.Key == name {
			return a.Vals
		}
	}
	return nil
}

// row reads a3 or a3'.
func (p *play) row(name string) outbox.Row {
	letter, digits := name[:1], strings.TrimRight(name[1:], "'")
	version, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("event %q: want a letter and a version", name))
	}
	r := outbox.Row{
		ID: outbox.Number(version*1000 + int64(letter[0])*2 + int64(len(name)-1-len(digits))), Version: version,
		Key: outbox.Key{Type: "block", ID: outbox.Text(letter)},
	}
	p.events[r.ID] = name
	return r
}

func (p *play) rows(names []string) (out []outbox.Row) {
	for _, n := range names {
		first, last, several := strings.Cut(n, "..")
		out = append(out, p.row(first))
		for r := out[len(out)-1]; several && p.events[r.ID] != last; {
			r = p.row(fmt.Sprintf("%s%d", n[:1], r.Version+1))
			out = append(out, r)
		}
	}
	return out
}

// answer hands one answer to the scheduler.
func (p *play) answer(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	var err error
	if d.HasArg("fault") {
		err = errors.New("no answer")
		switch arg(d, "fault") {
		case "slow":
			err = context.DeadlineExceeded
		case "refused":
			err = errRefused
		}
	}
	name := ""
	if len(d.CmdArgs) > 0 {
		name = d.CmdArgs[0].Key
	}
	n, _ := strconv.Atoi(name)
	switch d.Cmd {
	case "wait":
		dur, derr := time.ParseDuration(name)
		if derr != nil {
			t.Fatal(derr)
		}
		p.now = p.now.Add(dur)
	case "listed":
		p.s.Listed(p.now, outbox.ListRequest{}, p.list(d), err)
	case "looked":
		p.s.Listed(p.now, outbox.ListRequest{Entity: &outbox.Key{}}, p.list(d), err)
	case "looked-back":
		p.s.Listed(p.now, outbox.ListRequest{Back: true}, p.list(d), err)
	case "leased":
		p.s.Leased(p.now, p.batches[name], p.lease(t, d, name), err)
	case "sent":
		p.sent(t, d, p.parts[name])
	case "settled":
		got := outbox.Settled{Guessed: d.HasArg("guessed")}
		for _, e := range args(d, "left") {
			got.Left = append(got.Left, outbox.Left{Key: outbox.Key{Type: "block", ID: outbox.Text(e)}})
		}
		got.Slow, _ = strconv.Atoi(arg(d, "slow"))
		p.s.Settled(p.now, p.batches[name], got)
	case "probed":
		p.s.Probed(p.now, err)
	case "woken":
		p.s.Woken(p.now, n, err)
	case "put-off":
		p.s.PutOff(p.now, n, err)
	case "named":
		p.s.PutOffNamed(p.now, p.keys(d), nil, outbox.ID{}, err)
	case "quarantine":
		p.s.Quarantine(p.now, p.keys(d))
	case "stop":
		p.s.Stop()
	case "foreign", "pause":
		p.s.Hold(name == "yes")
	case "list-only":
		p.s.ListOnly()
	case "throttle":
		p.s.Throttle(p.now, float64(n))
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
}

// keys returns the entities that a command names.
func (*play) keys(d *datadriven.TestData) (keys []outbox.Key) {
	for _, a := range d.CmdArgs {
		keys = append(keys, outbox.Key{Type: "block", ID: outbox.Text(a.Key)})
	}
	return keys
}

func (p *play) list(d *datadriven.TestData) *outbox.List {
	l := &outbox.List{Ready: p.rows(args(d, "ready")), Due: p.rows(args(d, "due")), Suspects: map[outbox.ID]bool{}}
	for _, r := range p.rows(args(d, "suspects")) {
		l.Suspects[r.ID] = true
	}
	if d.HasArg("look") {
		l.Look, _ = time.ParseDuration(arg(d, "look"))
	}
	l.Took = l.Look
	if d.HasArg("took") {
		l.Took, _ = time.ParseDuration(arg(d, "took"))
	}
	return l
}

// lease leases all that was asked for, but what is gone and what is refused: refused=(a:1:5s)
// says that version 1 of a is in the way for 5 s, a:1:ready that it is ready.
func (p *play) lease(t *testing.T, d *datadriven.TestData, name string) *outbox.Lease {
	t.Helper()
	groups := p.groups[name]
	l := &outbox.Lease{Events: make([][]outbox.Event, len(groups)), Obstacles: make([]*outbox.Obstacle, len(groups))}
	gone := map[string]bool{}
	for _, e := range args(d, "gone") {
		gone[e] = true
	}
	attempts := map[string]int{}
	for _, a := range args(d, "attempts") {
		e, n, _ := strings.Cut(a, ":")
		attempts[e], _ = strconv.Atoi(n)
	}
	refused := map[string]*outbox.Obstacle{}
	for _, a := range args(d, "refused") {
		f := strings.Split(a, ":")
		r := p.row(f[0] + f[1])
		o := &outbox.Obstacle{Position: outbox.Position{Version: r.Version, ID: r.ID}, Ready: f[2] == "ready", Foreign: f[2] == "foreign"}
		if !o.Ready && !o.Foreign {
			var err error
			if o.Wait, err = time.ParseDuration(f[2]); err != nil {
				t.Fatal(err)
			}
		}
		refused[f[0]] = o
	}
	for i, g := range groups {
		if l.Obstacles[i] = refused[g.Key.ID.String()]; l.Obstacles[i] != nil {
			continue
		}
		for _, r := range g.Rows {
			if e := p.events[r.ID]; !gone[e] {
				l.Events[i] = append(l.Events[i], outbox.Event{Row: r, Op: outbox.Upsert, Attempts: attempts[e]})
			}
		}
	}
	return l
}

// sent answers a part: everything is done but what retry and failed name, or meets a fault:
// shared, busy, own (of one of its events), rest (asks for five seconds), or partly (of which the
// events that retry names have met a shared fault). took=3s says how long the request took.
func (p *play) sent(t *testing.T, d *datadriven.TestData, part *schedule.Part) {
	t.Helper()
	p.now = p.now.Add(time.Millisecond)
	verdicts := map[string]outbox.Outcome{}
	reason := outbox.Reason(cmp.Or(arg(d, "reason"), string(outbox.ReasonES5xx)))
	for _, e := range args(d, "retry") {
		verdicts[e] = outbox.Reject(reason, "later")
	}
	for _, e := range args(d, "failed") {
		verdicts[e] = outbox.Reject(outbox.ReasonES4xx, "refused")
	}
	var outcomes []outbox.Outcome
	for _, e := range part.Events() {
		o, ok := verdicts[p.events[e.ID]]
		if !ok {
			o = outbox.OK()
		}
		outcomes = append(outcomes, o)
	}
	var f *outbox.Fault
	switch kind := arg(d, "fault"); kind {
	case "":
	case "partly":
		f = &outbox.Fault{Reason: reason, Shared: true, Err: errAway}
	case "shared", "rest":
		outcomes, f = nil, &outbox.Fault{Reason: outbox.ReasonESConnect, Shared: true, Err: errAway}
		if kind == "rest" {
			f.RetryAfter = 5 * time.Second
		}
	case "busy":
		outcomes, f = nil, &outbox.Fault{Reason: outbox.ReasonES429, Shared: true, Err: errAway}
	case "own":
		outcomes, f = nil, &outbox.Fault{Reason: outbox.ReasonUnknown, Err: errAway}
	default:
		t.Fatalf("fault %q", kind)
	}
	took, _ := time.ParseDuration(cmp.Or(arg(d, "took"), "1ms"))
	p.s.Sent(p.now, part, outcomes, f, took)
}

// decisions prints what the scheduler wants to be done until it wants nothing.
func (p *play) decisions() string {
	var b strings.Builder
	for {
		a, until, ok := p.s.Next(p.now)
		if st := p.s.State(); st.Phase != p.phase {
			p.phase = st.Phase
			fmt.Fprintf(&b, "phase %s %s\n", st.Phase, st.Reason)
		}
		if !ok {
			if wait := until.Sub(p.now); wait < time.Hour {
				fmt.Fprintf(&b, "until %v\n", wait)
			} else {
				b.WriteString("until an answer\n")
			}
			return strings.ReplaceAll(b.String(), " \n", "\n")
		}
		if a.Kind == schedule.DoNamePutOff && p.now.Equal(p.start) {
			p.s.PutOffNamed(p.now, nil, nil, outbox.ID{}, nil)
			continue
		}
		b.WriteString(p.decision(&a) + "\n")
	}
}

func (p *play) decision(a *schedule.Action) string {
	switch a.Kind {
	case schedule.DoList:
		switch {
		case a.List.Entity != nil:
			return fmt.Sprintf("list %d rows of %s", a.List.Ready, a.List.Entity.ID)
		case a.List.Back:
			return fmt.Sprintf("look back at %d ready", a.List.Ready)
		}
		out := fmt.Sprintf("list %d ready, %d due", a.List.Ready, a.List.Due)
		if a.List.From != nil {
			out += " from " + cmp.Or(p.events[a.List.From.ID], "the end")
		}
		if a.List.Newest {
			out += ", the newest"
		}
		return out
	case schedule.DoLease:
		name := fmt.Sprintf("b%d", a.Batch.ID[15])
		p.batches[name], p.groups[name] = a.Batch, a.Groups
		return "lease " + name + p.names(a.Groups)
	case schedule.DoSend:
		name := fmt.Sprintf("p%d", len(p.parts)+1)
		p.parts[name] = a.Part
		out := "send " + name
		for _, e := range a.Part.Events() {
			out += " " + p.events[e.ID]
		}
		if a.Part.Limit > 0 {
			out += fmt.Sprintf(" within %v", a.Part.Limit)
		}
		return out
	case schedule.DoSettle:
		name := fmt.Sprintf("b%d", a.Batch.ID[15])
		if len(a.Batch.Settlements) == 0 {
			return "release " + name
		}
		var parts []string
		for _, st := range a.Batch.Settlements {
			out := p.events[st.Event.ID] + " " + st.Verdict.String()
			if st.Verdict != outbox.Done && st.Verdict != outbox.Superseded {
				out += " " + string(st.Reason)
			}
			if st.Delay > 0 {
				out += fmt.Sprintf(" for %v", st.Delay)
			}
			parts = append(parts, out)
		}
		return "settle " + name + ": " + strings.Join(parts, ", ")
	case schedule.DoProbe:
		return "probe"
	case schedule.DoWake:
		return fmt.Sprintf("wake %d rows", a.Limit)
	case schedule.DoPutOff:
		return fmt.Sprintf("put off %d rows of %s behind %s", a.Limit, a.Key.ID, p.events[a.Behind.ID])
	case schedule.DoNamePutOff:
		return fmt.Sprintf("name entities of %d ids that are put off", a.Limit)
	default:
		return fmt.Sprintf("unknown action %d", a.Kind)
	}
}

// names prints groups as a1+a2; a question mark says that the lease is to look the entity up.
func (p *play) names(groups []outbox.Group) (out string) {
	for _, g := range groups {
		var rows []string
		for _, r := range g.Rows {
			rows = append(rows, p.events[r.ID])
		}
		if n := len(rows); n > 5 {
			rows = []string{rows[0] + ".." + rows[n-1]}
		}
		out += " " + strings.Join(rows, "+")
		if g.Check {
			out += "?"
		}
	}
	return out
}
