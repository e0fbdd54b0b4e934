package daemon

import (
	"cmp"
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	measureEvery        = 5 * time.Second
	measureEveryStandby = 15 * time.Second // so that lag does not vanish when nobody leads

	// glanceLimit is how many rows of a kind each reading counts.
	glanceLimit = 10_000
	// measureShare bounds the cost: readings that took t are repeated no sooner than
	// measureShare*t later, and so is the count of a longer backlog: 1 % for both. A single slow
	// reading may have waited for a busy machine, and is none.
	measureShare = 200
	// The pauses are bounded, because a slow reading may have waited for the network.
	measureMax = 5 * time.Minute
	countMax   = 15 * time.Minute
)

// tally is the last count of one table.
type tally struct {
	projector     *projector
	counted       *outbox.Stats // by the last full count; nil before the first
	at            time.Time     // of that count
	due           time.Time     // of the next one
	oldest        time.Duration // at the last reading
	unquarantined time.Duration // without entities in quarantine
	read          time.Time     // of it; zero before the first
}

// measure reads the tables until ctx ends.
func (d *daemon) measure(ctx context.Context) error {
	tallies := make([]tally, len(d.projectors))
	for i := range tallies {
		tallies[i].projector = &d.projectors[i]
	}
	failures, faulty := 0, false
	var before time.Duration // what the reading before cost
	for {
		start := time.Now()
		least := measureEvery
		if r := d.elector.Status().Role; r != leader.RoleLeader && r != leader.RoleDraining {
			least = measureEveryStandby
		}
		err := d.readServer(ctx)
		cost := time.Since(start)
		for i := range tallies {
			took, terr := d.readTable(ctx, &tallies[i])
			cost += took
			err = cmp.Or(err, terr)
		}
		if ctx.Err() != nil {
			return nil
		}
		pause := min(max(least, measureShare*min(cost, before)), measureMax)
		before = cost
		if err != nil && !faulty {
			d.log.Warn("tables not measured", zap.String("event", "gauges.fault"), d.because(err))
		}
		faulty = err != nil
		switch {
		case err == nil:
			failures = 0
		case outbox.Unreachable(err): // costs nobody anything
			pause = least
		default:
			pause = min(least<<failures, measureMax)
			failures = min(failures+1, 8)
		}
		sleep(ctx, pause)
	}
}

func (d *daemon) readServer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	v, err := postgres.ReadVitals(ctx, d.pool)
	if err == nil {
		d.gauges.server(v)
	}
	for i := 0; i < len(d.projectors) && err == nil; i++ {
		var r postgres.Rebuild
		name := d.projectors[i].proj.Name()
		if r, err = postgres.ReadRebuild(ctx, d.pool, name); err != nil {
			continue
		}
		own, oerr := outbox.ReadRebuild(ctx, d.pool, name, d.cfg.Database.Timeout)
		if oerr == nil && !own.Load && own.Finished != nil && own.Phase != outbox.RebuildAborted && own.Finished.After(r.Finished) {
			r = postgres.Rebuild{Finished: *own.Finished, Duration: own.Finished.Sub(own.Began), Success: own.Phase == outbox.RebuildDone}
		}
		err = oerr
		d.gauges.rebuild(name, r)
	}
	return err
}

// readTable reads a table's bounded counts, and counts a long backlog when that is due. It
// returns the duration of the bounded reads.
func (d *daemon) readTable(ctx context.Context, t *tally) (time.Duration, error) {
	name, start := t.projector.proj.Name(), time.Now()
	s, err := t.projector.store.Stats(ctx, d.cfg.Outbox.MaxProcessing, glanceLimit)
	took := time.Since(start)
	if err != nil {
		d.gauges.readings.WithLabelValues(name, readingFailed).Inc()
		since := time.Since(t.read) // nothing gets done in a table that cannot be read
		d.gauges.old(name, grown(t.oldest, since), grown(t.unquarantined, since))
		return took, err
	}
	t.oldest, t.unquarantined, t.read = s.Oldest, s.Oldest, start
	quarantined, err := d.readHolds(ctx, t.projector)
	if len(quarantined) > 0 && err == nil {
		var age time.Duration
		if age, err = t.projector.store.OldestUnquarantined(ctx, quarantined); err == nil {
			t.unquarantined = age
		}
	}
	took = time.Since(start)
	if s.Capped && !start.Before(t.due) {
		err = cmp.Or(err, t.count(ctx, d.cfg.Outbox.MaxProcessing))
	}
	if s.Capped && t.counted != nil {
		s = merged(s, *t.counted)
	} else {
		t.at = start
	}
	result := readingOK
	if err != nil {
		result = readingFailed
	}
	d.gauges.readings.WithLabelValues(name, result).Inc()
	d.gauges.table(name, s)
	d.gauges.old(name, t.oldest, t.unquarantined)
	d.gauges.clocks[name].counted.set(time.Since(t.at))
	return took, err
}

// grown returns an age some time later; 0 stands for no event and stays so.
func grown(age, since time.Duration) time.Duration {
	if age == 0 {
		return 0
	}
	return age + since
}

// readHolds reads what operators hold back of a projection, and returns the entities in quarantine.
func (d *daemon) readHolds(ctx context.Context, p *projector) (quarantined []outbox.Key, err error) {
	holds, quarantined, err := p.store.Holds(ctx)
	if err != nil {
		return nil, err
	}
	if p.pipeline.State().Phase == schedule.Idle { // else the pipeline says when it obeys
		d.tellPause(p.proj.Name(), holds.Pause)
	}
	waiting, err := p.store.QuarantinedEvents(ctx, quarantined)
	if err == nil {
		d.gauges.holds(p.proj.Name(), holds, waiting)
	}
	return quarantined, err
}

// tellPause shows a pause in the state of health.
func (d *daemon) tellPause(name string, p *outbox.Hold) {
	text := ""
	if p != nil {
		text = p.String()
	}
	d.Health.SetPause(name, text)
}

// count counts a long backlog.
func (t *tally) count(ctx context.Context, maxProcessing time.Duration) error {
	start := time.Now()
	s, err := t.projector.store.Stats(ctx, maxProcessing, 0)
	if err == nil || !outbox.Unreachable(err) {
		t.due = time.Now().Add(min(measureShare*time.Since(start), countMax))
	}
	if err == nil {
		t.counted, t.at = &s, start
	}
	return err
}

// merged returns the bounded counts, replaced by those of the last full count where they met their limit.
func merged(glance, counted outbox.Stats) outbox.Stats {
	for _, n := range []struct {
		now  *int64
		then int64
	}{
		{&glance.Pending, counted.Pending}, {&glance.Retrying, counted.Retrying},
		{&glance.Processing, counted.Processing}, {&glance.Failed, counted.Failed}, {&glance.Discarded, counted.Discarded},
	} {
		if *n.now >= glanceLimit {
			*n.now = max(*n.now, n.then)
		}
	}
	glance.Capped = false
	return glance
}
