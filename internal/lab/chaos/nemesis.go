package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	calmPeriod = 100 * time.Millisecond
	// calmTimeout bounds what weft needs to be well again after a fault, with waits for retries
	// and the start of a process in it.
	calmTimeout = 90 * time.Second
	calmBacklog = 300 // events that are in flight or could be
)

// injection is one step of the schedule as it was carried out.
type injection struct {
	*faults.Injection
	Step     Step
	Instance string           // at which it was aimed
	met      []rig.Leadership // of each shard, as it began
	Healed   time.Time
	Calm     time.Time // everything was well again
	Skipped  string    // why it was not done
	never    bool      // in this run
}

// injectAll injects the faults of the schedule, one after the other, each into calm.
func (r *run) injectAll() {
	schedule := r.opts.schedule()
	if r.rebuilds != nil {
		schedule.pause = rebuildPause
	}
	began := time.Now()
	of := ""
	if r.opts.Faults > 0 {
		of = fmt.Sprintf(" of %d", r.opts.Faults)
	}
	r.screen.Enter("waiting for calm")
	r.calm()
	for r.opts.Faults == 0 || len(r.injections) < r.opts.Faults {
		if r.opts.Duration > 0 && time.Since(began) >= r.opts.Duration {
			return
		}
		i := &injection{Step: schedule.next()}
		r.injections = append(r.injections, i)
		r.screen.Enter("fault %d%s %s", i.Step.N, of, i.Step.Kind)
		r.Pause(i.Step.Pause)
		start := time.Now()
		r.Part(fmt.Sprintf("fault %v", i.Step), 0, func() { r.inject(i) })
		if i.Skipped != "" {
			r.screen.Line("%4d  %-28s skipped: %s", i.Step.N, i.Step.Kind, i.Skipped)
			continue
		}
		healed := time.Now()
		r.Part(fmt.Sprintf("after fault %v", i.Step), 0, r.calm)
		i.Calm = time.Now()
		r.screen.Line("%4d  %-28s %-2s epoch %-4d%s %6.1f s, calm after %.1f s%s", i.Step.N, i.Step.Kind, i.Instance, i.Epoch, i.ofShard(),
			healed.Sub(start).Seconds(), i.Calm.Sub(healed).Seconds(), i.Note)
		if r.lasting != nil && !r.lasting.Alive(r.Ctx) {
			r.Must(r.endLasting())
		}
	}
}

// inject aims and carries out one step. When it returns the fault is healed.
func (r *run) inject(i *injection) {
	target := r.target
	target.Place = r.shards[i.Step.Shard]
	target.Seed = r.opts.Seed + uint64(i.Step.N)
	m, l, err := r.LeadingMember(r.Ctx, target.Place)
	r.Must(err)
	i.met = rig.Try(r.shards.Leaders(r.Ctx)).Must(r)
	if i.Step.Standby {
		m = r.Standby(m) // there are two instances at least
	}
	i.Injection = faults.New(i.Step.Kind, &target, m, i.Step.Params)
	i.Instance, i.Leader, i.Epoch = m.Name, m.Name == l.Instance, l.Epoch
	i.At = rig.Try(r.Now(r.Ctx)).Must(r)
	if r.rebuilds != nil && (i.Step.Kind == faults.WriteBlock || i.Step.Kind == faults.AliasRemoved) {
		err = faults.Never("rebuilds replace the index") // it would name the old one, and break searches
	} else {
		err = r.carryOut(r.Ctx, i)
	}
	switch skip := err.(type) { //nolint:errorlint // one that was joined with an error is an error
	case faults.Skip:
		i.Skipped, err = string(skip), nil
	case faults.Never:
		i.Skipped, i.never, err = string(skip), true, nil
	}
	if i.Step.Kind == faults.SkewedClock {
		r.clocks = append(r.clocks, i.Findings...)
	} else {
		r.unexpected = append(r.unexpected, i.Findings...)
	}
	i.Healed = time.Now()
	r.Must(err)
}

