package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	upkeepEvery  = time.Hour
	upkeepRetry  = time.Minute // after a fault
	columnsEvery = time.Minute

	// daysAhead is how many days of a history exist in advance: for so long there may be no
	// leader before a finished event has to stay in its table.
	daysAhead = 7
	// indexLimit bounds the build of a day's index, which holds back vacuum.
	indexLimit = 10 * time.Minute

	// A sweep moves at most sweepRate events per second and works a fifth of the time. After a
	// sweep of duration t the next begins no sooner than sweepShare*t later, after one that failed an hour at most.
	sweepRate  = 2000
	sweepEase  = 4
	sweepShare = 20

	recordsPage = 1000
)

// The tasks of the upkeep; the values of the label task.
const (
	taskColumns = "columns" // of the outbox table and its history agree
	taskDays    = "days"    // of the history are attached ahead
	taskIndex   = "index"   // of days that are over
	taskDrop    = "drop"    // of days beyond the retention
	taskSweep   = "sweep"   // for finished events that are still in the table
	taskRecords = "records" // of terms and audit that are old
)

// upkeepMetrics count the upkeep tasks of the leader.
type upkeepMetrics struct {
	runs    *prometheus.CounterVec
	swept   *prometheus.CounterVec
	missing *prometheus.GaugeVec
}

func newUpkeepMetrics(reg prometheus.Registerer, projections []string) (*upkeepMetrics, error) {
	m := &upkeepMetrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_upkeep_runs_total", Help: "Runs of the leader's upkeep, by task and result. A task that fails is repeated a minute later, or later if it took long.",
		}, []string{"task", "result"}),
		swept: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_finished_swept_total", Help: "Finished events that a sweep has moved to the history or deleted, by action: those that a settle has left in the table.",
		}, []string{"projection", "action"}),
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weft_history_missing_partitions", Help: "Partitions that the history lacks for the days from today to a week ahead, where finished events are archived.",
		}, []string{"projection"}),
	}
	for _, c := range []prometheus.Collector{m.runs, m.swept, m.missing} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("upkeep metrics: %w", err)
		}
	}
	for _, task := range []string{taskColumns, taskDays, taskIndex, taskDrop, taskSweep, taskRecords} {
		m.runs.WithLabelValues(task, readingOK)
		m.runs.WithLabelValues(task, readingFailed)
	}
	for _, p := range projections {
		m.missing.WithLabelValues(p)
		m.swept.WithLabelValues(p, "moved")
		m.swept.WithLabelValues(p, "deleted")
	}
	return m, nil
}

// finished returns the setting outbox.finished of a projector.
func (d *daemon) finished(l projector) outbox.Finished {
	return outbox.Finished(d.cfg.Outbox.FinishedOf(l.proj.Name()))
}

// modes returns the modes that the projectors need database rights for.
func (d *daemon) modes() []migrations.Mode {
	out := make([]migrations.Mode, len(d.projectors))
	for i, l := range d.projectors {
		out[i] = migrations.Mode{Table: l.proj.Table(), Finished: string(d.finished(l)), Retention: d.cfg.Outbox.Retention > 0,
			Repair: d.cfg.Verify.Repairs()}
	}
	return out
}

// task is a periodic part of the upkeep.
type task struct {
	name  string
	run   func(context.Context) error
	every time.Duration
	due   time.Time
	// failed is set while a fault lasts, so that it is logged once.
	failed bool
}

// upkeep maintains a projector's history, and moves or deletes finished events that are still
// in the table, until ctx ends. Its faults do not end the term: settles do not need it.
func (d *daemon) upkeep(ctx context.Context, l projector, epoch int64) {
	u := &upkeep{d: d, projector: l, epoch: epoch, finished: d.finished(l), retention: d.cfg.Outbox.Retention,
		log: d.log.Named("upkeep").With(zap.String("projection", l.proj.Name()))}
	archive := u.finished == outbox.Archive
	var short, long []*task
	add := func(list *[]*task, wanted bool, name string, every, after time.Duration, run func(context.Context) error) {
		if wanted {
			*list = append(*list, &task{name: name, run: run, every: every, due: time.Now().Add(after)})
		}
	}
	add(&short, archive, taskDays, upkeepEvery, 0, u.days)
	add(&short, archive, taskColumns, columnsEvery, 0, u.columns)
	add(&short, u.retention > 0, taskDrop, upkeepEvery, 0, u.drop)
	add(&short, archive, taskIndex, upkeepEvery, 0, u.index)
	add(&long, archive || u.finished == outbox.Discard || u.retention > 0, taskSweep, upkeepEvery, upkeepRetry, u.sweep)
	var g errgroup.Group
	for _, tasks := range [][]*task{short, long} {
		g.Go(func() error { d.repeat(ctx, u.log, tasks); return nil })
	}
	_ = g.Wait()
}

