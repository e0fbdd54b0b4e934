package outbox

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// RebuildPhase is how far a rebuild is.
type RebuildPhase string

// The phases, in their order; the last three are ends.
const (
	RebuildRequested RebuildPhase = "requested" // the leader has not begun
	RebuildFilling   RebuildPhase = "filling"   // from the source, beside live events, which go to both indexes
	RebuildVerifying RebuildPhase = "verifying" // that the new index equals the source
	RebuildSwapping  RebuildPhase = "swapping"  // the alias moves
	RebuildDone      RebuildPhase = "done"
	RebuildAborted   RebuildPhase = "aborted"
	RebuildFailed    RebuildPhase = "failed"
)

// Ended reports whether nothing more happens.
func (p RebuildPhase) Ended() bool {
	return slices.Contains([]RebuildPhase{"", RebuildDone, RebuildAborted, RebuildFailed}, p)
}

// WritesBoth reports whether live events go to both indexes.
func (p RebuildPhase) WritesBoth() bool { return !p.Ended() && p != RebuildRequested }

// RebuildFailure says why a rebuild has failed, as far as commands tell it apart.
type RebuildFailure string

// The kinds.
const (
	RebuildRefused     RebuildFailure = "refused" // the leader's credentials lack a privilege: nothing was made
	RebuildFailedOther RebuildFailure = "other"
)

// RebuildAsk is what a leader is asked to do with a rebuild.
type RebuildAsk string

// The requests.
const (
	RebuildPause   RebuildAsk = "pause"
	RebuildResume  RebuildAsk = "resume"
	RebuildAbort   RebuildAsk = "abort"
	RebuildDropOld RebuildAsk = "drop_old"
)

// RebuildAsks are all requests.
func RebuildAsks() []RebuildAsk {
	return []RebuildAsk{RebuildPause, RebuildResume, RebuildAbort, RebuildDropOld}
}

// ActionRebuild is the audit's action of a request for a rebuild. Later requests about it have it
// as their prefix: rebuild_pause.
const ActionRebuild = "rebuild"

// Rebuild is the newest rebuild of a projection. Its zero value is none.
type Rebuild struct {
	Phase        RebuildPhase
	Load         bool // it fills the index that is in use, and nothing else
	Paused       bool
	Asked        RebuildAsk // not done yet: to abort, or to drop the old index
	ReplacePlain bool       // an index of the configured name may be deleted for an alias

	OldIndex, NewIndex string
	LastNumber         int    // of the names that were ever given out
	EntityType         string // all entities up to this one are filled in; empty before the first
	EntityID           string
	Rows               int64 // of the source, about
	Filled             int64
	Unreadable         int64 // rows that have no document
	Redo               int64 // entities to be written again; at most [MostRedo] are counted
	Note               string
	Failure            RebuildFailure // of one that has failed; empty where a leader of schema version 6 has ended it

	By, Why        string
	Began, Updated time.Time
	Finished       *time.Time
	Age            time.Duration // since it was asked for, by the database's clock
	Led            time.Duration // of that, while it fills: the time in which somebody led
}

// MostRedo is how many entities to be written again are counted: each look at a rebuild does, and there may be as many as rows.
const MostRedo = 10_000

// RequestRebuild asks for a rebuild. It returns false while one goes on, and while the old
// index of the last one is kept.
func RequestRebuild(ctx context.Context, db DB, projection string, replacePlain bool, by, why string, timeout time.Duration) (bool, error) {
	return askRebuild(ctx, db, timeout, "rebuild_request", projection, replacePlain, by, why, false)
}

// AskRebuild asks the leader for something. It returns false where the rebuild is in no phase for it.
func AskRebuild(ctx context.Context, db DB, projection string, ask RebuildAsk, by, why string, timeout time.Duration) (bool, error) {
	return askRebuild(ctx, db, timeout, "rebuild_ask", projection, string(ask), by, why)
}

func askRebuild(ctx context.Context, db DB, timeout time.Duration, name, projection string, args ...any) (bool, error) {
	var n int
	err := calls{db, timeout, projection}.one(ctx, "request of a rebuild", statement(name), append([]any{projection}, args...), &n)
	return n == 1, err
}

// ReadRebuild returns the newest rebuild of a projection.
func ReadRebuild(ctx context.Context, db DB, projection string, timeout time.Duration) (Rebuild, error) {
	r, _, err := first(ctx, calls{db, timeout, projection}, "rebuild", statement("rebuild_read"), pgx.RowToStructByName[Rebuild], projection, MostRedo)
	return r, err
}

