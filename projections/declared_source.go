package projections

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// BatchQuerier is a Querier that sends several statements at once.
type BatchQuerier interface {
	Querier
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// declaredSource reads the rows of a declaration.
type declaredSource struct {
	declaration Declaration
	pool        BatchQuerier
	plan        string // further settings of the guard, for a plan that is tried

	naming atomic.Pointer[naming] // of the documents; set before the first row is read

	mu        sync.Mutex
	shape     *declaredShape // nil until it is known, and after the answer has changed
	described int            // times
}

func newDeclaredSource(d Declaration, pool BatchQuerier) *declaredSource {
	return &declaredSource{declaration: d, pool: pool}
}

// prepare implements source.
func (s *declaredSource) prepare(ctx context.Context) error {
	_, err := s.known(ctx)
	return err
}

// known returns the shape of the answer, which it asks for once.
func (s *declaredSource) known(ctx context.Context) (*declaredShape, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shape != nil {
		return s.shape, nil
	}
	shape, err := s.describe(ctx)
	if err != nil {
		return nil, err
	}
	s.shape = shape
	return shape, nil
}

func (s *declaredSource) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shape = nil
}

// describe asks the database what the query answers. Its errors are *outbox.Fault, shared by
// all events.
func (s *declaredSource) describe(ctx context.Context) (*declaredShape, error) {
	key, err := s.entityKey(ctx)
	if err != nil {
		return nil, err
	}
	naming, err := s.declaration.naming(key)
	if err != nil {
		return nil, s.fault(err)
	}
	columns, err := s.answer(ctx, key)
	if err != nil {
		if strings.HasPrefix(err.Error(), "expected ") { // pgx counts, and sends nothing
			return nil, s.fault(fmt.Errorf("it has another number of parameters than the key has columns, which is %d: filter the rows by %s", len(key.columns), key.filter()))
		}
		if state, ok := errors.AsType[*pgconn.PgError](err); ok && !pgerrcode.IsConnectionException(state.Code) {
			return nil, s.fault(fmt.Errorf("query refused: %w; %s", err, remedyOf(state)))
		}
		return nil, databaseFault(ctx, "source query", err)
	}
	categories, err := s.categories(ctx, columns)
	if err != nil {
		return nil, databaseFault(ctx, "types of the source query", err)
	}
	shape, err := shapeOf(s.declaration, key, columns, categories)
	if err != nil {
		return nil, s.fault(err)
	}
	// Every connection may have prepared the statement for the columns that were.
	name := fmt.Sprintf("/* %s, %d */ ", s.declaration.Name, s.described+1)
	shape.sql, shape.versions = name+shape.sql, name+shape.versions
	shape.probe, shape.columns = name+s.probe(), columns
	if err := s.visible(ctx, shape); err != nil {
		return nil, databaseFault(ctx, "source query", s.refused(err))
	}
	s.described++
	s.naming.Store(naming)
	return shape, nil
}

// probe is a statement whose answer has the columns of the query, and no row.
func (s *declaredSource) probe() string {
	return "select * from (\n" + s.declaration.query() + "\n) as q limit 0"
}

// answer returns the columns of the query as they are now, whatever is cached.
func (s *declaredSource) answer(ctx context.Context, key *entityKey) ([]pgconn.FieldDescription, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rows, err := s.pool.Query(ctx, s.probe(), append([]any{pgx.QueryExecModeDescribeExec}, key.args(nil)...)...)
	if err != nil {
		return nil, err
	}
	columns := slices.Clone(rows.FieldDescriptions())
	rows.Close()
	return columns, rows.Err()
}

func (s *declaredSource) fault(err error) error {
	setting := "source.query"
	if e, ok := errors.AsType[*settingError](err); ok {
		setting = e.setting
	}
	return &outbox.Fault{Reason: outbox.ReasonUnknown, Shared: true, Err: &SourceError{fmt.Errorf("%s%w", ofProjection(setting, s.declaration.Name), err)}}
}

// SourceError says what is wrong with a declaration or with what its query reads, and what to do.
type SourceError struct{ error }

// Unwrap returns what the server has said, if it has.
func (e *SourceError) Unwrap() error { return e.error }

