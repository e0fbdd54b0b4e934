package outbox

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// Position is a place in the order of events.
type Position struct {
	Version int64
	ID      ID
}

// Compare orders positions by (event_version, id), the one order of events everywhere.
func (p Position) Compare(o Position) int {
	return cmp.Or(cmp.Compare(p.Version, o.Version), p.ID.Compare(o.ID))
}

// ListRequest says what to list, and from where.
type ListRequest struct {
	Ready, Due int       // most rows of each kind; 0 for none
	From       *Position // of the ready rows; nil for the head of the index
	Newest     bool      // the newest ready rows instead
	Back       bool      // the lowest ready rows alone: Due and From are zero
	Entity     *Key      // the lowest open rows of one entity instead, Ready of them
	// Without names batches in flight, whose ready rows are left out. It must not name a
	// batch whose lease may be lost.
	Without []uuid.UUID
}

// List is the answer to a list: one snapshot, without a lease.
type List struct {
	Ready    []Row         // lowest first
	Due      []Row         // their retry time has come
	Suspects map[ID]bool   // they may be the cause of crashes: see sql/suspect.sql
	Look     time.Duration // time PostgreSQL took to find the first ready row, or that there is none
	Took     time.Duration // and the last one
}

// List returns what may go. It writes nothing.
func (s *Store) List(ctx context.Context, r ListRequest) (*List, error) {
	t := s.Shape()
	from := cmp.Or(r.From, t.head())
	name, args := "list", []any{r.Ready, from.Version, &from.ID, r.Due, rawUUIDs(r.Without)}
	switch {
	case r.Entity != nil:
		name, args = "list_entity", []any{r.Entity.Type, &r.Entity.ID, r.Ready}
	case r.Newest:
		name, args = "list_newest", []any{r.Ready}
	}
	out := &List{Suspects: map[ID]bool{}}
	d := decoder{table: t}
	read := rawRow(func(row [][]byte) error { return d.listed(row, out) })
	if err := s.opened().each(ctx, "list events", s.sql(name), args, []any{read}, func() {}); err != nil {
		return nil, err
	}
	if r.Newest {
		slices.Reverse(out.Ready)
	}
	return out, nil
}

// head returns the position before all events.
func (t *Table) head() *Position {
	p := &Position{Version: math.MinInt64, ID: UUID(uuid.Nil)}
	if t.ID == KindNumber {
		p.ID = Number(math.MinInt64)
	}
	return p
}

// decoder parses the raw answers of one statement, because it runs for each event: the
// driver's scan costs three times as much. Texts that repeat are kept once, and ids share
// few allocations.
type decoder struct {
	table   *Table
	typ, op string
	ids     strings.Builder
}

// idChunk is how many bytes of ids share an allocation.
const idChunk = 32 << 10

func (d *decoder) id(kind IDKind, raw []byte) (ID, error) {
	if d.ids.Cap()-d.ids.Len() < len(raw) {
		d.ids = strings.Builder{}
		d.ids.Grow(max(idChunk, len(raw)))
	}
	from := d.ids.Len()
	d.ids.Write(raw)
	return idOf(kind, d.ids.String()[from:])
}

// repeated returns raw as a string, the last one if it is the same.
func repeated(last *string, raw []byte) string {
	if *last != string(raw) {
		*last = string(raw)
	}
	return *last
}

// listed reads one row of a list.
func (d *decoder) listed(raw [][]byte, out *List) error {
	var r Row
	if len(raw) == 8 && raw[2] == nil && len(raw[7]) == 8 { // the end of the ready rows
		if out.Took = lookOf(raw[7]); len(out.Ready) == 0 {
			out.Look = out.Took
		}
		return nil
	}
	if len(raw) != 8 || len(raw[0]) != 1 || len(raw[1]) != 6 || len(raw[5]) != 8 || len(raw[6]) != 1 || len(raw[7]) != 8 {
		return fmt.Errorf("answer has %d columns of unexpected sizes", len(raw))
	}
	var err error
	if r.ID, err = d.id(d.table.ID, raw[2]); err != nil {
		return err
	}
	if r.Key.ID, err = d.id(d.table.Entity, raw[4]); err != nil {
		return err
	}
	due, suspect := raw[0][0] == 1, raw[6][0] == 1
	r.address = addressOf(raw[1])
	r.Key.Type = repeated(&d.typ, raw[3])
	r.Version = int64(binary.BigEndian.Uint64(raw[5]))
	if suspect {
		out.Suspects[r.ID] = true
	}
	if due {
		out.Due = append(out.Due, r)
		return nil
	}
	out.Ready = append(out.Ready, r)
	out.Look = lookOf(raw[7])
	return nil
}

func lookOf(raw []byte) time.Duration {
	return time.Duration(binary.BigEndian.Uint64(raw)) * time.Microsecond
}

func addressOf(raw []byte) pgtype.TID {
	return pgtype.TID{BlockNumber: binary.BigEndian.Uint32(raw), OffsetNumber: binary.BigEndian.Uint16(raw[4:]), Valid: true}
}