// records bounds the size of weft_term and weft_audit until ctx ends.
func (d *daemon) records(ctx context.Context) {
	d.repeat(ctx, d.log.Named("upkeep"), []*task{{name: taskRecords, every: upkeepEvery, due: time.Now().Add(upkeepRetry), run: d.forget}})
}

// forget deletes terms and audit entries that are older than the configuration keeps them.
func (d *daemon) forget(ctx context.Context) error {
	for {
		n, err := outbox.ForgetRecords(ctx, d.pool, d.cfg.Audit.Keep, d.cfg.Audit.KeepFailures, recordsPage, d.cfg.Database.Timeout)
		if err != nil || n < recordsPage {
			return err
		}
	}
}

// rest returns the pause after a run that took a time and has ended with err. A sweep tells of rows that it has
// passed over only when it has been through the whole table.
func (t *task) rest(took time.Duration, err error) time.Duration {
	if err != nil {
		return min(max(upkeepRetry, sweepShare*took), t.every)
	}
	return max(t.every, sweepShare*took)
}

// repeat runs the tasks when they are due, one at a time, until ctx ends.
func (d *daemon) repeat(ctx context.Context, log *zap.Logger, tasks []*task) {
	if len(tasks) == 0 {
		return
	}
	for {
		next := slices.MinFunc(tasks, func(a, b *task) int { return a.due.Compare(b.due) })
		if sleep(ctx, time.Until(next.due)); ctx.Err() != nil {
			return
		}
		start := time.Now()
		err := next.run(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := next.rest(time.Since(start), err)
		if err != nil {
			d.upkeepMetrics.runs.WithLabelValues(next.name, readingFailed).Inc()
			if !next.failed {
				log.Error("upkeep fails; weft tries again", zap.String("event", "upkeep.fault"), zap.String("task", next.name), zap.Error(err))
			}
		} else {
			d.upkeepMetrics.runs.WithLabelValues(next.name, readingOK).Inc()
		}
		next.failed = err != nil
		next.due = time.Now().Add(pause)
	}
}

// upkeep maintains the history and table of one projector during one term.
type upkeep struct {
	d         *daemon
	projector projector
	epoch     int64
	finished  outbox.Finished
	retention time.Duration
	log       *zap.Logger
}

func (u *upkeep) open(ctx context.Context) (*outbox.FinishedEvents, error) {
	return outbox.OpenFinishedEvents(ctx, u.d.pool, u.projector.proj.Table(), u.d.cfg.Database.Timeout)
}

// days attaches the days that the history needs next.
func (u *upkeep) days(ctx context.Context) error {
	f, err := u.open(ctx)
	if err != nil {
		return err
	}
	parts, now, err := f.Partitions(ctx)
	if err != nil {
		return err
	}
	today := now.UTC().Truncate(24 * time.Hour)
	missing := 0
	for i := range daysAhead + 1 {
		day := today.AddDate(0, 0, i)
		if covered(parts, day) {
			continue
		}
		made, aerr := f.Attach(ctx, day)
		if aerr != nil {
			missing++
			err = errors.Join(err, aerr)
			continue
		}
		if made {
			u.log.Info("day of the history made", zap.String("event", "history.attached"), zap.String("day", day.Format(time.DateOnly)))
		}
	}
	u.d.upkeepMetrics.missing.WithLabelValues(u.projector.proj.Name()).Set(float64(missing))
	return err
}

// covered reports whether partitions, in the order of their times, take all events that are finished on a day.
func covered(parts []outbox.Partition, day time.Time) bool {
	next, end := day, day.AddDate(0, 0, 1)
	for _, p := range parts {
		switch {
		case p.Detaching || p.From.After(next):
		case p.Until.IsZero():
			return true
		case p.Until.After(next):
			next = p.Until
		}
	}
	return !next.Before(end)
}

// prepareHistory creates the days that a leader needs, so that the first batch after a long
// stop is archived, too. The upkeep of the term repeats it after a failure.
func (d *daemon) prepareHistory(ctx context.Context) {
	for _, l := range d.projectors {
		if d.finished(l) != outbox.Archive {
			continue
		}
		u := &upkeep{d: d, projector: l, log: d.log.Named("upkeep").With(zap.String("projection", l.proj.Name()))}
		if err := u.days(ctx); err != nil && ctx.Err() == nil {
			u.log.Warn("days of the history could not be made; the leader tries again", zap.String("event", "upkeep.fault"), zap.String("task", taskDays), zap.Error(err))
		}
	}
}

// columns reads the table's columns again after the application has changed them, and returns
// an error when the history lacks one.
func (u *upkeep) columns(ctx context.Context) error {
	f, err := u.open(ctx)
	if err != nil {
		return err
	}
	if !slices.Equal(f.Shape().Columns, u.projector.store.Shape().Columns) {
		if err := u.projector.store.Open(ctx); err != nil {
			return err
		}
		u.log.Info("columns of the outbox table have changed", zap.String("event", "outbox.columns"), zap.Strings("columns", f.Shape().Columns))
	}
	lacking, err := f.Lacking(ctx)
	if err == nil && len(lacking) > 0 {
		err = fmt.Errorf("history %s lacks columns of its outbox table (%s): run `weft migrate up`; until then finished events stay in the table",
			f.Shape().History(), strings.Join(lacking, ", "))
	}
	return err
}

// index builds the missing indexes of past days, one after the other.
func (u *upkeep) index(ctx context.Context) error {
	f, err := u.open(ctx)
	if err != nil {
		return err
	}
	parts, _, err := f.Partitions(ctx)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if !p.Closed || p.Indexed || p.Detaching {
			continue
		}
		start := time.Now()
		built, berr := f.IndexClosed(ctx, p.Name, indexLimit)
		err = errors.Join(err, berr)
		if built {
			u.log.Info("day of the history indexed", zap.String("event", "history.indexed"), zap.String("partition", p.Name), zap.Duration("took", time.Since(start)))
		}
	}
	return err
}

