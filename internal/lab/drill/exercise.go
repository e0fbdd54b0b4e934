package drill

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
)

// trouble is a fault that an exercise may inject.
type trouble struct {
	area   string
	drill  string // the one that shows the same, and whose runbooks are the right diagnosis
	inject func(r *run, leader *rig.Member)
}

const anyArea = "any"

func troubles() []trouble {
	of := func(what, fault string) func(*run, *rig.Member) {
		return func(r *run, leader *rig.Member) { r.injectFault(what, fault, leader) }
	}
	return []trouble{
		{"elasticsearch", "es_down_connect", of("Elasticsearch refuses connections", "elastic-down")},
		{"elasticsearch", "es_429_inject", func(r *run, leader *rig.Member) {
			r.refuse(leader, "429s by a proxy: ", proxy.Refusal{Status: 429, EveryN: 2})
		}},
		{"leader", "leader_sigkill", of("SIGKILL of the leader", faults.SIGKILL)},
		{"leader", "leader_sigstop", of("SIGSTOP of the leader", faults.SIGSTOP)},
		{"leader", "lock_session_killed", of("pg_terminate_backend of the leader's lock session", faults.TerminateLock)},
		{"queue", "db_claim_contention", func(r *run, _ *rig.Member) { r.lockLeases() }},
	}
}

// ExerciseNames are what an exercise may be about.
func ExerciseNames() []string {
	names := []string{anyArea}
	for _, t := range troubles() {
		if !slices.Contains(names, t.area) {
			names = append(names, t.area)
		}
	}
	return names
}

// ExerciseOptions of [Exercise].
type ExerciseOptions struct {
	Options
	In     io.Reader     // what the person types
	Within time.Duration // at most until the fault comes
	Seed   uint64        // of the fault and the moment
}

// exerciseBound is how long a person may take in all.
const exerciseBound = time.Hour

// Exercise injects a fault into a pair under load without saying which, waits until the person
// names its runbook and has it fixed, and keeps how long that took.
func Exercise(ctx context.Context, opts ExerciseOptions, name string) error {
	candidates := slices.DeleteFunc(troubles(), func(t trouble) bool { return name != anyArea && t.area != name })
	if len(candidates) == 0 {
		return fmt.Errorf("exercise: there is none about %q: want one of %s", name, strings.Join(ExerciseNames(), ", "))
	}
	random := rand.New(rand.NewPCG(opts.Seed, 1))
	x := &exercise{
		name: name, trouble: candidates[random.IntN(len(candidates))], out: opts.Out,
		wait: time.Duration(random.Int64N(int64(opts.Within) + 1)),
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x.answers = answersOf(ctx, opts.In)
	opts.Options.Out = io.Discard // it would say which fault
	fmt.Fprintln(x.out, "Starting the servers and a pair of instances. This takes up to a minute.")
	return runAll(ctx, opts.Options, nil, []Scenario{{
		Name: "exercise", About: "a person finds out what is wrong", bound: exerciseBound,
		instances: pair(append(missed(), "OUTBOX_BASE_BACKOFF_SECONDS=0.2", "OUTBOX_MAX_BACKOFF_SECONDS=2")...),
		run:       x.run,
	}})
}

// answersOf reads lines until ctx is done. It does not wait for the last one: nothing ends a read
// of a terminal.
func answersOf(ctx context.Context, in io.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			select {
			case lines <- strings.TrimSpace(s.Text()):
			case <-ctx.Done():
				return
			}
		}
	}()
	return lines
}

// exercise is one with a person.
type exercise struct {
	name string
	trouble
	out     io.Writer
	wait    time.Duration
	answers <-chan string
	done    verdict.Exercised
}

