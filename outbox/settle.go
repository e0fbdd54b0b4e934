package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Settlement is what becomes of one claimed event.
type Settlement struct {
	Event   *Event
	Verdict Verdict
	// Older are ready events of the same entity, earlier and never claimed. Done settles
	// them too; with Retry and Waiting they wait too, because the event may not pass
	// them. After a Done, those are left in it that were settled: others have been changed
	// by hand meanwhile.
	Older  []Listed
	Reason Reason
	Detail string
	// Delay before the next attempt, for Retry. The database's clock starts it.
	Delay time.Duration
	// NotBefore, when not zero, is the retry time itself instead of Delay: an event
	// that waits behind another gets the other's time.
	NotBefore time.Time
}

// Settled counts what a settle did.
type Settled struct {
	Rows     int       // rows changed
	At       time.Time // database clock
	Mismatch int       // rows that were no longer ours: reclaimed, replayed or changed by hand
	Waits    []Wait    // rows that now wait, with the time the database gave them
}

// held is the guard of every write on a claimed row: it must be as it was claimed.
// The spelling keeps the planner away from the indexes on status and owner. It
// believes that they lead to next to nothing, because few rows are processing when
// it takes its statistics, and would go through all that are for each id.
const held = `
    and o.status is not distinct from 'processing' and o.owner is not distinct from $3
    and o.epoch is not distinct from $2`

const settleDone = `
with fence as materialized ({fence}), settled as (
  update {table} o
  set status = 'done', processed_at = now(), updated_at = now(),
      owner = null, lease_until = null, next_retry_at = null, error_reason = null, error = null, reclaims = 0
  where exists (select from fence) and o.id = any ($4::uuid[]) and o.processing_started_at is not distinct from $5{held}
  returning 1
)
select (select count(*) from fence), (select count(*) from settled), clock_timestamp()`

// settleOver settles besides what the settled events supersede, as long as it is ready.
// It says which, because a difference is rare.
const settleOver = `
with fence as materialized ({fence}), settled as (
  update {table} o
  set status = 'done', processed_at = now(), updated_at = now(),
      owner = null, lease_until = null, next_retry_at = null, error_reason = null, error = null, reclaims = 0
  where exists (select from fence) and o.id = any ($4::uuid[]) and o.processing_started_at is not distinct from $5{held}
  returning o.id
), superseded as (
  update {table} o
  set status = 'done', epoch = $2, processed_at = now(), updated_at = now(), error_reason = null, error = null, reclaims = 0
  where o.id = any (array(select t.id from unnest($6::uuid[], $7::uuid[]) as t(id, head) where t.head in (select id from settled)))
    and o.status is not distinct from 'pending' and o.next_retry_at is null
  returning o.id
)
select (select count(*) from fence), (select count(*) from settled), clock_timestamp(),
       (select count(*) from superseded), (select array_agg(id) from superseded having count(*) < $8)`

const settleRest = `
with fence as materialized ({fence}), settled as (
  update {table} o
  set status = t.status, attempts = o.attempts + t.charge, updated_at = clock_timestamp(),
      owner = null, lease_until = null, processing_started_at = null,
      next_retry_at = case when t.status = 'failed' then null
                           when t.not_before is not null then t.not_before
                           when t.delay is not null then now() + t.delay * interval '1 microsecond'
                           else o.next_retry_at end, -- given back: due again if it was
      error_reason = coalesce(t.reason, o.error_reason), error = coalesce(t.error, o.error),
      reclaims = case when t.charge > 0 then 0 else o.reclaims end
  from unnest($4::uuid[], $5::timestamptz[], $6::text[], $7::integer[], $8::bigint[], $9::timestamptz[], $10::text[], $11::text[])
       as t(id, claimed_at, status, charge, delay, not_before, reason, error)
  where exists (select from fence) and o.id = t.id and o.processing_started_at is not distinct from t.claimed_at{held}
  returning o.id, o.entity_type, o.entity_id, o.event_version, o.next_retry_at
)
select (select count(*) from fence), clock_timestamp(), s.id, s.entity_type, s.entity_id, s.event_version,
       case when isfinite(s.next_retry_at) then s.next_retry_at end
from (select 1) one left join settled s on true`

// putOff lets what is older than retried events wait until the first of those is due.
const putOff = `
with fence as materialized ({fence}), due as materialized (
  select min(next_retry_at) as at from {table} where id = any ($4::uuid[])
), settled as (
  update {table} o
  set next_retry_at = (select at from due), updated_at = clock_timestamp()
  where exists (select from fence) and exists (select from due where at is not null) and o.id = any ($3::uuid[])
    and o.status is not distinct from 'pending' and o.next_retry_at is null
  returning o.id, o.entity_type, o.entity_id, o.event_version, o.next_retry_at
)
select (select count(*) from fence), clock_timestamp(), s.id, s.entity_type, s.entity_id, s.event_version,
       case when isfinite(s.next_retry_at) then s.next_retry_at end
from (select 1) one left join settled s on true`

