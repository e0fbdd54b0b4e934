package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

const (
	// pagesOf are the pages of a table of versions. An outbox of the application has none.
	pagesOf = `
select greatest(pg_relation_size(oid) / current_setting('block_size')::bigint, 1) from pg_class
where relnamespace = quote_ident(current_schema())::regnamespace and relname = $1 and relkind = 'r'`

	// someVersions looks at some pages, wherever they are: one entity above the sequence tells enough.
	someVersions = `select max(version) from %s tablesample system ($1)`
	versionPages = 200

	// standing is what a sequence has given out last; no row where nothing was, or the role may not see it.
	standing = `select last_value from pg_sequences where schemaname = current_schema() and sequencename = $1 and last_value is not null`
)

// versions names the sequences that stand below versions they have given out, as after a move to a server to which they were not
// carried over: the next change of such an entity looks older than its document, which refuses it.
func (e *examination) versions(ctx context.Context) error {
	for _, name := range e.Config.Projections {
		base, ok := strings.CutSuffix(e.Config.Registry().Table(name), "_events")
		if !ok {
			continue
		}
		table, sequence := pgx.Identifier{base + "_versions"}.Sanitize(), base+"_version"
		var pages, last int64
		var highest *int64
		err := e.Pool.QueryRow(ctx, pagesOf, base+"_versions").Scan(&pages)
		if err == nil {
			err = e.Pool.QueryRow(ctx, fmt.Sprintf(someVersions, table), min(100, 100*versionPages/float64(pages))).Scan(&highest)
		}
		if err == nil { // after the versions, which go on growing
			err = e.Pool.QueryRow(ctx, standing, sequence).Scan(&last)
		}
		switch {
		case errors.Is(err, pgx.ErrNoRows):
		case err != nil:
			return err
		case highest != nil && *highest > last:
			e.add("schema.versions", Error, sequence, fmt.Sprintf("the sequence stands at %d, and an entity has version %d: changes look older than their documents, and are not carried", last, *highest),
				fmt.Sprintf("select setval('%s', (select max(version) from %s)); then, for changes since: `weft verify %s --repair --by YOU --why \"…\"`", pgx.Identifier{sequence}.Sanitize(), table, name))
		}
	}
	return nil
}
