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
	// of the index: some of what [Store.List] has returned.
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
	Due     []Event // their retry time had come
	Ready   []Event // of the lowest versions, unless listed
	Blocked []Blocked
	// DueCandidates and ReadyCandidates count the rows the claim looked at. Below
	// the limit, the look reached the end of what is there.
	DueCandidates, ReadyCandidates int
	Now                            time.Time     // database clock when the look began; zero when it found nothing
	ReadyCost                      time.Duration // time PostgreSQL took to find the ready rows
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
  where id = any ($5::uuid[]) and status is not distinct from 'pending' and next_retry_at is null`

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

// lookCost is the time that a statement has taken up to its first answer, in
// microseconds: until then it looks for rows. It is the server's own time, because a
// slow network says nothing about the index.
const lookCost = `(select (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint)`

// boldClaim updates the candidates as they are and waits, shortly, where somebody else
// holds a lock. It writes each row once, keeps nothing and says least: a row that is
// not among its answers is no longer pending, or has been changed in another way while
// the claim waited, and no answer may mean the fence.
const boldClaim = `
with candidates as materialized (
  select ctid as tid{candidates}
), ` + claimFence + `
update {table} o` + claimSet + `
  where ` + fencedCandidates + claimReturning + `, now(), (select count(*) from candidates), ` + lookCost

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
       traceparent, tracestate, now(), (select count(*) from candidates), ` + lookCost + `, true, (select count(*) from fence)
from claimed
union all
select c.id, c.entity_type, c.entity_id, '', c.event_version, 0, 0, 'epoch',
       '', '', now(), (select count(*) from candidates), 0, false, (select count(*) from fence)
from candidates c
where c.id not in (select id from claimed) -- hashed, whatever the planner expects`

// claimTexts are the two claims of one kind of candidate. Due rows are few, and always
// claimed with care: a bold claim that takes none of them would not say that there were any.
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

// Claim takes up to Limit due and up to Limit ready rows for the lease, in one
// round trip unless somebody was in its way; then it may be twice as many. Rows locked by
// somebody else are passed over and reported in Blocked. It returns [ErrFenced] when a
// newer epoch has been committed and there was something to claim.
func (s *Store) Claim(ctx context.Context, r ClaimRequest) (*Claimed, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	bold := &Claimed{}
	if time.Since(s.born) >= time.Duration(s.carefulUntil.Load()) {
		c, err := s.claim(ctx, r, false)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		switch {
		case ok && pg.Code == lockNotAvailable:
			s.carefulUntil.Store(int64(time.Since(s.born) + carefulFor))
		case err != nil:
			return nil, fmt.Errorf("claim from %s: %w", s.cfg.Table, err)
		case len(c.Ready) > 0 && len(c.Ready) == c.ReadyCandidates:
			return c, nil
		default:
			bold = c
		}
	}
	c, err := s.claim(ctx, r, true)
	if err != nil {
		return nil, fmt.Errorf("claim from %s: %w", s.cfg.Table, err)
	}
	if len(c.Blocked) > 0 {
		s.carefulUntil.Store(int64(time.Since(s.born) + carefulFor))
	}
	c.Due, c.Ready = append(bold.Due, c.Due...), append(bold.Ready, c.Ready...)
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
	b.Queue(s.sql.claimDue, s.cfg.Group, r.Epoch, s.cfg.Owner, lease, r.Limit)
	if r.Listed == nil {
		b.Queue(text(s.sql.claimReady), s.cfg.Group, r.Epoch, s.cfg.Owner, lease, r.Limit)
	} else {
		ids := make(idArray, len(r.Listed))
		for i := range r.Listed {
			ids[i] = id(r.Listed[i])
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
	if err == nil {
		err = s.readClaim(res, false, &out.Ready, &out.ReadyCandidates, out)
	}
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
	var d rowDecoder
	for rows.Next() {
		c, err := d.decode(rows)
		if err != nil {
			return err
		}
		*candidates, out.Now = c.candidates, c.ClaimedAt
		if !due {
			out.ReadyCost = max(out.ReadyCost, c.cost)
		}
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