// Settle writes the fate of claimed events in one round trip and one transaction.
// A row that is no longer held as it was claimed is left alone and counted in
// Mismatch. It returns [ErrFenced], and has changed nothing, when a newer epoch
// has been committed.
func (s *Store) Settle(ctx context.Context, epoch int64, in []Settlement) (Settled, error) {
	var done, rest []*Settlement
	for i := range in {
		switch in[i].Verdict {
		case Done, Superseded:
			done = append(done, &in[i])
		case Retry, Failed, Waiting, GivenBack:
			rest = append(rest, &in[i])
		default:
			return Settled{}, fmt.Errorf("settle in %s: event %s has no verdict", s.cfg.Table, in[i].Event.ID)
		}
	}
	if len(in) == 0 {
		return Settled{}, nil
	}
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var b pgx.Batch
	b.Queue("select " + settleWait)
	var claims [][]*Settlement // nearly all come from one claim or two
	at := map[int64]int{}
	for _, st := range done {
		i, ok := at[st.Event.ClaimedAt.UnixMicro()]
		if !ok {
			i = len(claims)
			at[st.Event.ClaimedAt.UnixMicro()] = i
			claims = append(claims, nil)
		}
		claims[i] = append(claims[i], st)
	}
	for _, claim := range claims {
		s.queueDone(&b, epoch, claim)
	}
	if len(rest) > 0 {
		s.queueRest(&b, epoch, rest)
	}
	older := s.queueOff(&b, epoch, rest)
	out := Settled{}
	res := s.db.SendBatch(ctx, &b)
	_, err := res.Exec()
	for i := 0; err == nil && i < len(claims); i++ {
		err = s.readDone(res, claims[i], &out)
	}
	if err == nil && len(rest) > 0 {
		out.Rows, err = s.readRest(res, &out, out.Rows)
	}
	if err == nil && older {
		_, err = s.readRest(res, &out, 0)
	}
	if cerr := res.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return Settled{}, fmt.Errorf("settle in %s: %w", s.cfg.Table, err)
	}
	out.Mismatch = len(in) - out.Rows
	return out, nil
}

// queueDone queues the settlements of one claim.
func (s *Store) queueDone(b *pgx.Batch, epoch int64, claim []*Settlement) {
	ids := make(idArray, len(claim))
	n := 0
	for i, st := range claim {
		ids[i] = id(st.Event.ID)
		n += len(st.Older)
	}
	if n == 0 {
		b.Queue(s.sql.settleDone, s.cfg.Group, epoch, s.cfg.Owner, ids, claim[0].Event.ClaimedAt)
		return
	}
	older, heads := make(idArray, 0, n), make(idArray, 0, n)
	for _, st := range claim {
		for i := range st.Older {
			older, heads = append(older, id(st.Older[i].ID)), append(heads, id(st.Event.ID))
		}
	}
	b.Queue(s.sql.settleOver, s.cfg.Group, epoch, s.cfg.Owner, ids, claim[0].Event.ClaimedAt, older, heads, n)
}

func (s *Store) readDone(res pgx.BatchResults, claim []*Settlement, out *Settled) error {
	n := 0
	for _, st := range claim {
		n += len(st.Older)
	}
	var fences, rows, superseded int
	var which [][16]byte
	into := []any{&fences, &rows, &out.At, &superseded, &which}
	if n == 0 {
		into = into[:3]
	}
	if err := res.QueryRow().Scan(into...); err != nil {
		return err
	}
	if fences == 0 {
		return ErrFenced
	}
	out.Rows += rows
	if superseded < n {
		settled := make(map[uuid.UUID]bool, len(which))
		for _, x := range which {
			settled[x] = true
		}
		for _, st := range claim {
			st.Older = slices.DeleteFunc(st.Older, func(l Listed) bool { return !settled[l.ID] })
		}
	}
	return nil
}

// readRest adds the rows that it finds to n.
func (s *Store) readRest(res pgx.BatchResults, out *Settled, n int) (int, error) {
	rows, err := res.Query()
	if err != nil {
		return n, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			fences   int
			id, eid  *[16]byte
			typ      *string
			version  *int64
			notAgain *time.Time
		)
		if err := rows.Scan(&fences, &out.At, &id, &typ, &eid, &version, &notAgain); err != nil {
			return n, err
		}
		if fences == 0 {
			return n, ErrFenced
		}
		if id == nil {
			continue // no row changed
		}
		n++
		if notAgain != nil {
			out.Waits = append(out.Waits, Wait{ID: uuid.UUID(*id), Key: Key{*typ, uuid.UUID(*eid)}, Version: *version, At: *notAgain})
		}
	}
	return n, rows.Err()
}