// carryOut injects a fault, waits for its effect, and heals it.
func (r *run) carryOut(ctx context.Context, i *injection) error {
	if i.Lasting {
		if r.lasting != nil && r.lasting.Alive(ctx) {
			return faults.Skip("one is open")
		}
		r.lasting = i
		return i.Inject(ctx)
	}
	err := i.Inject(ctx)
	if err == nil && i.EndsTerm() {
		err = r.followed(i, func(p *rig.Place, epoch int64) error { return p.Succeeded(ctx, epoch) })
	}
	if err == nil {
		hold := i.Hold
		if i.Measure != faults.Restarted { // which counts from the stop
			hold = time.Until(i.At.Add(i.Hold))
		}
		err = rig.Sleep(ctx, hold)
	}
	if err == nil {
		err = i.Observe(ctx)
	}
	if failure := i.Heal(ctx); failure != nil {
		return errors.Join(err, failure)
	}
	if err == nil && i.Measure == faults.Restarted {
		err = r.followed(i, func(p *rig.Place, epoch int64) error { return p.Settles(ctx, epoch) })
	}
	return err
}

func (r *run) endLasting() error {
	i := r.lasting
	if i == nil {
		return nil
	}
	r.lasting = nil
	return i.Heal(r.Ctx)
}

// calm waits until everything is well: all instances are ready, each shard has a leader, none leads
// two more than another, they are close behind the writers, and each settles another event (one
// whose breaker is open is ready).
func (r *run) calm() {
	var leaders []rig.Leadership
	r.Must(rig.Await(r.Ctx, calmTimeout, calmPeriod, "calm", func(ctx context.Context) error {
		if err := r.Supervise(ctx); err != nil {
			return err
		}
		now, err := r.shards.Leaders(ctx)
		for _, l := range now {
			err = errors.Join(err, l.Rested())
		}
		if err == nil {
			err = r.evenlyLed(ctx)
		}
		if err == nil {
			err = r.AllReady(ctx)
		}
		if err != nil {
			return err
		}
		leaders = now
		return r.Abreast(ctx, calmBacklog)
	}))
	for n, s := range r.shards {
		r.Must(s.Settles(r.Ctx, leaders[n].Epoch))
	}
}

// watch shows where things are until ctx ends.
func (r *run) watch(ctx context.Context) {
	for rig.Sleep(ctx, time.Second) == nil {
		leads := "PostgreSQL is away"
		if leaders, err := r.shards.Leaders(ctx); err == nil {
			leads = whoLeads(leaders)
		}
		waiting, failed, _ := r.Unsettled(ctx) // 0 when nobody answers
		produced := r.domain.Produced()
		r.screen.Refresh(fmt.Sprintf("%6.0f s  %s  produced %d  done %d  lag %d  failed %d  %s",
			time.Since(r.began).Seconds(), r.screen.Step(), produced, max(0, produced-waiting-failed), waiting, failed, leads))
	}
}

// drainTimeout bounds the end: the longest wait for a retry is 30 s.
const drainTimeout = 3 * time.Minute

// settle brings the run to its end: everything is healed and drained, entities whose newest
// event failed get another one, and the instances stop in order.
func (r *run) settle() {
	r.Must(errors.Join(r.endLasting(), r.Heal()))
	start := time.Now()
	if r.rebuilds != nil {
		r.rebuilds.finish()
		r.unexpected = append(r.unexpected, r.rebuilds.failures...)
	}
	r.drained()
	var dead []outbox.Key
	for _, s := range r.shards {
		keys := rig.Try(deadEnds(r.Ctx, s)).MustDo(r, "look for dead ends")
		dead = append(dead, keys...)
	}
	r.Must(r.domain.Renew(r.Ctx, dead...))
	r.drained()
	r.screen.Line("Drained in %.1f s; %d entities whose newest event had failed were written again", time.Since(start).Seconds(), len(dead))
	if err := r.Stop(); err != nil { // what is under way comes into the record
		r.unexpected = append(r.unexpected, "at the end: "+err.Error())
	}
}

// drained waits until every event of every shard is done or failed.
func (r *run) drained() {
	for _, s := range r.shards {
		r.Must(s.Drained(r.Ctx, drainTimeout, r.Supervise))
	}
}