// refused adds what to do where the server refuses a statement for what it names or does.
func (s *declaredSource) refused(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if _, said := errors.AsType[*outbox.Fault](err); !ok || said || pg.Code != pgerrcode.ReadOnlySQLTransaction && !strings.HasPrefix(pg.Code, "42") {
		return err
	}
	return s.fault(fmt.Errorf("%w; %s", err, remedyOf(pg)))
}

// ofProjection begins what is said of a setting where no place in a file does.
func ofProjection(setting, name string) string { return setting + " of projection " + name + ": " }

// remedyOf says what to do about the refusal of a query.
func remedyOf(pg *pgconn.PgError) string {
	if pg.Routine == "check_enable_rls" {
		return "documents of hidden rows would be deleted: let weft's role bypass row security, as in `alter role … bypassrls`"
	}
	switch pg.Code {
	case pgerrcode.InsufficientPrivilege:
		return "grant select on it to weft's role"
	case pgerrcode.ReadOnlySQLTransaction:
		return "a source query only reads: take the writing part out"
	case pgerrcode.InvalidTextRepresentation:
		return "correct the query, in which each parameter is an array, as in `where p.id = any($1)`"
	default:
		return "correct the query, and try it with `weft projection check`"
	}
}

// typesQuery reads the categories of types, as a letter of pg_type.typcategory.
const typesQuery = `select oid, typcategory::text from pg_type where oid = any($1::oid[])`

func (s *declaredSource) categories(ctx context.Context, columns []pgconn.FieldDescription) (map[uint32]string, error) {
	oids := make([]uint32, len(columns))
	for i, c := range columns {
		oids[i] = c.DataTypeOID
	}
	out := map[uint32]string{}
	var oid uint32
	var category string
	return out, each(ctx, s.pool, typesQuery, []any{oids}, []any{&oid, &category}, func() { out[oid] = category })
}

// errShape means that the answer is no longer what describe has seen.
var errShape = errors.New("columns of the answer have changed")

// read implements source.
func (s *declaredSource) read(ctx context.Context, a *arena, events []outbox.Event) (int, error) {
	a.begin(len(events))
	shape, err := s.known(ctx)
	if err != nil {
		return 0, err
	}
	n, err := s.fill(ctx, shape, a, events, 0)
	if stale(err) {
		// A column was added, dropped or changed. Once: what is refused again is an error.
		s.forget()
		if shape, err = s.known(ctx); err != nil {
			return 0, err
		}
		a.begin(len(events))
		n, err = s.fill(ctx, shape, a, events, 0)
	}
	if errors.Is(err, elastic.ErrOverBudget) {
		return 0, err
	}
	err = s.refused(err)
	switch state, ok := errors.AsType[*pgconn.PgError](err); {
	case ok && state.Code == pgerrcode.LockNotAvailable:
		err = fmt.Errorf("somebody has locked a table that the query reads, which pg_locks names; weft goes on when the lock is gone: %w", err)
	case errors.Is(err, context.DeadlineExceeded), ok && state.Code == pgerrcode.QueryCanceled:
		err = fmt.Errorf("the query was not answered in time (entities: %d); `weft projection check` looks for what makes it slow, and pg_locks names locks on its tables: %w", len(events), err)
	}
	if err != nil {
		return 0, databaseFault(ctx, "source rows of "+s.declaration.Name, err)
	}
	return n, nil
}

// stale reports whether err may come from a table that has changed since describe.
func stale(err error) bool {
	if errors.Is(err, errShape) {
		return true
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == pgerrcode.FeatureNotSupported || strings.HasPrefix(pg.Code, "42"))
}

// fill reads the rows of events, whose place in the round begins at from. When a row makes
// the query fail, it halves the entities until the failing one is alone, and notes that.
func (s *declaredSource) fill(ctx context.Context, shape *declaredShape, a *arena, events []outbox.Event, from int) (int, error) {
	begin := len(a.json)
	err := s.query(ctx, shape, a, events, from)
	bad, ofRow := rowError(err)
	half := len(events) / 2
	switch {
	case err == nil:
		return from + len(events), nil
	case ofRow && half == 0:
		a.rows[from] = placed{found: true, bad: errors.New("source query: " + bad)}
		a.json = a.json[:begin]
		return from + 1, nil
	case errors.Is(err, elastic.ErrOverBudget) && a.whole:
		return 0, err
	case errors.Is(err, elastic.ErrOverBudget) && from > 0:
		clear(a.rows[from : from+len(events)])
		return from, nil
	case !ofRow && !errors.Is(err, elastic.ErrOverBudget):
		return 0, err
	}
	clear(a.rows[from : from+len(events)])
	a.json = a.json[:begin]
	n, err := s.fill(ctx, shape, a, events[:half], from)
	if err != nil || n < from+half || !ofRow { // what was over the budget is the next round's
		return n, err
	}
	return s.fill(ctx, shape, a, events[half:], from+half)
}

