package docstest

import (
	"context"
	"path"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// inUse makes a database look used: rows in every state, with times that a query has to
// bear, of a leader, its predecessor and somebody who replays.
const inUse = `
insert into search_index (id, entity_type, entity_id, text, event_version, updated_at)
select gen_random_uuid(), 'book', md5('e' || n)::uuid, 'text ' || n, n * 1000000, now() - n * interval '1 minute'
from generate_series(1, 40) n;

insert into search_outbox_events (id, entity_type, entity_id, op, event_version, created_at, updated_at, status, attempts,
  owner, epoch, lease_until, processing_started_at, processed_at, next_retry_at, error_reason, error, replay_count, last_replayed_by)
select gen_random_uuid(), 'book', md5('e' || n % 50)::uuid, case when n % 7 = 0 then 'delete' else 'upsert' end, n * 1000000,
       case when n = 9 then '-infinity' else now() - n * interval '1 second' end, now() - n * interval '1 second', s, n % 4,
       case when s = 'processing' then 'a' end, 3,
       case when s = 'processing' then case when n = 10 then 'infinity' else now() end end,
       case when s = 'processing' then case when n = 10 then '-infinity' else now() end end,
       case when s = 'done' then now() - n * interval '1 second' end,
       case when s = 'pending' and n % 3 = 0 then case when n = 12 then 'infinity' else now() + n * interval '1 second' end end,
       case when s = 'failed' then 'es_4xx' when s = 'pending' then 'es_429' end,
       case when s = 'failed' then 'strict_dynamic_mapping_exception: x' when s = 'pending' then 'es_rejected_execution_exception' end,
       n % 3, case when n % 3 > 0 then 'alice' end
from generate_series(1, 200) n, lateral (select (array['pending', 'processing', 'done', 'failed'])[1 + n % 4]) x(s);

update search_outbox_events set next_retry_at = now() + interval '1 hour', behind = event_version - 1
where status = 'pending' and event_version % 5 = 0;

insert into weft_lease (batch, table_name, group_name, owner, epoch, leased_at, lease_until, uuids)
select gen_random_uuid(), 'search_outbox_events', 'weft', case b when 0 then 'a' else 'b' end, 3 - b, now() - b * interval '1 hour', now() + interval '1 minute',
       array_agg(id)
from search_outbox_events, lateral (select event_version / 4000000 % 2) x(b)
where status = 'pending' and next_retry_at is null group by b;

select weft_history_attach('search_outbox_events', current_date + n) from generate_series(-1, 3) n;
insert into search_outbox_history select * from search_outbox_events where status = 'done' and event_version < 50000000;

insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('weft', 3, 'a', now(), now());
insert into weft_term (group_name, epoch, instance, acquired_at, ended_at, end_reason)
values ('weft', 1, 'a', now() - interval '2 hours', now() - interval '1 hour', 'resigned'),
       ('weft', 2, 'b', now() - interval '1 hour', now(), 'replaced'), ('weft', 3, 'a', now(), null, null);
insert into weft_instance (group_name, instance, role, version, host, pid, started_at, seen_at)
values ('weft', 'a', 'leader', 'v1', 'h', 1, now(), now()), ('weft', 'b', 'standby', 'v1', 'i', 2, now(), now() - interval '1 day');
insert into weft_progress (table_name, group_name, projection, epoch, last_settle_at)
values ('search_outbox_events', 'weft', 'search_index_to_elastic', 3, now()),
       ('chronicle_outbox_events', 'weft', 'chronicle_events_to_entries', 3, '-infinity');
insert into weft_audit (actor, action, why, projection, from_owner, from_epoch, by_epoch, count, detail)
values ('a', 'reclaim', 'older_epoch', 'search_index_to_elastic', 'b', 2, 3, 17, null),
       ('alice', 'replay', 'mapping fixed', 'search_index_to_elastic', null, null, null, 3, '{"outcome": "running", "selector": {"all": true}}'),
       ('a', 'version_ahead', 'documents are newer than their source rows', 'search_index_to_elastic', null, null, 3, 9, '{"entities": ["book:x"]}');`

var (
	remarks = regexp.MustCompile(`--[^\n]*`)
	reopens = regexp.MustCompile(`(?s)\bset\b[^;]*\bstatus = 'pending'`)
)

// TestRowsAreReopenedAsDue holds that no page makes an open row ready by hand: a list that
// the leader has made before lacks the row, and a later event of its entity could go first.
func TestRowsAreReopenedAsDue(t *testing.T) {
	t.Parallel()
	n := 0
	for _, p := range documents(t) {
		for _, b := range p.blocks {
			for statement := range strings.SplitSeq(remarks.ReplaceAllString(b.text, ""), ";") {
				if b.language != "sql" || !reopens.MatchString(statement) {
					continue
				}
				n++
				if !strings.Contains(statement, "next_retry_at = now()") {
					t.Errorf("%s opens rows again without next_retry_at = now():%s", p.at(b), statement)
				}
			}
		}
	}
	if n == 0 {
		t.Error("got no statement that opens rows again, want that of the pages")
	}
}

// TestQueriesRun runs every SQL block of every document as it is written.
func TestQueriesRun(t *testing.T) {
	t.Parallel()
	for _, state := range []struct{ name, sql string }{{"Empty", ""}, {"InUse", inUse}} {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			for _, p := range documents(t) {
				sql := p.blocks[:0:0]
				for _, b := range p.blocks {
					if b.language == "sql" {
						sql = append(sql, b)
					}
				}
				if len(sql) == 0 {
					continue
				}
				t.Run(strings.TrimSuffix(path.Base(p.name), ".md"), func(t *testing.T) {
					t.Parallel()
					conn := connect(t, testenv.Database(t))
					run(t, conn, "database in use", state.sql)
					for _, b := range sql {
						if p.runbook() && b.section == "Diagnosis" {
							// Who looks must need no right to change anything.
							run(t, conn, "rights", "begin read only; set local role pg_read_all_data")
							run(t, conn, p.at(b), b.text)
							run(t, conn, "rights", "rollback")
							continue
						}
						run(t, conn, p.at(b), b.text)
					}
				})
			}
		})
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// run sends sql as psql would, in one piece and without parameters.
func run(t *testing.T, conn *pgx.Conn, what, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
