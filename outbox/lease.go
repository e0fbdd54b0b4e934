package outbox

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// Group is the rows of one entity that are to be leased together, lowest first.
type Group struct {
	Key  Key
	Rows []Row
	// Check has the database make sure that no open row of the entity comes before them.
	// Without it, the rows must come from one list that began at the head, and all rows of
	// the entity that were in flight then, or have been leased since, must be settled.
	Check bool
}

// Obstacle is the earliest row in the way of a group: an open one or, in a strict store, one
// that has failed.
type Obstacle struct {
	Position
	Ready   bool          // it may go itself, or is put off behind one that is gone
	Foreign bool          // another worker has claimed it
	Wait    time.Duration // until it may go, a day at most
}

// Lease is the answer to a lease, by group. A group of which no row is as it was listed
// has neither events nor an obstacle.
type Lease struct {
	Events    [][]Event // lowest first
	Obstacles []*Obstacle
}

// Count returns the number of leased events.
func (l *Lease) Count() (n int) {
	for _, g := range l.Events {
		n += len(g)
	}
	return n
}

// Due returns how many of them were due: tried before, sent again, or taken back.
func (l *Lease) Due() (n int) {
	for _, g := range l.Events {
		for i := range g {
			if g[i].Due() {
				n++
			}
		}
	}
	return n
}

// Lease leases the groups as one batch, at most one group of an entity: of each group all
// rows that are as they were listed, or none when there is an obstacle. It returns
// [ErrFenced] when a newer epoch has been committed. After an error that is not [Answered]
// the lease may exist: send nothing, and see [Store.Abandon].
func (s *Store) Lease(ctx context.Context, epoch int64, batch uuid.UUID, groups []Group) (*Lease, error) {
	type asked struct {
		row     *Row
		n, rows pgtype.Int4
	}
	var in []asked
	for i := range groups {
		g := &groups[i]
		rows := len(g.Rows)
		if g.Check {
			rows = 0
		}
		for j := range g.Rows {
			in = append(in, asked{&g.Rows[j], pgtype.Int4{Int32: int32(i), Valid: true}, pgtype.Int4{Int32: int32(rows), Valid: true}})
		}
	}
	args := []any{
		s.cfg.Group, epoch, s.cfg.Owner, [16]byte(batch), s.cfg.Lease,
		arrayOf(in, func(a *asked) *pgtype.TID { return &a.row.address }), arrayOf(in, func(a *asked) *ID { return &a.row.ID }),
		arrayOf(in, func(a *asked) *pgtype.Int4 { return &a.n }), arrayOf(in, func(a *asked) *pgtype.Int4 { return &a.rows }), s.cfg.Strict,
	}
	a := leaseAnswer{
		decoder: decoder{table: s.Shape()},
		out:     &Lease{Events: make([][]Event, len(groups)), Obstacles: make([]*Obstacle, len(groups))},
	}
	events := make([]Event, len(in)) // one allocation for all groups
	for i := range groups {
		n := len(groups[i].Rows)
		a.out.Events[i], events = events[:0:n], events[n:]
	}
	const what = "lease events"
	err := s.opened().each(ctx, what, s.sql("lease"), args, []any{rawRow(a.row)}, func() {})
	if err == nil && a.fenced { // an error of a row would have the driver forget the statement
		err = wrapped(what, s.cfg.Table, ErrFenced)
	}
	if err != nil {
		if Slow(err) && len(groups) == 1 {
			err = fmt.Errorf("%w, with %s alone", err, groups[0].Key)
		}
		return nil, err
	}
	for _, g := range a.out.Events {
		slices.SortFunc(g, func(x, y Event) int { return x.Compare(y.Row) })
	}
	return a.out, nil
}

// leaseAnswer collects the rows of an answer to lease.sql.
type leaseAnswer struct {
	decoder
	out    *Lease
	fenced bool
}

func (a *leaseAnswer) row(raw [][]byte) error {
	var e Event
	n, wait, err := a.read(raw, &e)
	switch {
	case err != nil:
		return err
	case n < 0:
		a.fenced = true
		return nil
	case n >= len(a.out.Events):
		return fmt.Errorf("answer is for group %d of %d", n+1, len(a.out.Events))
	case wait != nil:
		foreign := e.Op == "processing"
		a.out.Obstacles[n] = &Obstacle{
			Position: Position{e.Version, e.ID}, Foreign: foreign, Ready: !foreign && e.Attempts == 1,
			Wait: time.Duration(*wait * float64(time.Second)),
		}
		return nil
	}
	a.out.Events[n] = append(a.out.Events[n], e)
	return nil
}

// leaseColumns are those of an answer to lease.sql.
const leaseColumns = 18

// read reads the wire by hand; see decoder.
func (a *leaseAnswer) read(raw [][]byte, e *Event) (n int, wait *float64, err error) {
	if len(raw) != leaseColumns {
		return 0, nil, fmt.Errorf("answer has %d columns", len(raw))
	}
	for i, size := range [leaseColumns]int{0: 4, 5: 8, 6: 4, 7: 4, 8: 8, 12: 6, 13: 4, 15: 4} {
		if size > 0 && len(raw[i]) != size {
			return 0, nil, fmt.Errorf("answer has %d bytes in column %d, want %d", len(raw[i]), i+1, size)
		}
	}
	if n = int(int32(binary.BigEndian.Uint32(raw[0]))); n < 0 {
		return n, nil, nil
	}
	if e.ID, err = a.id(a.table.ID, raw[1]); err != nil {
		return 0, nil, err
	}
	if e.Key.ID, err = a.id(a.table.Entity, raw[3]); err != nil {
		return 0, nil, err
	}
	e.Key.Type, e.Op = repeated(&a.typ, raw[2]), Op(repeated(&a.op, raw[4]))
	e.Version = int64(binary.BigEndian.Uint64(raw[5]))
	e.Attempts, e.Reclaims = int(int32(binary.BigEndian.Uint32(raw[6]))), int(int32(binary.BigEndian.Uint32(raw[7])))
	e.CreatedAt = timestamp(int64(binary.BigEndian.Uint64(raw[8])))
	e.Traceparent, e.Tracestate, e.Correlation = string(raw[9]), string(raw[10]), string(raw[11])
	e.address, e.version = addressOf(raw[12]), pgtype.Uint32{Uint32: binary.BigEndian.Uint32(raw[13]), Valid: true}
	if len(raw[14]) == 8 {
		e.retryAt = momentOf(int64(binary.BigEndian.Uint64(raw[14])))
	}
	e.replays = int32(binary.BigEndian.Uint32(raw[15]))
	if len(raw[16]) == 8 {
		e.LeasedAt = timestamp(int64(binary.BigEndian.Uint64(raw[16])))
	}
	if len(raw[17]) == 8 {
		f := math.Float64frombits(binary.BigEndian.Uint64(raw[17]))
		wait = &f
	}
	return n, wait, nil
}