// query reads the rows of events into a.
func (s *declaredSource) query(ctx context.Context, shape *declaredShape, a *arena, events []outbox.Event, from int) error {
	at := make(map[outbox.Key]int, len(events))
	for i := range events {
		at[shape.key.of(events[i].Key)] = from + i
		if err := shape.key.valid(events[i].Key.ID); err != nil {
			a.rows[from+i] = placed{found: true, bad: err}
		}
	}
	return s.ask(ctx, shape, shape.sql, func(rows pgx.Rows) error {
		if err := shape.fits(rows.FieldDescriptions()); err != nil {
			return err
		}
		var entity outbox.Key
		for rows.Next() {
			raw := rows.RawValues()
			var err error
			if entity, err = shape.entity(raw, entity); err != nil {
				return s.fault(err)
			}
			i, ok := at[entity]
			if !ok && shape.key.placed && a.elsewhere(shape.key, events, entity.ID, from) {
				continue // the event of that place writes it
			}
			if !ok {
				return s.fault(fmt.Errorf("it returned entity %s, which it was not asked for: filter the rows by %s", entity.ID, shape.key.filter()))
			}
			if size := rawSize(raw); len(a.json) > 0 && len(a.json)+size > arenaBudget && len(events) > 1 {
				return elastic.ErrOverBudget
			}
			s.place(shape, a, &a.rows[i], raw)
		}
		return rows.Err()
	}, shape.key.args(events)...)
}

// elsewhere marks the events that have the key of an id, but another place. It reports whether
// there are any.
func (a *arena) elsewhere(k *entityKey, events []outbox.Event, id outbox.ID, from int) (found bool) {
	key := k.keyOf(id)
	for i := range events {
		if k.keyOf(events[i].Key.ID) == key {
			a.rows[from+i].elsewhere, found = true, true
		}
	}
	return found
}

// place puts one row into the arena.
func (s *declaredSource) place(shape *declaredShape, a *arena, p *placed, raw [][]byte) {
	if p.found {
		p.bad = errors.New("source query: it returned more than one row of this entity: group by the key, or filter")
		return
	}
	p.found, p.from = true, len(a.json)
	version := raw[columnVersion]
	if version == nil {
		p.bad = errors.New("source query: version is null")
		return
	}
	p.version = int64(binary.BigEndian.Uint64(version))
	if p.version < 0 {
		p.bad = fmt.Errorf("source query: version %d: want 0 or more, as Elasticsearch does", p.version)
		return
	}
	if p.deleted = raw[columnDeleted][0] == 1; p.deleted {
		return
	}
	a.json, p.bad = shape.document(a.json, raw[reservedColumns:], s.declaration.DropNulls)
	p.to = len(a.json)
}

func rawSize(raw [][]byte) (n int) {
	for _, v := range raw {
		n += len(v)
	}
	return n
}

// versions implements source.
func (s *declaredSource) versions(ctx context.Context, events []outbox.Event) ([]*int64, error) {
	shape, err := s.known(ctx)
	if err != nil {
		return nil, err
	}
	of := make(map[outbox.Key]*int64, len(events))
	err = s.ask(ctx, shape, shape.versions, func(rows pgx.Rows) error {
		for rows.Next() {
			raw := rows.RawValues()
			entity, err := shape.entity(raw, outbox.Key{})
			if err != nil {
				return err
			}
			if raw[columnVersion] != nil {
				v := int64(binary.BigEndian.Uint64(raw[columnVersion]))
				of[entity] = &v
			}
		}
		return rows.Err()
	}, shape.key.args(events)...)
	if err != nil {
		return nil, err
	}
	out := make([]*int64, len(events))
	for i := range events {
		out[i] = of[shape.key.of(events[i].Key)]
	}
	return out, nil
}