func (x *exercise) run(r *run) {
	r.underLoad(20, func() {
		x.introduce(r)
		r.Pause(x.wait)
		l := rig.Try(r.Leader(r.Ctx)).Must(r)
		leader := r.Member(l.Instance)
		began := time.Now()
		x.inject(r, leader)
		x.done = verdict.Exercised{Exercise: x.name, Fault: x.drill, Runbooks: Runbooks(x.drill)}
		if x.diagnose(r) {
			found := time.Since(began).Seconds()
			x.done.Detection = &found
		}
		repairing := time.Now()
		x.fix(r)
		if !x.done.GaveUp {
			took := time.Since(repairing).Seconds()
			x.done.Repair = &took
		}
	})
	r.Must(r.dir.Write(verdict.ExerciseFile, x.done))
	x.conclude(r)
}

func (x *exercise) introduce(r *run) {
	fmt.Fprintf(x.out, "\nA pair of instances carries 20 events a second. Look at it as you would on call:\n\n  export DATABASE_URL='%s' WEFT_GROUP=%s\n  weft status; weft history; weft doctor; psql \"$DATABASE_URL\"\n  logs: %s\n",
		r.DatabaseURL, r.recipe.Group, r.dir.File(verdict.LogDir))
	for _, m := range r.Members() {
		fmt.Fprintf(x.out, "  %s: %s, %s\n", m.Name, m.Instance().URL("/health/ready"), m.Instance().URL("/metrics"))
	}
	fmt.Fprintf(x.out, "\nSomething will go wrong within %v. Find out what, and type the name of the runbook that you would open,\nas in docs/runbooks/README.md, such as lag-growing. `give up` ends the search.\n\n", x.wait.Round(time.Second)+30*time.Second)
}

// ask waits for the right answer, and reports whether it came. The end of the input is to give up.
func (x *exercise) ask(r *run, right func(answer string) bool) bool {
	for {
		fmt.Fprint(x.out, "> ")
		select {
		case answer, ok := <-x.answers:
			if !ok || answer == "give up" {
				x.done.GaveUp = true
				return false
			}
			if right(answer) {
				return true
			}
		case <-r.Ctx.Done():
			r.Must(context.Cause(r.Ctx))
		}
	}
}

// diagnose waits for the right runbook, and reports whether it was named.
func (x *exercise) diagnose(r *run) bool {
	name := func(page string) string { return strings.TrimSuffix(path.Base(page), ".md") }
	return x.ask(r, func(answer string) bool {
		if answer == "" {
			return false
		}
		x.done.Tries++
		right := slices.ContainsFunc(x.done.Runbooks, func(page string) bool { return name(page) == name(answer) })
		if !right {
			fmt.Fprintln(x.out, "That is not it. What do the log and `weft status` say?")
		}
		return right
	})
}

// fix undoes the fault when the person says so, and waits until an event goes through.
func (x *exercise) fix(r *run) {
	if !x.done.GaveUp {
		fmt.Fprintln(x.out, "Right. Read its actions; then type `fix`, which does what somebody with access to the servers would do.")
		x.ask(r, func(answer string) bool { return answer == "fix" })
	}
	r.heal()
	r.settled(upserts(1, "after the repair")...)
}

// conclude says what it was, and shows the runbook.
func (x *exercise) conclude(r *run) {
	fmt.Fprintf(x.out, "\nIt was: %s.\n", strings.Join(r.recipe.Faults, ", "))
	for what, took := range map[string]*float64{"Found": x.done.Detection, "Repaired, from there,": x.done.Repair} {
		if took != nil {
			fmt.Fprintf(x.out, "%s after %.1f seconds.\n", what, *took)
		}
	}
	fmt.Fprintf(x.out, "Answers: %d. See it again: weftlab run %s. Over time: weftlab history exercise.\n", x.done.Tries, x.drill)
	for _, page := range x.done.Runbooks {
		text, err := os.ReadFile(page)
		if errors.Is(err, os.ErrNotExist) {
			fmt.Fprintf(x.out, "\nThe runbook is %s.\n", page)
			continue
		}
		r.Must(err)
		fmt.Fprintf(x.out, "\n--- %s\n\n%s", page, text)
	}
}
