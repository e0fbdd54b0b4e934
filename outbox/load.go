package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Load writes events for the rows that a table had before it got its outbox. They take the
// way of every other event, with versions from the same sequence, so a change that comes
// meanwhile is neither lost nor overtaken. It may be ended at any time and begun again: rows
// that have a version are passed over.
type Load struct {
	db      DB
	table   *Table
	kind    IDKind // of the ids of entities; those of events may be places
	timeout time.Duration
	rows    int64
	first   string // the statement of the first page
	next    string
	open    string
}

// OpenLoad prepares the load of an outbox that `weft outbox create` has made. The session
// must be that of the outbox's owner. It returns a [*ShapeError] for another table.
func OpenLoad(ctx context.Context, db DB, name string, timeout time.Duration) (*Load, error) {
	t, err := DescribeTable(ctx, db, name, timeout)
	if err != nil {
		return nil, err
	}
	l := &Load{db: db, table: t, timeout: timeout}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var source string
	var keys, types []string
	var versions bool
	err = db.QueryRow(ctx, statement("load_source.sql"), name).Scan(&source, &keys, &types, &l.rows, &versions)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || err == nil && !versions:
		return nil, &ShapeError{name, "was not made by `weft outbox create`", "its application writes the first events itself"}
	case err != nil:
		return nil, fmt.Errorf("source of %s: %w", name, err)
	}
	base := strings.TrimSuffix(name, "_events")
	var parts, after []string
	for i, key := range keys {
		parts = append(parts, "s."+pgx.Identifier{key}.Sanitize())
		after = append(after, fmt.Sprintf("weft_part_of($3, %d)::%s", i+1, types[i]))
	}
	id, next := base+"_id("+strings.Join(parts, ", ")+")", "("+strings.Join(parts, ", ")+") > ("+strings.Join(after, ", ")+")"
	l.kind = KindText
	if len(keys) == 1 {
		l.kind = map[string]IDKind{KindUUID.String(): KindUUID, KindNumber.String(): KindNumber, KindText.String(): KindText}[types[0]]
		id, next = parts[0]+"::"+types[0], parts[0]+" > $3"
	}
	page := func(after string) string {
		return strings.NewReplacer("{after}", after, "{id}", id, "{keys}", strings.Join(parts, ", "), "{source}", source,
			"{versions}", base+"_versions", "{touch}", base+"_touch").Replace(statement("load_page.sql"))
	}
	l.first, l.next = page("true"), page(next)
	l.open = strings.ReplaceAll(statement("load_open.sql"), "{table}", name)
	return l, nil
}

// Rows returns how many rows the source has, as PostgreSQL estimates it; 0 for a table that
// was never analyzed.
func (l *Load) Rows() int64 { return l.rows }

// Page is a part of a load.
type Page struct {
	Read    int // rows of the source; fewer than asked for at its end
	Written int // events
	Last    ID  // where the next page begins
}

// Page writes the events of at most n rows after last, which is zero for the first page. With
// again, rows that have a version get one more event.
func (l *Load) Page(ctx context.Context, last ID, n int, again bool) (p Page, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	sql, args := l.first, []any{n, again}
	if !last.IsZero() {
		sql, args = l.next, append(args, &last)
	}
	var raw *string
	if err := l.db.QueryRow(ctx, sql, args...).Scan(&p.Read, &p.Written, &raw); err != nil {
		return p, fmt.Errorf("load a page of %s: %w", l.table.Name, err)
	}
	if raw != nil {
		p.Last, err = ParseID(l.kind, *raw)
	}
	return p, err
}

// Open returns how many events are not done, at most limit.
func (l *Load) Open(ctx context.Context, limit int) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	if err := l.db.QueryRow(ctx, l.open, limit).Scan(&n); err != nil {
		return 0, fmt.Errorf("open events of %s: %w", l.table.Name, err)
	}
	return n, nil
}
