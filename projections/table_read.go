package projections

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// versionsTable, firstOfTable and nextOfTable read the versions of rows: by their ids, and in pages of their order.
const (
	versionsTable = `
select t.entity_id::text, t.version from {table} t where t.entity_id = any ($1::text[]::{key}[])`
	firstOfTable = `
select t.entity_id::text, t.version from {table} t order by t.entity_id limit $1`
	nextOfTable = `
select t.entity_id::text, t.version from {table} t where t.entity_id > $2::text::{key} order by t.entity_id limit $1`
)

// Search implements Documents. A table has no routings.
func (s *tableSink) Search(ctx context.Context, docs []elastic.Doc) ([]elastic.Document, error) {
	target, err := s.known(ctx)
	if err != nil {
		return nil, err
	}
	return s.documents(ctx, target.versions, docIDs(docs))
}

// Newest implements Documents.
func (s *tableSink) Newest(ctx context.Context, docs []elastic.Doc) ([]elastic.Document, error) {
	return s.Search(ctx, docs)
}

func docIDs(docs []elastic.Doc) []string {
	ids := make([]string, len(docs))
	for i := range docs {
		ids[i] = docs[i].ID
	}
	return ids
}

func (s *tableSink) documents(ctx context.Context, sql string, args ...any) (out []elastic.Document, err error) {
	limited, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var d elastic.Document
	if err := each(limited, s.pool, sql, args, []any{&d.ID, &d.Version}, func() { out = append(out, d) }); err != nil {
		return nil, databaseFault(ctx, "rows of "+s.name, err)
	}
	return out, nil
}

// afterRow begins a position in a table, before the id of a row.
const afterRow = "after "

// Scan implements Documents.
func (s *tableSink) Scan(ctx context.Context, from string) (page []elastic.Document, next string, err error) {
	target, err := s.known(ctx)
	if err != nil {
		return nil, "", err
	}
	sql, args := target.first, []any{elastic.MaxPage}
	if from != "" {
		id, ok := strings.CutPrefix(from, afterRow)
		if !ok {
			return nil, "", elastic.ErrOtherIndex
		}
		sql, args = target.next, append(args, id)
	}
	if page, err = s.documents(ctx, sql, args...); len(page) > 0 {
		next = afterRow + page[len(page)-1].ID
	}
	return page, next, err
}

// Count implements Documents. It estimates: to count the rows of a large table takes longer than a statement may.
func (s *tableSink) Count(ctx context.Context) (n int64, err error) {
	if _, err := s.known(ctx); err != nil {
		return 0, err
	}
	limited, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err := each(limited, s.pool, rowsQuery, []any{s.name}, []any{&n}, nil); err != nil {
		return 0, databaseFault(ctx, "rows of "+s.name, err)
	}
	return n, nil
}

// State implements Documents: nothing cheap tells whether a table was written to.
func (s *tableSink) State(context.Context) (string, error) { return uuid.NewString(), nil }

// Altered implements Documents.
func (s *tableSink) Altered(context.Context) (string, error) {
	return "the columns of table " + s.name + " have types of their own", nil
}