// drop drops the days of the history that are older than the retention.
func (u *upkeep) drop(ctx context.Context) error {
	f, err := u.open(ctx)
	if err != nil {
		return err
	}
	parts, now, err := f.Partitions(ctx)
	if err != nil {
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == pgerrcode.UndefinedTable {
			return nil // a history that somebody has removed has no days
		}
		return err
	}
	var dropped []string
	var events int64
	for _, p := range parts {
		if !p.Closed || p.Until.After(now.Add(-u.retention)) {
			continue
		}
		ok, derr := f.Drop(ctx, p.Name)
		err = errors.Join(err, derr)
		if ok {
			dropped, events = append(dropped, p.Name), events+p.Estimate
		}
	}
	if len(dropped) > 0 {
		err = errors.Join(err, u.audit(ctx, f, events, map[string]any{"partitions": dropped, "estimated": true}))
		u.log.Info("days of the history dropped", zap.String("event", "history.dropped"), zap.Strings("partitions", dropped))
	}
	return err
}

// sweep moves or deletes the finished events that are still in the table.
func (u *upkeep) sweep(ctx context.Context) error {
	f, err := u.open(ctx)
	if err != nil {
		return err
	}
	if err := f.CheckRemoval(ctx); err != nil {
		return err
	}
	s := outbox.Sweep{Move: u.finished == outbox.Archive, Rate: sweepRate, Ease: sweepEase}
	if u.finished != outbox.Discard {
		s.Older = u.retention
	}
	var last outbox.Swept
	swept := u.d.upkeepMetrics.swept
	s.Progress = func(now outbox.Swept) {
		swept.WithLabelValues(u.projector.proj.Name(), "moved").Add(float64(now.Moved - last.Moved))
		swept.WithLabelValues(u.projector.proj.Name(), "deleted").Add(float64(now.Deleted - last.Deleted))
		last = now
	}
	start := time.Now()
	got, err := f.Sweep(ctx, s)
	if got.Deleted > 0 && u.finished != outbox.Discard { // what a settle would have deleted needs no audit
		err = errors.Join(err, u.audit(ctx, f, got.Deleted, map[string]any{"table": f.Shape().Name}))
	}
	if got.Moved+got.Deleted > 0 {
		u.log.Info("finished events swept out of the table", zap.String("event", "finished.swept"), zap.Int64("moved", got.Moved),
			zap.Int64("deleted", got.Deleted), zap.Duration("took", time.Since(start)))
	}
	return err
}

// audit records what the retention has removed, also when the term has just ended.
func (u *upkeep) audit(ctx context.Context, f *outbox.FinishedEvents, events int64, detail map[string]any) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	text, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("audit of a removal: %w", err)
	}
	id, err := f.BeginPruning(ctx, outbox.AuditEntry{
		Actor: u.d.cfg.Instance, Why: "outbox.retention is " + u.retention.String(), Projection: u.projector.proj.Name(), ByEpoch: &u.epoch, Detail: text,
	})
	if err == nil {
		err = f.EndPruning(ctx, id, events, map[string]string{"outcome": "finished"})
	}
	return err
}
