package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// Severity says how bad a finding is.
type Severity string

// The severities, the worst first.
const (
	Error   Severity = "error"   // weft does not work, or will stop soon
	Warning Severity = "warning" // it works, and will be slow or unsafe
	Note    Severity = "note"    // good to know
)

func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Note}, s) }

// Finding is one thing that is wrong.
type Finding struct {
	Check    string // the name of the check, such as postgres.rights
	Severity Severity
	On       string // what the finding is about: a table, an index, a role, a host; may be empty
	Text     string
	Remedy   string // a statement, a request, a command or advice; empty when there is none

	Index *migrations.CostlyIndex // the index of index.unread, index.read and index.older; nil for other checks
}

// Options of [Examine].
type Options struct {
	Config  config.Config
	Pool    *pgxpool.Pool     // of one schema, with the role of the configuration
	Modes   []migrations.Mode // what the instances do with finished events
	Elastic elastic.Config    // how to reach Elasticsearch
}

// limits are the figures from which on something is found.
type limits struct {
	skew        time.Duration // of the clocks
	snapshot    time.Duration // of a transaction that holds back vacuum
	held        int64         // transactions that it holds back vacuum by, where its age is not to be seen
	slotBytes   int64         // of WAL that a slot keeps
	xids        int64         // age of the oldest transaction id of the database
	sequence    float64       // used share of a sequence
	connections int           // left
	dead        int64         // rows of a table
	deadShare   float64
	vacuumAt    int64         // dead rows at which autovacuum begins
	indexBytes  int64         // of a partial index
	expiry      time.Duration // until the end of a certificate
	keyExpiry   time.Duration // until that of an API key, which may have been made for a month
	left        time.Duration // until ids or disk run out
}

func ordinary() limits {
	return limits{
		skew: time.Second, snapshot: 10 * time.Minute, held: 1_000_000, slotBytes: 1 << 30, xids: 1_000_000_000, sequence: 0.8, connections: 10,
		dead: 10_000, deadShare: 0.2, vacuumAt: 100_000, indexBytes: 64 << 20, expiry: 30 * 24 * time.Hour, keyExpiry: 14 * 24 * time.Hour, left: 90 * 24 * time.Hour,
	}
}

// examination is one call of Examine.
type examination struct {
	Options
	limits
	now     time.Time
	missing []migrations.MissingIndex // of the outbox tables
	found   []Finding
}

// check is one of the things that are examined. Its error means that it could not be.
type check struct {
	name string
	run  func(context.Context) error
}

// Examine makes every check and returns the findings, the worst first. It bounds each check by
// the database timeout, and the requests to Elasticsearch one by one. A check that fails becomes
// a warning. Examine returns an error when the schema is not that of the configured shards, when
// the outbox tables cannot be read, or when ctx ends.
func Examine(ctx context.Context, o Options) ([]Finding, error) {
	e := &examination{Options: o, limits: ordinary(), now: time.Now()}
	return e.all(ctx)
}

func (e *examination) all(ctx context.Context) ([]Finding, error) {
	e.configuration()
	if err := e.within(ctx, func(ctx context.Context) error { return migrations.CheckShards(ctx, e.Pool, e.Config.Shards.Of) }); err != nil {
		return nil, err
	}
	if err := e.within(ctx, e.costlyIndexes); err != nil { // without tables there is nothing to examine
		return nil, err
	}
	checks := []check{
		{"postgres.version", e.version}, {"postgres.read_only", e.readOnly}, {"postgres.rights", e.rights}, {"postgres.pooler", e.pooler},
		{"postgres.timeouts", e.timeouts}, {"postgres.clock", e.clock}, {"postgres.connections", e.connections},
		{"postgres.certificate", e.postgresCertificate}, {"vacuum.held_back", e.horizon}, {"postgres.ids", e.ids}, {"postgres.sequence", e.sequences},
		{"index.bloat", e.indexBloat}, {"vacuum.settings", e.vacuumSettings}, {"vacuum.bloat", e.tableBloat}, {"shard.home", e.home}, {"postgres.synchronous", e.synchronous},
	}
	e.try(ctx, check{"schema.version", func(ctx context.Context) error {
		ok, err := e.upToDate(ctx)
		if ok { // they read what older schemas lack
			checks = append(checks, check{"index.missing", e.missingIndexes}, check{"holds", e.holds}, check{"rivals", e.rivals}, check{"instances", e.twins},
				check{"rivals", e.subscriber}, check{"schema.unread", e.unread}, check{"history.days", e.history}, check{"schema.versions", e.versions})
		}
		return err
	}})
	if targets := e.targets(); len(targets) > 0 {
		// Each request is bounded alone: one node that is silent must not use up the time of the others.
		checks = append(checks, check{"elastic", func(context.Context) error { return e.elastic(ctx, targets) }})
	}
	for _, d := range e.Config.Declared {
		if slices.Contains(e.Config.Projections, d.Name) {
			checks = append(checks, check{"projection", func(ctx context.Context) error { return e.declared(ctx, d.Name) }})
		}
	}
	checks = append(checks, check{"elastic.documents", e.documents})
	for _, c := range checks {
		e.try(ctx, c)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	slices.SortStableFunc(e.found, func(a, b Finding) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) })
	return e.found, nil
}

