package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

const (
	outboxTable  = rig.Outbox
	historyTable = "search_outbox_history"
	// firstVersion is that of event 0: the microseconds of 2026-01-01.
	firstVersion = 1_767_225_600_000_000

	loadTimeout  = 30 * time.Minute // ten million rows on a busy machine
	queryTimeout = 2 * time.Minute
)

// sourceRows are the entities as their last event leaves them; one whose last event is
// a delete has no row.
const sourceRows = `
insert into search_index (id, entity_type, library_id, entity_id, text, snippet, rank_score, created_at, updated_at, event_version)
select gen_random_uuid(), 'block', md5('library' || e % 30)::uuid, md5('entity' || e)::uuid,
       left(t.words, {text}), left(t.words, 40), (e % 100) / 100.0,
       timestamptz '2026-01-01 00:00:00Z' + e * interval '1 ms', timestamptz '2026-01-01 00:00:00Z' + last * interval '1 us', {first} + last
from generate_series(0, {entities} - 1) e
cross join lateral (select e + ({events} - 1 - e) / {entities} * {entities} as last) l
cross join lateral (
  select string_agg('word' || (e::bigint * 7919 + k * 104729) % 5000, ' ') as words
  from generate_series(1, {text} / 8) k) t
where e < {events} and not ({deletes} and last >= {entities} and last % 3 = 0)`

// outboxRows names every column that a Wordloom table has no default for.
const outboxRows = `
insert into {table} (id, entity_type, entity_id, op, event_version, created_at, status, attempts, updated_at, replay_count, traceparent)
select gen_random_uuid(), 'block', md5('entity' || i % {entities})::uuid,
       case when {deletes} and i >= {entities} and i % 3 = 0 then 'delete' else 'upsert' end,
       {first} + i, now(), 'pending', 0, now(), 0,
       case when {parents} then '00-' || md5('trace' || i) || '-' || left(md5('span' || i), 16) || '-01' end
from generate_series(0, {events} - 1) i`

// waitingRows have versions before, among and after those of the ready ones, and a
// reason that no recovery of Elasticsearch cuts short.
const waitingRows = `
insert into {table} (id, entity_type, entity_id, op, event_version, created_at, status, attempts, updated_at, replay_count, next_retry_at, error_reason, error)
select gen_random_uuid(), 'block', md5('waits' || i)::uuid, 'upsert', {first} + i - {waiting} / 2, now(), 'pending', 3, now(), 0,
       now() + interval '2 hours' + i * interval '1 ms', 'unknown_exception', 'unknown'
from generate_series(0, {waiting} - 1) i`

// blockedRows are one entity's, before all others: the first one is parked.
const blockedRows = `
insert into {table} (id, entity_type, entity_id, op, event_version, created_at, status, attempts, updated_at, replay_count, next_retry_at)
select gen_random_uuid(), 'block', md5('blocked')::uuid, 'upsert', {first} - {blocked} + i, now(), 'pending', 0, now(), 0,
       case when i = 0 then timestamptz 'infinity' end
from generate_series(0, {blocked} - 1) i`

func (w workload) sql(text string) string {
	return strings.NewReplacer("{table}", w.outbox(), "{events}", strconv.Itoa(w.events), "{entities}", strconv.Itoa(w.entities),
		"{text}", strconv.Itoa(w.text), "{deletes}", strconv.FormatBool(w.deletes), "{parents}", strconv.FormatBool(w.parents), "{waiting}", strconv.Itoa(w.waiting),
		"{blocked}", strconv.Itoa(w.blocked), "{first}", strconv.Itoa(firstVersion)).Replace(text)
}

// fill writes the backlog w and leaves the tables as autovacuum would.
func (s *site) fill(w workload) {
	ctx, cancel := context.WithTimeout(s.Ctx, loadTimeout)
	defer cancel()
	statements := []string{sourceRows, outboxRows}
	switch {
	case w.loads:
		statements = []string{"begin; set local session_replication_role = replica;" + sourceRows + "; commit"}
	case w.declared: // triggers write the events
		statements = statements[:1]
	}
	if w.waiting > 0 {
		statements = append(statements, waitingRows)
	}
	if w.blocked > 0 {
		statements = append(statements, blockedRows)
	}
	for _, sql := range append(statements, "vacuum (analyze) search_index", "vacuum (analyze) {table}", "checkpoint") {
		rig.Try(s.pool.Exec(ctx, w.sql(sql))).MustDo(s, fmt.Sprintf("write %d events", w.events))
	}
}

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
	rig.Try(s.pool.Exec(s.Ctx, "create unique index on search_index (entity_id)")).MustDo(s, "key of the source")
	s.Must(s.fleet.Run(s.Ctx, "outbox", "create", "--table", "search_index", "--key", "entity_id", "--apply"))
}