// deadEnds returns the entities whose newest event ended in failed.
func deadEnds(ctx context.Context, p *rig.Place) ([]outbox.Key, error) {
	ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	defer cancel()
	rows, _ := p.Pool.Query(ctx, `
select f.entity_type, f.entity_id
from `+p.Outbox+` f
left join (
  select entity_type, entity_id, max(event_version) as done from weftlab_history
  where source = $1 and new_status in ('done', 'archived', 'deleted') group by 1, 2) h using (entity_type, entity_id)
where f.status = 'failed'
group by 1, 2, h.done having h.done is null or h.done < max(f.event_version)`, p.Outbox)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[outbox.Key])
}

// Step is one fault of a schedule with everything that chance decides about it.
type Step struct {
	N       int           // from 1
	Kind    string        // name of the fault
	Shard   int           // whose leader it is about; 0 without shards
	Standby bool          // aimed at a standby instead of the leader
	Pause   time.Duration // of calm before it
	faults.Params
}

// String returns the step as one line of the schedule.
func (s Step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", s.N, s.Kind)
	if s.Standby {
		b.WriteString(" standby")
	}
	for _, f := range []struct {
		name string
		v    any
	}{
		{"pause", s.Pause}, {"hold", s.Hold}, {"latency", s.Latency}, {"jitter", s.Jitter}, {"every", s.Every}, {"bytes", s.Bytes}, {"variant", s.Variant},
	} {
		if !reflect.ValueOf(f.v).IsZero() {
			fmt.Fprintf(&b, " %s=%v", f.name, f.v)
		}
	}
	return b.String()
}

// schedule is an endless sequence of steps: shuffled decks of faults, so that every fault has
// its turn before any has too many. It is a function of seed and faults.
type schedule struct {
	dice  faults.Dice
	kinds []string // of a deck
	deck  []string
	n     int
	pause time.Duration // at most, before a fault
	// shards is how many there are to aim at; 0 or 1: no choice.
	shards int
}

const (
	longestPause = 1500 * time.Millisecond
	// rebuildPause is longer than a rebuild takes in calm: faults come in all its phases, and some
	// rebuilds end.
	rebuildPause = 12 * time.Second
)

// newSchedule draws from only, or from all faults by their share when it is empty: of those
// that need more than two servers, the ones of there.
func newSchedule(seed uint64, only []string, there ...faults.Where) *schedule {
	s := &schedule{dice: faults.Dice{Rand: rand.New(rand.NewPCG(seed, 0))}, kinds: only, pause: longestPause}
	if len(only) == 0 {
		for _, f := range faults.All() {
			if f.Where == faults.Anywhere || slices.Contains(there, f.Where) {
				s.kinds = append(s.kinds, slices.Repeat([]string{f.Name}, f.Share)...)
			}
		}
	}
	return s
}

func (s *schedule) next() Step {
	if len(s.deck) == 0 {
		s.deck = append(s.deck, s.kinds...)
		s.dice.Shuffle(len(s.deck), func(i, j int) { s.deck[i], s.deck[j] = s.deck[j], s.deck[i] })
	}
	s.n++
	step := Step{N: s.n, Kind: s.deck[0], Pause: s.dice.Between(300*time.Millisecond, s.pause)}
	s.deck = s.deck[1:]
	fault := faults.Named(step.Kind)
	if fault.Aimed {
		step.Standby = s.dice.IntN(5) == 0
	}
	if fault.Draw != nil {
		fault.Draw(&s.dice, &step.Params)
	}
	if s.shards > 1 {
		step.Shard = s.dice.IntN(s.shards)
	}
	return step
}

// contains reports whether the faults of a run may be of that name: within the first decks, if
// their number is limited.
func (s *schedule) contains(name string, limit int) bool {
	if limit == 0 {
		return slices.Contains(s.kinds, name)
	}
	for range min(limit, len(s.kinds)) {
		if s.next().Kind == name {
			return true
		}
	}
	return false
}

// skew is how far the wall clock of skewed instances is off in a run, for which one binary is
// built.
func skew(seed uint64) time.Duration {
	if seed%2 == 0 {
		return 5 * time.Minute
	}
	return -5 * time.Minute
}
