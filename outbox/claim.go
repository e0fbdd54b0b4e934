package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ClaimRequest says how much to claim and where to look.
type ClaimRequest struct {
	Epoch int64
	Limit int // rows of each kind (due, ready); > 0
	// Listed, when not nil, are the ready rows to claim instead of those at the head
	// of the index: a part of what [Store.List] has returned, in its order.
	Listed []uuid.UUID
}

// Blocked names a row that was there to be claimed and could not be: somebody
// else holds its lock. Later events of its entity must not pass it.
type Blocked struct {
	Due     bool // found among the due rows, otherwise among the ready ones
	ID      uuid.UUID
	Key     Key
	Version int64
}

// Claimed is the result of a claim.
type Claimed struct {
	Due     []Event // their retry time had come; ordered by it, then by version
	Ready   []Event // ordered by version
	Blocked []Blocked
	// DueCandidates and ReadyCandidates count the rows the claim looked at. Below
	// the limit, the look reached the end of what is there.
	DueCandidates, ReadyCandidates int
	Now                            time.Time     // database clock when the look began; zero when it found nothing
	ReadyCost                      time.Duration // time spent in Postgres on the ready look, as seen from here
}

// Events returns the number of claimed events.
func (c *Claimed) Events() int { return len(c.Due) + len(c.Ready) }

// The ways to a candidate. Ready and due ones are each at the head of a partial index
// of their own. (now() can bound an index scan; clock_timestamp() would be asked for
// every waiting row.)
const (
	readyCandidates = `
  from {table}
  where status = 'pending' and next_retry_at is null
  order by event_version
  limit $5`

	listedCandidates = `
  from {table}
  where id = any ($5::uuid[]) and status is not distinct from 'pending' and next_retry_at is null
  order by event_version`

	dueCandidates = `
  from {table}
  where status = 'pending' and next_retry_at is not null and next_retry_at <= now()
  order by next_retry_at, event_version
  limit $5`
)

// What the two claims have in common. The fence is asked for only when there is a
// candidate, so that an idle poll writes nothing. A row is reached by its address,
// never by an index on status.
const (
	claimFence = `fence as materialized (
  select from weft_leader
  where group_name = $1 and epoch = $2 and exists (select from candidates)
  for key share
)`

	fencedCandidates = `exists (select from fence)
    and o.ctid = any (array(select tid from candidates))
    and o.status is not distinct from 'pending'`

	claimSet = `
  set status = 'processing', owner = $3, epoch = $2, lease_until = (select now() + $4::bigint * interval '1 microsecond'),
      processing_started_at = now(), updated_at = now()`

	claimReturning = `
  returning o.id, o.entity_type, o.entity_id, o.op, o.event_version, o.attempts, o.reclaims,
            case when isfinite(o.created_at) then o.created_at else 'epoch' end as created_at,
            coalesce(o.traceparent, '') as traceparent, coalesce(o.tracestate, '') as tracestate`
)

// boldClaim updates the candidates as they are and waits, shortly, where somebody else
// holds a lock. It writes each row once, keeps nothing and says least: a row that is
// not among its answers is no longer pending, and no answer may mean the fence.
const boldClaim = `
with candidates as materialized (
  select ctid as tid{candidates}
), ` + claimFence + `
update {table} o` + claimSet + `
  where ` + fencedCandidates + claimReturning + `, now(), (select count(*) from candidates)`

// carefulClaim locks first and passes over what somebody else holds. What it could not
// take comes back too, marked.
const carefulClaim = `
with candidates as materialized (
  select ctid as tid, id, entity_type, entity_id, event_version{candidates}
), ` + claimFence + `, locked as materialized (
  select o.ctid as tid
  from {table} o
  where ` + fencedCandidates + `
  for update skip locked
), claimed as (
  update {table} o` + claimSet + `
  where o.ctid = any (array(select tid from locked))` + claimReturning + `
)
select id, entity_type, entity_id, op, event_version, attempts, reclaims, created_at,
       traceparent, tracestate, now(), (select count(*) from candidates), true, (select count(*) from fence)
from claimed
union all
select c.id, c.entity_type, c.entity_id, '', c.event_version, 0, 0, 'epoch',
       '', '', now(), (select count(*) from candidates), false, (select count(*) from fence)
from candidates c
where c.id not in (select id from claimed) -- hashed, whatever the planner expects`

// claimTexts are the two claims of one kind of candidate.
type claimTexts struct{ bold, careful string }

