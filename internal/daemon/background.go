package daemon

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/shards"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const (
	postgresName = "postgres"

	watchEvery   = 200 * time.Millisecond
	attendEvery  = 2 * time.Second // also keeps a connection to the destination warm
	checkTimeout = 5 * time.Second
	fixEvery     = 5 * time.Second // between two looks whether somebody has fixed a shard

	// After the last settle a stop ends within a second, also when Postgres does not answer.
	withdrawTimeout = 500 * time.Millisecond
	closeGrace      = 500 * time.Millisecond
)

// every calls f now and then once per interval, until ctx ends.
func every(ctx context.Context, interval time.Duration, f func(context.Context)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		f(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// ready waits until the database answers and is the one that this build and its
// configuration expect. It returns an error for a fault that a retry cannot fix and that ends the
// instance, and nil when ctx ends.
func (d *daemon) ready(ctx context.Context) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 50*time.Millisecond, time.Second
	defer d.start.Rest()
	for {
		d.start.Beat()
		err := d.check(ctx)
		if ctx.Err() != nil {
			return nil
		}
		switch kind, text := d.diagnose(err); {
		case err == nil:
			d.ends(nil)
			return nil
		case passing(kind, err):
			d.ends(err)
			d.tell(postgresName, errors.New(text))
			sleep(ctx, pause.NextBackOff())
		case d.ends(err):
			return err
		default:
			d.awaitFix(ctx, text)
		}
	}
}

// elect takes part in the election until ctx ends, or until a fault that only a person can fix ends the
// instance: such a fault of the lock session shows before its first proof.
func (d *daemon) elect(ctx context.Context) error {
	for {
		err := d.elector.Run(ctx, d.lead)
		if err == nil || errors.As(err, new(*leader.PanicError)) || d.ends(err) {
			return err
		}
		_, text := d.diagnose(err)
		d.awaitFix(ctx, text)
	}
}

// diagnose returns the kind and the words of a fault of this instance's database.
func (d *daemon) diagnose(err error) (postgres.Kind, string) {
	kind, words := postgres.Diagnose(d.login.In(Cause(err)))
	if kind == postgres.Unknown && unanswered(err) {
		kind, words = postgres.Unreachable, d.login.Silent(err)
	}
	return kind, shards.Remedy(d.cfg, words)
}

// because is the field of a log line with a fault of the database, and with its address where no answer has come.
func (d *daemon) because(err error) zap.Field {
	if unanswered(err) || outbox.Unreachable(err) {
		_, words := d.diagnose(err)
		err = errors.New(words)
	}
	return zap.Error(err)
}

// unanswered reports whether a server has left a call without an answer.
func unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err) || leader.Unproven(err)
}

// awaitFix says what is wrong with a shard, and leaves a person time to fix it.
func (d *daemon) awaitFix(ctx context.Context, what string) {
	d.Health.Set(postgresName, errors.New(what))
	sleep(ctx, fixEvery)
}

// passing reports whether the fault that ended a check may pass.
func passing(kind postgres.Kind, err error) bool {
	switch kind {
	case postgres.Unreachable, postgres.TooManyConnections, postgres.ReadOnly: // another server may become the primary
		return true
	case postgres.Unknown:
		return errors.Is(err, context.DeadlineExceeded) || outbox.Answered(err) && !outbox.Refused(err)
	default:
		return false
	}
}

func (d *daemon) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if err := d.pool.Ping(ctx); err != nil {
		return err
	}
	if err := postgres.CheckEnvironment(ctx, d.pool, d.cfg.Env); err != nil {
		return err
	}
	if err := migrations.CheckShards(ctx, d.pool, d.cfg.Shards.Of); err != nil {
		return err
	}
	if err := migrations.CheckRights(ctx, d.pool, d.modes()...); err != nil {
		return err
	}
	err := migrations.Check(ctx, d.pool)
	if ahead, ok := errors.AsType[*migrations.AheadError](err); ok {
		d.log.Warn("database is newer than this build", zap.String("event", "migrations.ahead"), zap.Error(ahead))
		err = nil
	}
	for _, l := range d.projectors {
		if err == nil {
			err = l.store.Open(ctx)
		}
	}
	if err == nil {
		d.prepareHistory(ctx)
	}
	return err
}

// tell records a dependency's state, and logs it when it changes.
func (d *daemon) tell(name string, err error) {
	if !d.Health.Set(name, err) {
		return
	}
	if err != nil {
		d.log.Warn("dependency unusable", zap.String("event", "dependency.down"), zap.String("dependency", name), zap.Error(err))
		return
	}
	d.log.Info("dependency usable", zap.String("event", "dependency.up"), zap.String("dependency", name))
}

// watch copies the state of the election and of the pipelines into health. After stopping is
// closed, health says stopping although work may still be in flight.
func (d *daemon) watch(ctx context.Context, stopping <-chan struct{}) error {
	leaving := false
	for {
		d.look(leaving)
		d.report(leaving)
		select {
		case <-ctx.Done():
			return nil
		case <-stopping:
			leaving, stopping = true, nil
			d.manager.Stopping(d.cfg.Outbox.ShutdownGrace)
		case <-time.After(time.Until(schedule.Tick(time.Now(), watchEvery))):
		}
	}
}

