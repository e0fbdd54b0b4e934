package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Settlement is the verdict on one leased event. An event of a batch without a settlement
// stays open, behind the earlier events of its entity.
type Settlement struct {
	Event   *Event
	Verdict Verdict // Done, Superseded, Retry or Failed
	Reason  Reason
	Detail  string
	Delay   time.Duration // before the next attempt, for Retry; the database's clock starts it

	Outcome *Outcome // the projection's answer for the entity's newest event; for reports
}

// Settled is the result of a settle.
type Settled struct {
	At   time.Time // when the events were done, or when [Store.Resolve] found that, by the database's clock; zero when none is done
	Left []Left
	// Slow is the smallest number of settlements that could not be written in time; 0 for none.
	// It is for whoever splits a settle.
	Slow int
	// Guessed is set by [Store.Resolve]: events whose rows have changed count as settled,
	// though somebody else may have changed them.
	Guessed bool
	// Kept is why done events stayed in the table instead of being archived or deleted; nil
	// when they did not have to.
	Kept error
}

// Left is an entity of which nothing was settled: its events are open, without a lease.
type Left struct {
	Key Key
	Err error // why
}

// The reasons for Left besides the database's own.
var (
	// ErrChanged means that somebody has changed a row while it was leased.
	ErrChanged = errors.New("outbox: a row was changed while it was leased")
	// ErrLocked means that somebody else holds the lock of a row.
	ErrLocked = errors.New("outbox: somebody else holds the lock of a row")
	// ErrInterrupted means that a settle has left the entity open, and that its answer, which
	// said why, was lost.
	ErrInterrupted = errors.New("outbox: the settle was interrupted")
)

// errNoLease means that the batch has no lease: an earlier settle has ended it.
var errNoLease = errors.New("outbox: the batch has no lease")

// Settle writes the fate of a batch and ends its lease. An entity is settled whole or not at
// all; its events must be adjacent in in. It returns [ErrFenced], and has changed nothing,
// when a newer epoch has been committed. Without settlements it ends the lease of a batch of which
// nothing was sent. After an error that is [Refused], which a row of one
// entity may have caused, or [Locked], nothing has changed either. After any other the outcome
// is unknown: call [Store.Resolve].
//
// A settle takes one round trip. A locked or changed row costs a second one.
func (s *Store) Settle(ctx context.Context, epoch int64, batch uuid.UUID, in []Settlement) (Settled, error) {
	b := settling{store: s, epoch: epoch, batch: batch, in: in, finished: s.cfg.Finished}
	if err := b.settle(ctx); err != nil {
		return Settled{}, fmt.Errorf("settle in %s: %w", s.cfg.Table, err)
	}
	return b.out, nil
}

// settling is a settle in progress.
type settling struct {
	store    *Store
	epoch    int64
	batch    uuid.UUID
	in       []Settlement
	finished Finished
	out      Settled
}

// settle first assumes that the rows are as they were leased. When one is locked or changed,
// it locks the rows and settles the others.
func (b *settling) settle(ctx context.Context) error {
	err := b.plainly(ctx)
	if code := sqlState(err); code == pgerrcode.LockNotAvailable || code == codeChanged {
		err = b.carefully(ctx)
	}
	switch {
	case err == nil:
		return nil
	case sqlState(err) == codeChanged:
		err = fmt.Errorf("%w: %w", ErrChanged, err)
	case !Refused(err) && !Locked(err):
		return known(err)
	}
	kept, unknown := b.kept(ctx)
	if kept {
		b.out.Kept = err
		return nil
	}
	return cmp.Or(unknown, err)
}

// known returns the error that a SQLSTATE of ours stands for, or else err.
func known(err error) error {
	switch sqlState(err) {
	case codeFenced:
		return ErrFenced
	case codeNoLease:
		return errNoLease
	default:
		return err
	}
}

// plainly settles all rows as they were leased, or none: a changed or locked row makes the
// transaction fail.
func (b *settling) plainly(ctx context.Context) error {
	ctx, cancel := b.store.opened().deadline(ctx)
	defer cancel()
	var err error
	b.out.At, err = b.write(ctx, b.store.db, b.in)
	return err
}