func newClaimTexts(candidates string) claimTexts {
	with := func(claim string) string { return strings.Replace(claim, "{candidates}", candidates, 1) }
	return claimTexts{bold: with(boldClaim), careful: with(carefulClaim)}
}

const (
	// boldWait is how long a bold claim waits for a lock, in PostgreSQL's spelling.
	boldWait = "set_config('lock_timeout', '20ms', true)"
	// carefulFor is how long claims are careful after a lock was in the way.
	carefulFor = 5 * time.Second
)

const list = `
select id
from {table}
where status = 'pending' and next_retry_at is null
order by event_version
limit $1`

// List returns the ids of up to limit ready rows, lowest version first, without
// claiming them.
//
// It is for a time when looking at the head of the ready index is expensive: a long
// transaction anywhere in the database keeps the index entries of settled rows
// alive, and every look steps over all of them. One list then serves many claims.
// Because all of it is seen at one moment, claiming it in its order keeps the order
// per entity: an event is on the list only together with the earlier ones of its
// entity. (Looking from the last claimed version would not: an event that was
// committed late would be passed.)
func (s *Store) List(ctx context.Context, limit int) ([]uuid.UUID, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	rows, err := s.db.Query(ctx, s.sql.list, limit)
	if err != nil {
		return nil, fmt.Errorf("list ready events of %s: %w", s.cfg.Table, err)
	}
	defer rows.Close()
	var out []uuid.UUID
	for rows.Next() {
		var id [16]byte
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("list ready events of %s: %w", s.cfg.Table, err)
		}
		out = append(out, id)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list ready events of %s: %w", s.cfg.Table, err)
	}
	return out, nil
}

// peek answers whether there is anything to claim, without a write.
const peek = `
select (select true from {table} where status = 'pending' and next_retry_at is null
        order by event_version limit 1) is not null
    or (select true from {table} where status = 'pending' and next_retry_at is not null and next_retry_at <= now()
        order by next_retry_at limit 1) is not null`

// Peek reports whether a claim would find a row. An idle leader asks this instead
// of claiming.
func (s *Store) Peek(ctx context.Context) (bool, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var found bool
	if err := s.db.QueryRow(ctx, s.sql.peek).Scan(&found); err != nil {
		return false, fmt.Errorf("peek at %s: %w", s.cfg.Table, err)
	}
	return found, nil
}

// Claim takes up to Limit due and up to Limit ready rows for the lease, in one
// round trip. Rows locked by somebody else are passed over and reported in
// Blocked. It returns [ErrFenced] when a newer epoch has been committed and there
// was something to claim.
func (s *Store) Claim(ctx context.Context, r ClaimRequest) (*Claimed, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	if time.Since(s.born) >= time.Duration(s.carefulUntil.Load()) {
		c, err := s.claim(ctx, r, false)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		switch {
		case ok && pg.Code == lockNotAvailable:
			s.carefulUntil.Store(int64(time.Since(s.born) + carefulFor))
		case err != nil:
			return nil, fmt.Errorf("claim from %s: %w", s.cfg.Table, err)
		case c.Events() > 0:
			return c, nil
		}
	}
	c, err := s.claim(ctx, r, true)
	if err != nil {
		return nil, fmt.Errorf("claim from %s: %w", s.cfg.Table, err)
	}
	if len(c.Blocked) > 0 {
		s.carefulUntil.Store(int64(time.Since(s.born) + carefulFor))
	}
	return c, nil
}

const lockNotAvailable = "55P03"

