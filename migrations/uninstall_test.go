package migrations_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/migrations"
)

// remains lists what is left of weft in the schema.
const remains = `
select relname::text from pg_class where relnamespace = quote_ident(current_schema())::regnamespace and relkind in ('r', 'p', 'v') and (relname ~ '^weft_' or relname ~ '_(outbox|live)')
union all select proname::text from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace and proname ~ 'weft|outbox'
union all select tgname::text from pg_trigger where tgname ~ 'outbox'
union all select 'column ' || attname || ' of ' || attrelid::regclass from pg_attribute
	where attrelid = to_regclass('search_outbox_events') and attname in ('epoch', 'reclaims', 'behind', 'discarded_at', 'discarded_by', 'discarded_reason')
order by 1`

// An uninstall leaves the rows of every outbox, or drops them when it is told to, and nothing else
// of weft; the application's writes go on, and what stays is taken up when it is installed anew.
func TestUninstallAndInstallAnew(t *testing.T) {
	t.Parallel()
	for name, dropData := range map[string]bool{"KeepData": false, "DropData": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, 1)
			s.exec(`insert into shop.product values (7)`)
			s.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version) values (gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', 1)`)
			s.exec(`select weft_history_attach('search_outbox_events', (now() at time zone 'UTC')::date)`)
			s.exec(`insert into search_outbox_history (id, entity_type, entity_id, op, event_version, status, attempts, reclaims, replay_count, processed_at)
				values (gen_random_uuid(), 'block', gen_random_uuid(), 'delete', 14, 'done', 0, 0, 0, now())`)
			before := query[string](t, s.pool, remains)

			plan, err := migrations.Uninstall(t.Context(), s.dsn, dropData, false)
			if err != nil {
				t.Fatal(err)
			}
			if got := query[string](t, s.pool, remains); !slices.Equal(got, before) {
				t.Errorf("the plan alone has changed the schema: %q", got)
			}
			data := plan.Stays
			if dropData {
				data = plan.Goes
			}
			for _, want := range []string{"product_outbox_events: 1 event, 1 of them open", "search_outbox_events: 1 event, 1 of them open", "search_outbox_history: with rows", "product_outbox_versions: with rows"} {
				if !slices.ContainsFunc(data, func(i migrations.UninstallItem) bool { return strings.HasPrefix(i.Name+": "+i.Note, want) }) {
					t.Errorf("got %+v, want %s in it", data, want)
				}
			}
			for _, want := range []migrations.UninstallItem{{Kind: "table", Name: "weft_quarantine"}, {Kind: "view", Name: "weft_inflight"}, {Kind: "view", Name: "product_outbox_events_live"},
				{Kind: "function", Name: "weft_settled(p_table text, p_id text)"}, {Kind: "trigger", Name: "product_outbox_insert on shop.product"}, {Kind: "column", Name: "behind of search_outbox_events"}} {
				if !slices.Contains(plan.Goes, want) {
					t.Errorf("goes: want %+v in it, got %+v", want, plan.Goes)
				}
			}
			if !slices.Contains(plan.Stays, migrations.UninstallItem{Kind: "table", Name: "search_index", Note: "of the application"}) {
				t.Errorf("stays: got %+v, want search_index in it", plan.Stays)
			}

			s.exec(`insert into weft_instance (group_name, instance, role, version, host, pid, started_at, seen_at) values ('weft', 'b', 'standby', 'v', 'h', 1, now(), now())`)
			if _, err := migrations.Uninstall(t.Context(), s.dsn, dropData, true); !present(err) || query[string](t, s.pool, remains)[0] != before[0] {
				t.Errorf("beside a standby: got %v, want a refusal", err)
			}
			s.exec(`update weft_instance set seen_at = now() - interval '1 min'`)
			if _, err := migrations.Uninstall(t.Context(), s.dsn, dropData, true); err != nil {
				t.Fatal(err)
			}
			want := []string{"chronicle_outbox_events", "product_outbox_events", "product_outbox_history", "product_outbox_versions", "search_outbox_events", "search_outbox_history"}
			if dropData {
				want = nil
			}
			got := slices.DeleteFunc(query[string](t, s.pool, remains), func(name string) bool { return strings.HasPrefix(name, "search_outbox_history_") })
			if !slices.Equal(got, want) {
				t.Errorf("left: got %q, want %q", got, want)
			}
			s.exec(`insert into shop.product values (8)`) // no trigger is in the way
			if !dropData {
				s.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version) values (gen_random_uuid(), 'block', gen_random_uuid(), 'upsert', 2)`)
			}
			again, err := migrations.Uninstall(t.Context(), s.dsn, dropData, true)
			if err != nil || len(again.Goes)+len(again.Stays) != 0 {
				t.Errorf("again: got %+v, %v, want nothing to do", again, err)
			}
			if got := versions(up(t, s.dsn)); len(got) != int(migrations.Latest) {
				t.Errorf("installed anew: got the versions %v", got)
			}
			if n := one[int](t, s.pool, `select count(*)::int from search_outbox_events where status = 'pending' and behind is null`); n != map[bool]int{true: 0, false: 2}[dropData] {
				t.Errorf("%d events wait, want those that stayed", n)
			}
			if n := one[int](t, s.pool, `select count(*)::int from search_outbox_history`); n != map[bool]int{true: 0, false: 1}[dropData] {
				t.Errorf("%d events in the history, want those that stayed", n)
			}
		})
	}
}

// An uninstall that was interrupted after the last migration was taken back is ended by the next.
func TestUninstallEndsWhatWasInterrupted(t *testing.T) {
	t.Parallel()
	for name, dropData := range map[string]bool{"KeepData": false, "DropData": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn, pool := setup(t)
			up(t, dsn)
			if _, err := migrations.Down(t.Context(), dsn, migrations.ToZero()); err != nil {
				t.Fatal(err)
			}
			exec(t, pool, `create table weft_schema_version (id int, version_id bigint, is_applied boolean, tstamp timestamptz)`)
			exec(t, pool, `insert into weft_schema_version values (1, 0, true, now())`)
			plan, err := migrations.Uninstall(t.Context(), dsn, dropData, false)
			if err != nil || !slices.ContainsFunc(plan.Goes, func(i migrations.UninstallItem) bool { return i.Name == "weft_schema_version" }) {
				t.Fatalf("got %+v, %v, want the table of versions to go", plan, err)
			}
			if _, err := migrations.Uninstall(t.Context(), dsn, dropData, true); err != nil {
				t.Fatal(err)
			}
			got := query[string](t, pool, remains)
			if dropData != !slices.Contains(got, "search_outbox_events") || slices.ContainsFunc(got, func(name string) bool { return strings.HasPrefix(name, "weft_") }) {
				t.Errorf("left: %q", got)
			}
		})
	}
}

// One that was interrupted between two migrations goes on, too.
func TestUninstallGoesOnFromEachVersion(t *testing.T) {
	t.Parallel()
	for version := range migrations.Latest - 1 {
		t.Run(fmt.Sprint(version+1), func(t *testing.T) {
			t.Parallel()
			dsn, pool := setup(t)
			up(t, dsn)
			downTo(t, dsn, version+1)
			if _, err := migrations.Uninstall(t.Context(), dsn, version%2 == 0, true); err != nil {
				t.Fatal(err)
			}
			if got := query[string](t, pool, remains); slices.ContainsFunc(got, func(name string) bool { return strings.HasPrefix(name, "weft_") }) {
				t.Errorf("left: %q", got)
			}
		})
	}
}

func present(err error) bool {
	_, ok := errors.AsType[*migrations.PresentError](err)
	return ok
}