// kept settles again with the done events left in the table, in case the database refused
// only to archive or delete them. It reports whether that succeeded; an error says that this
// is unknown.
func (b *settling) kept(ctx context.Context) (ok bool, unknown error) {
	if b.finished == Keep {
		return false, nil
	}
	keep := *b
	keep.finished = Keep
	switch err := keep.plainly(ctx); {
	case err == nil:
		b.out = keep.out
		return true, nil
	case Refused(err), Locked(err), sqlState(err) == codeChanged:
		return false, nil
	default:
		return false, known(err)
	}
}

// lockWait is how long a settle waits for the locks of others.
const lockWait = "select set_config('lock_timeout', '20ms', true)"

// write sends the statements of a settle as one transaction.
func (b *settling) write(ctx context.Context, db DB, in []Settlement) (at time.Time, err error) {
	var q pgx.Batch
	q.Queue(lockWait)
	q.Queue(b.store.sql("close_lease"), b.store.cfg.Group, b.epoch, b.store.cfg.Owner, [16]byte(b.batch))
	var done, rest []Settlement
	for i := range in {
		switch in[i].Verdict {
		case Done, Superseded:
			done = append(done, in[i])
		case Retry, Failed:
			rest = append(rest, in[i])
		default:
			return at, fmt.Errorf("event %s has no verdict", in[i].Event.ID)
		}
	}
	if len(done) > 0 {
		q.Queue(b.store.sql("done_"+string(b.finished)), append(rowParams(done), done[0].Event.LeasedAt)...).
			QueryRow(func(row pgx.Row) error { return row.Scan(nil, &at) })
	}
	if len(rest) > 0 {
		q.Queue(b.store.sql("not_done"), append(rowParams(rest), b.restParams(rest)...)...)
	}
	err = db.SendBatch(ctx, &q).Close()
	return at, err
}

// rowParams returns the parameters that name rows as they were leased.
func rowParams(in []Settlement) []any {
	return []any{
		arrayOf(in, func(s *Settlement) *pgtype.TID { return &s.Event.address }), arrayOf(in, func(s *Settlement) *ID { return &s.Event.ID }),
		arrayOf(in, func(s *Settlement) *pgtype.Uint32 { return &s.Event.version }), len(in),
	}
}

func (b *settling) restParams(in []Settlement) []any {
	n := len(in)
	final, delay, reason, detail := make([]bool, n), make([]int64, n), make([]string, n), make([]string, n)
	for i := range in {
		final[i], delay[i] = in[i].Verdict == Failed, in[i].Delay.Microseconds()
		reason[i], detail[i] = string(in[i].Reason), b.store.Shape().text(OneLine(in[i].Detail, maxDetail))
	}
	return []any{final, delay, reason, detail}
}

// carefully locks the rows first, by their ids, and settles the entities whose rows it has
// all locked.
func (b *settling) carefully(ctx context.Context) error {
	ctx, cancel := b.store.opened().deadline(ctx)
	defer cancel()
	var locked []bool
	var at time.Time
	err := pgx.BeginFunc(ctx, b.store.db, func(tx pgx.Tx) (err error) {
		if _, err = tx.Exec(ctx, lockWait); err != nil {
			return err
		}
		if locked, err = b.lock(ctx, tx); err != nil {
			return err
		}
		var whole []Settlement
		for from, to := range entities(b.in) {
			if !slices.Contains(locked[from:to], false) {
				whole = append(whole, b.in[from:to]...)
			}
		}
		at, err = b.write(ctx, tx, whole)
		return err
	})
	if err == nil {
		b.out.At, b.out.Left = at, b.left(ctx, locked)
	}
	return err
}