func (s *Store) claim(ctx context.Context, r ClaimRequest, careful bool) (*Claimed, error) {
	text := func(t claimTexts) string {
		if careful {
			return t.careful
		}
		return t.bold
	}
	var b pgx.Batch
	if !careful {
		b.Queue("select " + boldWait)
	}
	lease := s.cfg.Lease.Microseconds()
	b.Queue(text(s.sql.claimDue), s.cfg.Group, r.Epoch, s.cfg.Owner, lease, r.Limit)
	if r.Listed == nil {
		b.Queue(text(s.sql.claimReady), s.cfg.Group, r.Epoch, s.cfg.Owner, lease, r.Limit)
	} else {
		ids := make([][16]byte, len(r.Listed))
		for i, id := range r.Listed {
			ids[i] = id
		}
		b.Queue(text(s.sql.claimListed), s.cfg.Group, r.Epoch, s.cfg.Owner, lease, ids)
	}
	out := &Claimed{}
	res := s.db.SendBatch(ctx, &b)
	var err error
	if !careful {
		_, err = res.Exec()
	}
	if err == nil {
		err = s.readClaim(res, true, &out.Due, &out.DueCandidates, out)
	}
	start := time.Now()
	if err == nil {
		err = s.readClaim(res, false, &out.Ready, &out.ReadyCandidates, out)
	}
	out.ReadyCost = time.Since(start)
	if cerr := res.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *Store) readClaim(res pgx.BatchResults, due bool, events *[]Event, candidates *int, out *Claimed) error {
	rows, err := res.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	var d claimDecoder
	for rows.Next() {
		c, err := d.decode(rows)
		if err != nil {
			return err
		}
		*candidates, out.Now = c.candidates, c.ClaimedAt
		switch {
		case c.fenced:
			return ErrFenced
		case c.taken:
			*events = append(*events, c.Event)
		default:
			out.Blocked = append(out.Blocked, Blocked{Due: due, ID: c.ID, Key: c.Key, Version: c.Version})
		}
	}
	return rows.Err()
}

// A row that is being settled at this moment is passed over: it needs no lease any
// more, and to wait for it could be to wait for each other.
const renew = `
with fence as materialized ({fence}), ours as materialized (
  select o.ctid as tid
  from unnest($4::uuid[], $5::timestamptz[]) as t(id, claimed_at)
  join {table} o on o.id = t.id
  where exists (select from fence) and o.processing_started_at is not distinct from t.claimed_at{held}
  for update of o skip locked
), renewed as (
  update {table} o
  set lease_until = (select now() + $6::bigint * interval '1 microsecond')
  where o.ctid = any (array(select tid from ours))
  returning 1
)
select (select count(*) from fence), (select count(*) from renewed)`

// Renew extends the leases of events by the lease from now and returns how many
// rows were still held. It returns [ErrFenced] when a newer epoch has taken over.
func (s *Store) Renew(ctx context.Context, epoch int64, events []Event) (int, error) {
	if len(events) == 0 {
		return 0, nil
	}
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	ids, claimed := make([][16]byte, len(events)), make([]time.Time, len(events))
	for i := range events {
		ids[i], claimed[i] = events[i].ID, events[i].ClaimedAt
	}
	var fences, n int
	err := s.db.QueryRow(ctx, s.sql.renew, s.cfg.Group, epoch, s.cfg.Owner, ids, claimed, s.cfg.Lease.Microseconds()).Scan(&fences, &n)
	if err == nil && fences == 0 {
		err = ErrFenced
	}
	if err != nil {
		return 0, fmt.Errorf("renew leases in %s: %w", s.cfg.Table, err)
	}
	return n, nil
}

const waiting = `
select id, entity_type, entity_id, event_version,
       case when isfinite(next_retry_at) then next_retry_at else now() + interval '100 years' end
from {table}
where status = 'pending' and next_retry_at is not null
union all
select id, entity_type, entity_id, event_version,
       case when isfinite(lease_until) then lease_until else now() end + interval '10 seconds'
from {table}
where status = 'processing' and (epoch is null or epoch < $1)`

// Wait is a pending row that must not be tried before At.
type Wait struct {
	ID      uuid.UUID
	Key     Key
	Version int64
	At      time.Time // database clock
}

// Waits calls yield for each row that a later event of its entity must not pass, in no
// order: those that wait for their retry time, and those that another worker still
// holds, until its lease has been over for a while. A new leader loads them once.
func (s *Store) Waits(ctx context.Context, epoch int64, yield func(Wait)) error {
	ctx, cancel := context.WithTimeout(ctx, 6*s.cfg.Timeout)
	defer cancel()
	rows, err := s.db.Query(ctx, s.sql.waiting, epoch)
	if err != nil {
		return fmt.Errorf("load waiting events of %s: %w", s.cfg.Table, err)
	}
	defer rows.Close()
	for rows.Next() {
		var w Wait
		if err := rows.Scan((*[16]byte)(&w.ID), &w.Key.Type, (*[16]byte)(&w.Key.ID), &w.Version, &w.At); err != nil {
			return fmt.Errorf("load waiting events of %s: %w", s.cfg.Table, err)
		}
		yield(w)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("load waiting events of %s: %w", s.cfg.Table, err)
	}
	return nil
}
