package bench

import (
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

// declare writes the configuration of a declared projection, and returns its file.
func (s *site) declare(load bool) string {
	file := filepath.Join(s.dir, "declared.yaml")
	s.MustDo("mapping of the declaration", os.WriteFile(filepath.Join(s.dir, "blocks.json"), elastic.Mapping(), 0o644))
	s.MustDo("declaration", os.WriteFile(file, fmt.Appendf(nil, declaration, load, s.Index), 0o644))
	return file
}

// makeOutbox gives the source rows an outbox of their own.
func (s *site) makeOutbox() {
	_, err := s.pool.Exec(s.Ctx, "create unique index on search_index (entity_id)")
	s.MustDo("key of the source", err)
	s.Must(s.fleet.Run(s.Ctx, "outbox", "create", "--table", "search_index", "--key", "entity_id", "--apply"))
}