// try runs a check, or says that it could not.
func (e *examination) try(ctx context.Context, c check) {
	if err := e.within(ctx, c.run); err != nil {
		_, text := postgres.Diagnose(postgres.In(e.Pool.Config().ConnString(), err))
		remedy := ""
		if errors.Is(err, context.DeadlineExceeded) {
			remedy = postgres.SayBusy
		}
		e.add(c.name, Warning, "", "could not be examined: "+text, remedy)
	}
}

// within bounds one check.
func (e *examination) within(ctx context.Context, run func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, e.Config.Database.Timeout)
	defer cancel()
	return run(ctx)
}

func (e *examination) add(check string, s Severity, on, text, remedy string) {
	e.found = append(e.found, Finding{Check: check, Severity: s, On: on, Text: text, Remedy: remedy})
}

// configuration repeats what `weft run` warns about at its start.
func (e *examination) configuration() {
	for _, text := range e.Config.Warnings() {
		e.add("configuration", Warning, "", text, "")
	}
}

// upToDate reports whether the schema has all migrations of this build.
func (e *examination) upToDate(ctx context.Context) (ok bool, err error) {
	err = migrations.Check(ctx, e.Pool)
	if behind, ok := errors.AsType[*migrations.BehindError](err); ok {
		e.add("schema.version", Error, postgres.Address(&e.Pool.Config().ConnConfig.Config),
			fmt.Sprintf("the schema is at version %d, and this build needs %d", behind.Have, behind.Want), "weft migrate up")
		return false, nil
	}
	if ahead, ok := errors.AsType[*migrations.AheadError](err); ok {
		e.add("schema.version", Note, postgres.Address(&e.Pool.Config().ConnConfig.Config),
			fmt.Sprintf("the schema is at version %d, and this build knows %d: a newer build has migrated it", ahead.Have, ahead.Knows), "use the build of the instances")
		err = nil
	}
	if refused, ok := errors.AsType[*migrations.RefusedError](err); ok {
		e.add("schema.version", Error, postgres.Address(&e.Pool.Config().ConnConfig.Config), refused.Why, "")
		return false, nil
	}
	return err == nil, err
}

// rights names each right that the role of the configuration lacks.
func (e *examination) rights(ctx context.Context) error {
	err := migrations.CheckRights(ctx, e.Pool, e.Modes...)
	lacks, ok := errors.AsType[*migrations.RightsError](err)
	if !ok {
		return err
	}
	for i, right := range lacks.Missing {
		e.add("postgres.rights", Error, lacks.Role, "the role lacks "+right, lacks.Grants[i]+";")
	}
	return nil
}

// declared says what `weft projection check` finds in the database against a projection. Tables and rights that are
// wrong stand in its way, and have findings already.
func (e *examination) declared(ctx context.Context, name string) error {
	for _, f := range e.found {
		if f.Severity == Error && slices.Contains([]string{"schema.version", "schema.outbox", "postgres.rights", "index.missing"}, f.Check) {
			return nil
		}
	}
	found, err := e.Config.Registry().CheckDatabase(ctx, name, projections.Deps{Pool: e.Pool, Elastic: e.Elastic})
	for _, f := range found {
		severity := Error
		if f.Warning {
			severity = Note
		}
		e.add("projection", severity, "projections."+name+"."+f.Setting, f.What, f.Remedy)
	}
	return err
}

// home names a shard that is on another server than the settings say: instances lead its empty tables here.
func (e *examination) home(ctx context.Context) error {
	away, err := migrations.ReadAway(ctx, e.Pool, "")
	if err != nil || away == nil {
		return err
	}
	e.add("shard.home", Error, e.Config.Group, "the shard "+away.String(), away.Remedy())
	return nil
}

// ago writes a duration for people.
func ago(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d/(24*time.Hour)))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", int(d/time.Hour))
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d minutes", int(d/time.Minute))
	default:
		return fmt.Sprintf("%.1f seconds", d.Seconds())
	}
}

// size writes a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	default:
		return fmt.Sprintf("%d KiB", n>>10)
	}
}