// queueOff queues what waits with rest, if there is any.
func (s *Store) queueOff(b *pgx.Batch, epoch int64, rest []*Settlement) bool {
	var older, heads idArray
	for _, st := range rest {
		if st.Verdict != Retry && st.Verdict != Waiting {
			continue
		}
		for i := range st.Older {
			older = append(older, id(st.Older[i].ID))
		}
		if len(st.Older) > 0 {
			heads = append(heads, id(st.Event.ID))
		}
	}
	if len(older) > 0 {
		b.Queue(s.sql.putOff, s.cfg.Group, epoch, older, heads)
	}
	return len(older) > 0
}

func (s *Store) queueRest(b *pgx.Batch, epoch int64, rest []*Settlement) {
	n := len(rest)
	ids, claimed := make(idArray, n), make([]time.Time, n)
	status, charge := make([]string, n), make([]int32, n)
	delay, notBefore := make([]*int64, n), make([]*time.Time, n)
	reason, detail := make([]*string, n), make([]*string, n)
	for i, st := range rest {
		ids[i], claimed[i] = id(st.Event.ID), st.Event.ClaimedAt
		status[i] = "pending"
		switch st.Verdict {
		case Failed:
			status[i], charge[i] = "failed", 1
		case Retry:
			charge[i] = 1
		default: // waiting and given back are no attempts
		}
		if st.Verdict == Retry || st.Verdict == Waiting {
			if st.NotBefore.IsZero() {
				d := st.Delay.Microseconds()
				delay[i] = &d
			} else {
				notBefore[i] = &st.NotBefore
			}
		}
		if st.Reason != "" {
			r, d := string(st.Reason), Sanitize(st.Detail)
			reason[i], detail[i] = &r, &d
		}
	}
	b.Queue(s.sql.settleRest, s.cfg.Group, epoch, s.cfg.Owner, ids, claimed, status, charge, delay, notBefore, reason, detail)
}

// Refused reports whether err is the database's refusal of what was sent, which
// sending it again does not change: not a lost connection, a conflict, a full disk, a
// cancelled statement or a server on its way down.
func Refused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(pg.Code) < 2 {
		return false
	}
	switch pg.Code[:2] {
	case "08", "25", "40", "53", "55", "57", "58", "XX":
		return false
	default:
		return true
	}
}

// settleWait is how long a settle waits for the locks of others, in PostgreSQL's spelling.
const settleWait = "set_config('lock_timeout', '1s', true)"

// LockedOut reports whether err means that somebody else has held the lock of a row for
// too long.
func LockedOut(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == lockNotAvailable
}

// Unreachable reports whether err means that no connection could be had.
func Unreachable(err error) bool {
	_, ok := errors.AsType[*pgconn.ConnectError](err)
	return ok
}

// maxDetail is enough for an Elasticsearch error with its cause.
const maxDetail = 1000

// Sanitize makes a text fit for the column error: valid UTF-8, no null bytes,
// which Postgres refuses, and at most 1,000 bytes.
func Sanitize(text string) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
	if len(text) <= maxDetail {
		return text
	}
	cut := maxDetail
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}

const wake = `
with fence as materialized ({fence}), asleep as materialized (
  select ctid as tid
  from {table}
  where exists (select from fence)
    and status = 'pending' and next_retry_at > now() and isfinite(next_retry_at) and (error_reason is null or error_reason = any ($3::text[]))
  for update skip locked
), woken as (
  update {table} o
  set next_retry_at = clock_timestamp(), updated_at = clock_timestamp()
  where o.ctid = any (array(select tid from asleep))
  returning 1
)
select (select count(*) from fence), (select count(*) from woken)`

// Wake makes the rows due that wait because of one of reasons, or behind another
// event of their entity, and returns how many. It is called when an outage has ended, so
// that the batches it met go on at once. A row that somebody else has locked keeps its
// retry time.
func (s *Store) Wake(ctx context.Context, epoch int64, reasons []Reason) (int, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	names := make([]string, len(reasons))
	for i, r := range reasons {
		names[i] = string(r)
	}
	var fences, n int
	err := s.db.QueryRow(ctx, s.sql.wake, s.cfg.Group, epoch, names).Scan(&fences, &n)
	if err == nil && fences == 0 {
		err = ErrFenced
	}
	if err != nil {
		return 0, fmt.Errorf("wake waiting events of %s: %w", s.cfg.Table, err)
	}
	return n, nil
}
