package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/verify"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

type verifyFlags struct {
	rate                 int
	settle, wait         time.Duration
	deep, repair, resume bool
	signature
}

const (
	// verifyConnections is one for each reader of a comparison.
	verifyConnections = 4
	// verifySave is the pause between two records of how far it has come.
	verifySave = 2 * time.Second
)

func (a *app) verifyCommand() *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use:   "verify [PROJECTION]...",
		Short: "Compare source and destination, and repair what differs",
		Long: `Compare all rows of the source with all documents of the destination, of the projections that
run or of the named ones, while the pair works. What differs is looked at again once the
pipeline has nothing open of the entity, and only then it counts:

  missing    there is a row, and no document
  extra      there is a document, and no row
  stale      the document is older than its row
  ahead      the document is newer than its row, and would refuse the row's next changes
  corrupt    row and document have the same version, and differ
  misplaced  the document is on a shard where nobody looks for it

With --repair the leader writes anew, or deletes, what differs: the command writes events and
waits until they are settled and the documents are right. Who did it and why is kept in weft_audit.
Documents ahead of their rows are overtaken where weft outbox create has made the outbox;
elsewhere the command says what to do. Run a repair as the owner of the outbox.

The command waits for an Elasticsearch that stops answering. An interrupted comparison goes on
with --resume.

An alias that leads to other indexes, too, is named: searches find their documents.

Entities that differ and have an event in failed, discarded or not, are counted as FAILED and not
judged: weft replay, also with --discarded, is for them. They change no exit code.

Exits 0 when both sides are equal, or all that differed is repaired; 1 when they differ, or
the alias leads to other indexes, too; 3 when some entities did not settle within --settle,
as without a leader; 75 when it was interrupted; 77 while another weft verify compares one of
the projections.`,
		Example: `  weft verify
  weft verify products --deep --json
  weft verify products --rate 5000
  weft verify products --repair --by alice --why "index restored from a snapshot"`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			return a.connected(cmd, verifyConnections, here(func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				if err := mayWrite(ctx, pool, cfg); err != nil {
					return err
				}
				return a.verify(ctx, cmd, cfg, pool, names, f)
			}))
		},
	}
	countFlag(cmd, &f.rate, "rate", 0, 0, "most rows and documents a second; 0 for no limit")
	durationFlag(cmd, &f.settle, "settle", verify.DefaultSettle, time.Millisecond, "how long the events of an entity may take to settle")
	durationFlag(cmd, &f.wait, "wait", 5*time.Minute, 0, "how long to wait for an Elasticsearch that stops answering")
	cmd.Flags().BoolVar(&f.deep, "deep", false, "name the fields in which documents differ")
	cmd.Flags().BoolVar(&f.repair, "repair", false, "have what differs written anew; takes --by and --why")
	cmd.Flags().StringVar(&f.by, "by", "", "who repairs")
	cmd.Flags().StringVar(&f.why, "why", "", "the reason")
	cmd.Flags().BoolVar(&f.resume, "resume", false, "go on where an interrupted comparison has ended")
	a.jsonFlags(cmd, "projections", "elastic.url", "elastic.timeout", "env")
	return cmd
}

func (f *verifyFlags) check(cmd *cobra.Command) error {
	switch {
	case f.repair:
		return f.signature.check(cmd)
	case f.by != "" || f.why != "":
		return usage(cmd, "--by and --why belong to --repair")
	}
	return nil
}

func (a *app) verify(ctx context.Context, cmd *cobra.Command, cfg config.Config, pool *pgxpool.Pool, names []string, f verifyFlags) error {
	if len(names) == 0 {
		names = cfg.Projections
	}
	for _, name := range names {
		if err := known(cmd, "projection", name, cfg.Registry().Names()); err != nil {
			return err
		}
	}
	target, err := daemon.ElasticConfig(cfg.Elastic)
	if err != nil {
		return err
	}
	built, err := cfg.Registry().Build(names, projections.Deps{Pool: pool, Elastic: target, ChronicleVersion: cfg.Chronicle.ProjectionVersion, Log: zap.NewNop(), Registerer: prometheus.NewRegistry()})
	if err != nil {
		return err
	}
	for _, p := range built {
		defer p.Close()
	}
	session, err := comparing(ctx, cfg, pool, names)
	if err != nil {
		return err
	}
	defer leave(ctx, cfg, session)
	var reports []verify.Report
	for _, p := range built {
		var report verify.Report
		if err == nil {
			report, err = a.verifyOne(ctx, cfg, pool, session, p, f)
			reports = append(reports, report)
		}
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, errPlaceLost) {
		return resumable(cfg, reports, err)
	}
	if err := a.show(reports, func(w io.Writer) error { return writeReports(w, reports) }); err != nil {
		return err
	}
	switch {
	case errors.Is(err, errPlaceLost):
		return &exitError{exitTryAgain, "interrupted: " + errPlaceLost.Error() + ": go on with --resume"}
	case err != nil:
		return &exitError{exitTryAgain, "interrupted: go on with --resume"}
	}
	verdict := verdictOf(reports, f.repair)
	if e, ok := errors.AsType[*exitError](verdict); ok && e.code == exitInconclusive {
		e.msg += ": " + holdsUp(ctx, cfg, pool, reports)
	}
	return verdict
}