// lock locks the rows that are as they were leased, updates their addresses and versions, and
// reports which are locked.
func (b *settling) lock(ctx context.Context, tx pgx.Tx) ([]bool, error) {
	n := len(b.in)
	ops, versions, retries, replays := make([]string, n), make([]int64, n), make([]pgtype.Timestamptz, n), make([]int32, n)
	for i := range b.in {
		e := b.in[i].Event
		ops[i], versions[i], retries[i], replays[i] = string(e.Op), e.Version, e.retryAt, e.replays
	}
	ids := arrayOf(b.in, func(s *Settlement) *ID { return &s.Event.ID })
	types := arrayOf(b.in, func(s *Settlement) *string { return &s.Event.Key.Type })
	entities := arrayOf(b.in, func(s *Settlement) *ID { return &s.Event.Key.ID })
	rows, err := tx.Query(ctx, b.store.sql("lock_rows"), ids, types, entities, ops, versions, retries, replays)
	if err != nil {
		return nil, err
	}
	locked := make([]bool, n)
	var (
		ord     int
		at      pgtype.TID
		version pgtype.Uint32
	)
	_, err = pgx.ForEachRow(rows, []any{&ord, &at, &version}, func() error {
		locked[ord-1] = true
		b.in[ord-1].Event.address, b.in[ord-1].Event.version = at, version
		return nil
	})
	return locked, err
}

// left returns the entities of which not every row was locked: with ErrLocked those without a
// changed row. The reasons are for the log: after an error all have ErrChanged.
func (b *settling) left(ctx context.Context, locked []bool) (left []Left) {
	if !slices.Contains(locked, false) {
		return nil
	}
	changed, err := b.store.changed(ctx, b.in)
	for from, to := range entities(b.in) {
		if !slices.Contains(locked[from:to], false) {
			continue
		}
		why := ErrChanged
		if err == nil && !slices.Contains(changed[from:to], true) {
			why = ErrLocked
		}
		left = append(left, Left{b.in[from].Event.Key, why})
	}
	return left
}

// changed reports which rows are no longer as they were leased.
func (s *Store) changed(ctx context.Context, in []Settlement) ([]bool, error) {
	out := make([]bool, len(in))
	var ord int
	err := s.opened().each(ctx, "fates of events", s.sql("changed_rows"),
		[]any{arrayOf(in, func(s *Settlement) *ID { return &s.Event.ID }), arrayOf(in, func(s *Settlement) *pgtype.Uint32 { return &s.Event.version })},
		[]any{&ord}, func() { out[ord-1] = true })
	return out, err
}

// entities yields where the settlements of each entity begin and end.
func entities(in []Settlement) iter.Seq2[int, int] {
	return func(yield func(from, to int) bool) {
		from := 0
		for to := 1; to <= len(in); to++ {
			if to < len(in) && in[to].Event.Key == in[from].Event.Key {
				continue
			}
			if !yield(from, to) {
				return
			}
			from = to
		}
	}
}

// Half is some entities of a batch, with a lease of their own.
type Half struct {
	Batch       uuid.UUID // of the lease
	Settlements []Settlement
}

// Halve divides settlements between two entities, as near the middle as it can; ok is false
// when all are of one entity.
func Halve(in []Settlement) (halves [2]Half, ok bool) {
	middle := len(in) / 2
	for d := range in {
		for _, at := range [2]int{middle - d, middle + d} {
			if at > 0 && at < len(in) && in[at-1].Event.Key != in[at].Event.Key {
				return [2]Half{{uuid.New(), in[:at]}, {uuid.New(), in[at:]}}, true
			}
		}
	}
	return halves, false
}

// Split makes two leases of one, so that each half can be settled by itself. After an error
// call [Store.Resolve]: when the lease has ended, it was split, or settled by an earlier call.
func (s *Store) Split(ctx context.Context, epoch int64, batch uuid.UUID, halves [2]Half) error {
	args := []any{s.cfg.Group, epoch, s.cfg.Owner, [16]byte(batch)}
	for _, h := range halves {
		args = append(args, [16]byte(h.Batch), arrayOf(h.Settlements, func(s *Settlement) *ID { return &s.Event.ID }))
	}
	_, err := s.opened().exec(ctx, "lease that is split", s.sql("split_lease"), args...)
	return err
}

// maxDetail is enough for an Elasticsearch error with its cause, in characters.
const maxDetail = 1000

// OneLine makes a text fit for a column, a log and a terminal: valid UTF-8, one space for
// each run of spaces and control characters, and at most most characters.
func OneLine(text string, most int) string {
	if text == "" {
		return ""
	}
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}