// JoinRebuild adds a term to those that write to both indexes, if a rebuild goes on. It returns the newest rebuild,
// also one that has ended. It comes before the first lease of the term.
func (s *Store) JoinRebuild(ctx context.Context, epoch int64) (r Rebuild, err error) {
	const what = "term of the rebuild"
	var fences int
	var q pgx.Batch // one round trip, which the start of a term waits for
	q.Queue(s.sql("rebuild_term"), s.cfg.Group, epoch, s.cfg.Owner, s.cfg.Projection).QueryRow(func(row pgx.Row) error { return row.Scan(&fences, nil) })
	q.Queue(statement("rebuild_read"), s.cfg.Projection, MostRedo).Query(func(rows pgx.Rows) (err error) {
		if r, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Rebuild]); errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		return err
	})
	if err = s.opened().batch(ctx, what, &q); err == nil && fences == 0 {
		err = wrapped(what, s.cfg.Table, ErrFenced)
	}
	return r, err
}

// ErrOtherRebuild means that another rebuild or load was asked for since the row was read.
var ErrOtherRebuild = errors.New("outbox: another rebuild or load was asked for")

// RecordRebuild writes down how far a rebuild has come, under the fence. With answered, what it
// was asked for is done. It returns [ErrOtherRebuild] when r is not the newest one.
func (s *Store) RecordRebuild(ctx context.Context, epoch int64, r Rebuild, answered bool) error {
	n, err := s.fenced(ctx, "progress of the rebuild", "rebuild_record", epoch, []any{s.cfg.Projection, r.Phase, r.OldIndex, r.NewIndex, r.LastNumber,
		r.EntityType, r.EntityID, r.Rows, r.Filled, r.Unreadable, s.Shape().text(r.Note), answered, r.Began, r.Failure})
	if err == nil && n == 0 {
		err = ErrOtherRebuild
	}
	return err
}

// Redo are the entities that the new index of a rebuild has refused, or may lack. What changes
// them is fenced: once a newer epoch has been committed it returns [ErrFenced], so that an old
// leader forgets nothing that its successor has kept.
type Redo struct {
	store *Store
	epoch int64
}

// Redo returns those of the store's projection, for the leader of a term.
func (s *Store) Redo(epoch int64) *Redo { return &Redo{s, epoch} }

// RedoEntity is an entity to be written again as an event of it would be.
type RedoEntity struct {
	Event
	Detail string // why
}

// Add keeps entities.
func (r *Redo) Add(ctx context.Context, in []RedoEntity) error {
	types, ids, versions := redoColumns(in)
	ops, details := make([]string, len(in)), make([]string, len(in))
	for i := range in {
		ops[i], details[i] = string(in[i].Op), r.store.Shape().text(in[i].Detail)
	}
	return r.change(ctx, "redo_add", types, ids, ops, versions, details)
}

// Done forgets entities that were written.
func (r *Redo) Done(ctx context.Context, in []RedoEntity) error {
	types, ids, versions := redoColumns(in)
	return r.change(ctx, "redo_done", types, ids, versions)
}

// redoes names the entities in errors.
const redoes = "entities to write again"

// clearPage is how many entities one statement forgets: there may be as many as the source has rows.
const clearPage = 2000

// Clear forgets all of them.
func (r *Redo) Clear(ctx context.Context) error {
	var entityType, entityID string // from which on entities are left
	for {
		n, err := r.store.fenced(ctx, redoes, "redo_clear", r.epoch, []any{r.store.cfg.Projection, entityType, entityID, clearPage}, &entityType, &entityID)
		if err != nil || n < clearPage {
			return err
		}
	}
}

// change does not count rows: of an entity that is kept at a newer version, none changes.
func (r *Redo) change(ctx context.Context, name string, args ...any) error {
	_, err := r.store.fenced(ctx, redoes, name, r.epoch, append([]any{r.store.cfg.Projection}, args...))
	return err
}

func redoColumns(in []RedoEntity) (types, ids []string, versions []int64) {
	for i := range in {
		types, ids, versions = append(types, in[i].Key.Type), append(ids, in[i].Key.ID.String()), append(versions, in[i].Version)
	}
	return types, ids, versions
}

// Take returns at most n entities after one, in their order.
func (r *Redo) Take(ctx context.Context, after RedoEntity, n int) ([]RedoEntity, error) {
	a := r.store.opened()
	return all(ctx, a.calls, redoes, a.sql.get("redo_take"), func(row pgx.CollectableRow) (e RedoEntity, err error) {
		var id string
		if err = row.Scan(&e.Key.Type, &id, &e.Op, &e.Version, &e.Detail); err == nil {
			e.Key.ID, err = readID(a.table.Entity, id)
		}
		return e, err
	}, r.store.cfg.Projection, after.Key.Type, after.Key.ID.String(), n)
}
