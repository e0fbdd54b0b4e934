package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const (
	declaredName   = "blocks"
	declaredOutbox = "search_index_outbox_events"
)

// declaration makes the documents of the built-in projection.
const declaration = `projections:
  ` + declaredName + `:
    outbox: {table: ` + declaredOutbox + `}
    load: %t
    source:
      query: |
        select s.entity_id, v.version, s.entity_type, s.library_id, s.text, s.snippet,
               s.rank_score::float8 as rank_score, s.event_version, s.created_at, s.updated_at
        from search_index s join search_index_outbox_versions v on v.entity_id = s.entity_id
        where s.entity_id = any($1)
    index: {name: %s, mapping: blocks.json}
`

// outbox returns the table of the backlog.
func (w workload) outbox() string {
	if w.declared {
		return declaredOutbox
	}
	return outboxTable
}

// writeDeclaration writes the configuration of a declared projection, and returns its file.
func writeDeclaration(dir, index string, load bool) (string, error) {
	file := filepath.Join(dir, "declared.yaml")
	if err := os.WriteFile(filepath.Join(dir, "blocks.json"), elastic.Mapping(), 0o644); err != nil {
		return "", fmt.Errorf("mapping of the declaration: %w", err)
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, declaration, load, index), 0o644); err != nil {
		return "", fmt.Errorf("declaration: %w", err)
	}
	return file, nil
}

// makeOutbox gives the source rows an outbox of their own.
func (s *site) makeOutbox(ctx context.Context) error {
	if _, err := s.pool.Exec(ctx, "create unique index on search_index (entity_id)"); err != nil {
		return fmt.Errorf("key of the source: %w", err)
	}
	return s.fleet.Run(ctx, "outbox", "create", "--table", "search_index", "--key", "entity_id", "--apply")
}