func (d *daemon) look(leaving bool) {
	st := d.elector.Status()
	var role admin.Role
	epoch, trouble := st.HolderEpoch, st.Err
	switch {
	case st.Role == leader.RoleLeader:
		role = admin.Leader
	case st.Role == leader.RoleDraining:
		role = admin.Stopping
	case st.Role == leader.RoleStandby:
		role = admin.Standby
	case st.Err != nil:
		role = admin.Disconnected
	}
	if st.Err != nil && (role == admin.Standby || role == admin.Disconnected) {
		_, text := d.diagnose(st.Err)
		trouble = errors.New(text)
	}
	cut := d.unreached.Load()
	if cut != nil && (trouble != nil || !d.cutOff(*cut, role)) {
		cut = nil
	}
	if cut != nil && cut.readOnly { // the pipelines read all the same, so that what they say comes and goes
		_, text := d.diagnose(cut.err)
		trouble = errors.New(text)
	}
	for _, l := range d.projectors {
		s := l.pipeline.State()
		text, fault := s.Outbox, s.Fault
		if err := l.trouble.Load(); err != nil && !occupied(*err) {
			text, fault = (*err).Error(), *err
		}
		if text != "" && trouble == nil {
			trouble = errors.New(text)
			if kind, text := d.diagnose(fault); kind != postgres.Unknown {
				trouble = errors.New(text)
			}
		}
	}
	if cut != nil && trouble == nil {
		_, text := d.diagnose(cut.err)
		trouble = errors.New("the pool gets no connection to the tables: " + text)
	}
	if role != "" {
		d.tell(postgresName, trouble)
	}
	if role != "" && role != admin.Disconnected {
		d.ends(nil) // whatever was wrong with the lock session has been fixed
	}
	if leaving {
		role = admin.Stopping
	}
	if role != "" {
		d.Health.SetRole(role, epoch)
	}
	for _, l := range d.projectors {
		s := l.pipeline.State()
		doing := activity(s.Phase)
		if s.Phase != schedule.Idle {
			d.tellPause(l.proj.Name(), s.Holds.Pause)
		}
		if s.Holds.Pause != nil && doing == admin.Running {
			doing = admin.Suspended
		}
		detail := cmp.Or(s.Detail, string(s.Reason))
		if err := l.trouble.Load(); err != nil && occupied(*err) {
			detail = (*err).Error()
		}
		d.Health.SetProjection(l.proj.Name(), doing, detail)
	}
}

func activity(p schedule.Phase) admin.Activity {
	switch p {
	case schedule.Running:
		return admin.Running
	case schedule.Outage, schedule.Trial:
		return admin.Outage
	case schedule.Broken:
		return admin.Paused
	default:
		return admin.Idle
	}
}

// attend creates a projection's destination once, and then checks it regularly.
func (d *daemon) attend(ctx context.Context, l projector) error {
	p := l.proj
	name := p.Destination()
	d.Health.Require(name, d.cfg.Elastic.RequireReady)
	prepared := false
	attempted, there := sync.OnceFunc(func() { close(l.attempted) }), sync.OnceFunc(func() { close(l.prepared) })
	if _, ok := p.(projections.Preparer); !ok {
		there()
	}
	blamed := false // the source, for the outage that lasts
	var seen indexWatch
	var marks rivalWatch
	return every(ctx, attendEvery, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		defer attempted()
		if maker, ok := p.(projections.Preparer); ok && !prepared {
			if err := maker.Prepare(ctx); err != nil {
				if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
					d.tellOf(p, err)
				}
				return
			}
			prepared = true
			there()
		}
		err := p.Ready(ctx)
		if errors.Is(err, elastic.ErrMapping) { // two have changed the index in one moment, and this one's mark is lost
			prepared = false
		}
		d.follow(ctx, l, &seen)
		d.rival(ctx, l, &marks, err)
		s, source := l.pipeline.State(), unread(p)
		outage, destination := s.Phase == schedule.Outage || s.Phase == schedule.Trial, s.Reason.Elastic()
		blamed = outage && (blamed || source != nil && !destination)
		switch {
		case err != nil || !outage:
		case source != nil && !destination:
			err = source
			d.tell(name, nil)
		case destination || !blamed: // else the source can be read again, and the trial is under way
			err = errors.New(s.Detail) // it answers, and refuses the writes
		}
		if !errors.Is(err, context.Canceled) {
			d.tellOf(p, err)
		}
	})
}

// unread returns why a projection could not read its last rows.
func unread(p projections.Projection) error {
	if source, ok := p.(interface{ Unread() error }); ok {
		return source.Unread()
	}
	return nil
}

// tellOf tells of a projection's destination, or of its source where that cannot be read.
func (d *daemon) tellOf(p projections.Projection, err error) {
	source := postgresName + " (source of " + p.Name() + ")"
	_, told := d.Health.Report().Dependencies[source]
	if _, ok := errors.AsType[*projections.UnreadableError](err); ok {
		if !told {
			d.Health.Require(source, d.cfg.Elastic.RequireReady)
		}
		d.tell(source, d.blame(err))
		return
	}
	if told {
		d.tell(source, nil)
	}
	d.tell(p.Destination(), d.blame(err))
}

// blame returns an error of a projection's tables with the words for a server that does not answer, or for a pooler before it.
func (d *daemon) blame(err error) error {
	fault, ok := errors.AsType[*outbox.Fault](err)
	if !ok {
		return err
	}
	kind, text := d.diagnose(err)
	if kind == postgres.Pooler || fault.Reason == outbox.ReasonDBUnavailable && unanswered(err) {
		return errors.New(text)
	}
	return err
}