// resumable adds to an error after which a server may answer again how a comparison goes on that had begun.
func resumable(cfg config.Config, reports []verify.Report, err error) error {
	code, why := diagnose(postgres.In(cfg.Database.URL.Reveal(), err))
	if code != exitUnavailable || reports[len(reports)-1].Projection == "" {
		return err
	}
	return &exitError{code, why + "; then go on with --resume"}
}

// errPlaceLost ends a comparison whose place somebody else may have taken.
var errPlaceLost = errors.New("the session that keeps the place of the comparison has ended")

// comparing returns a session that keeps other commands from comparing the projections as long as it lasts. All
// that is kept of the comparison goes through it, so that what a lost one still does spoils no later one.
func comparing(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, names []string) (*pgx.Conn, error) {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	session := pooled.Hijack()
	for _, name := range names {
		if err := outbox.HoldVerify(ctx, session, name, "weft/verify/"+person(), cfg.Database.Timeout); err != nil {
			leave(ctx, cfg, session)
			return nil, err
		}
	}
	return session, nil
}

// leave ends a session of comparing, also when ctx has ended.
func leave(ctx context.Context, cfg config.Config, session *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), preflightTimeout)
	defer cancel()
	_ = outbox.FreeVerify(ctx, session, cfg.Database.Timeout) // the end of the session does it, too
	_ = session.Close(ctx)
}

func (a *app) verifyOne(ctx context.Context, cfg config.Config, pool *pgxpool.Pool, session *pgx.Conn, p projections.Projection, f verifyFlags) (verify.Report, error) {
	sides, ok := p.(projections.Sides)
	if !ok {
		return verify.Report{}, fmt.Errorf("projection %s has no destination that can be compared", p.Name())
	}
	mender, err := outbox.OpenMender(ctx, pool, p.Table(), p.Name(), cfg.Database.Timeout)
	if err != nil {
		return verify.Report{}, err
	}
	beside, err := indexesBeside(ctx, p) // first, so that a fault of it spoils no comparison that has been made
	if err != nil {
		return verify.Report{}, err
	}
	kept, err := outbox.BeginVerify(ctx, session, p.Name(), outbox.VerifyCommand, f.resume, cfg.Database.Timeout)
	if err != nil {
		return verify.Report{}, err
	}
	o := verify.Options{Sides: sides, Events: mender, Rate: f.rate, Settle: f.settle, Wait: f.wait, Fields: f.deep}
	if f.repair {
		o.Repair = &verify.Repair{Actor: f.by, Why: f.why}
	}
	if err := o.Resume(mender, kept); err != nil {
		return verify.Report{}, err
	}
	meter, started, saved := newMeter(a.stderr, p.Name()), time.Now(), time.Now()
	defer meter.close()
	var showing sync.Mutex
	var told time.Time
	o.Waiting = func(err error) {
		showing.Lock()
		defer showing.Unlock()
		if time.Since(told) >= meterEvery {
			told = time.Now()
			meter.note(fmt.Sprintf("%s: %v; weft waits for it, for %s at most", p.Name(), err, f.wait))
		}
	}
	running, end := context.WithCancel(ctx)
	defer end()
	o.Progress = func(r verify.Report) {
		showing.Lock()
		defer showing.Unlock()
		meter.verified(r, time.Since(started))
		if time.Since(saved) > verifySave {
			saved = time.Now()
			_ = kept.Save(context.WithoutCancel(ctx), r.Last, r, false) // the save at the end tells
			if session.IsClosed() {
				end()
			}
		}
	}
	report, err := verify.Run(running, o)
	report.Beside = beside
	save, cancel := context.WithTimeout(context.WithoutCancel(ctx), preflightTimeout)
	defer cancel()
	unsaved := kept.Save(save, report.Last, report, err == nil)
	if session.IsClosed() && (err == nil || running.Err() != nil && ctx.Err() == nil) {
		return report, errPlaceLost
	}
	return report, errors.Join(err, unsaved)
}

// indexesBeside returns the indexes to which the name of a projection leads besides the one that it writes to.
func indexesBeside(ctx context.Context, p projections.Projection) (out []verify.Beside, err error) {
	i, ok := p.(*projections.Index)
	if !ok {
		return nil, nil
	}
	sink, ok := i.Elastic()
	if !ok {
		return nil, nil
	}
	at, err := sink.Place(ctx)
	for _, name := range at.Beside {
		out = append(out, verify.Beside{Index: name, Alias: sink.Index(), Remedy: elastic.Detachment(sink.Index(), name)})
	}
	return out, err
}

func verdictOf(reports []verify.Report, repair bool) error {
	var wrong, repaired, byHand, unsettled int64
	beside := false
	for i := range reports {
		beside = beside || len(reports[i].Beside) > 0
		wrong, repaired, unsettled = wrong+reports[i].Differs(), repaired+reports[i].Repaired, unsettled+reports[i].Unsettled
		byHand += reports[i].ByHand
	}
	switch {
	case wrong > repaired && repair:
		return &exitError{exitBad, records.Counted(wrong-repaired, "1 document still differs from its row: see above what to do", "%d documents still differ from their rows: see above what to do about each")}
	case wrong > repaired && wrong == byHand:
		return &exitError{exitBad, records.Counted(wrong, "1 document differs from its row: see above what to do", "%d documents differ from their rows: see above what to do about each")}
	case wrong > repaired:
		return &exitError{exitBad, records.Counted(wrong, "1 document differs from its row; `weft verify --repair` has it written anew", "%d documents differ from their rows; `weft verify --repair` has them written anew")}
	case beside:
		return &exitError{exitBad, "an alias leads to an index into which weft does not write: see above what to do"}
	case unsettled > 0:
		return &exitError{exitInconclusive, records.Counted(unsettled, "1 entity had an event that did not settle", "%d entities had events that did not settle")}
	}
	return nil
}

func writeReports(w io.Writer, reports []verify.Report) error {
	t := newTable(w, "PROJECTION", "ROWS", "DOCUMENTS", "MISSING", "EXTRA", "STALE", "AHEAD", "CORRUPT", "MISPLACED", "REPAIRED", "FAILED", "UNSETTLED", "TOOK")
	for i := range reports {
		r := &reports[i]
		t.row(r.Projection, r.Rows, r.Documents, r.Missing, r.Extra, r.Stale, r.Ahead, r.Corrupt, r.Misplaced, r.Repaired, r.Failed, r.Unsettled, records.Span(float64(r.DurationMS)/1000))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range reports {
		r := &reports[i]
		if r.VersionsOnly != "" {
			fmt.Fprintf(w, "%s: versions alone were compared, and no contents: %s\n", r.Projection, r.VersionsOnly)
		}
		if r.Failed > 0 {
			entities := records.Counted(r.Failed, "1 entity that differs and has", "%d entities that differ and have")
			fmt.Fprintf(w, "%s: not judged: %s an event in failed, discarded or not, or a row that makes no document; see `weft failed summary`, also with --discarded\n", r.Projection, entities)
		}
		for _, b := range r.Beside {
			remedy := b.Remedy
			if r.Missing > 0 && r.Repaired < r.Differs() { // as after a rollover: searches find most documents there alone
				remedy = "repair first, since documents are missing, then: " + remedy
			}
			fmt.Fprintf(w, "%s: alias %s also leads to %s, into which weft does not write: searches find documents twice, and deleted ones; %s\n", r.Projection, b.Alias, b.Index, remedy)
		}
		for _, e := range r.Examples {
			source := fmt.Sprintf("version %d in the source", e.RowVersion)
			if e.Unnumbered {
				source = "no version yet in the source, as before `weft load " + r.Projection + "`"
			}
			fmt.Fprintf(w, "%s: %s: entity %s, document %s: %s, %d in the destination", r.Projection, e.Kind, records.Dash(records.Plain(e.Entity)), records.Dash(records.Plain(e.Document)), source, e.DocumentVersion)
			if len(e.Fields) > 0 {
				fmt.Fprintf(w, "; they differ in %s", records.Plain(strings.Join(e.Fields, ", ")))
			}
			if e.Remedy != "" {
				fmt.Fprintf(w, "; %s", e.Remedy)
			}
			fmt.Fprintln(w)
		}
	}
	return nil
}
