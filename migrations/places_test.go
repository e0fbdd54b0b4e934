package migrations_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

// newTenants is items with a key and a tenant, their notes, and an outbox.
func newTenants(t *testing.T, tables string, spec migrations.OutboxSpec) *shop {
	t.Helper()
	s := &shop{t: t, dsn: testenv.Database(t)}
	s.pool = testenv.Pool(t, s.dsn)
	s.exec(`create schema shop; ` + tables)
	spec.Table, spec.Name = "shop.item", "product_outbox_events"
	s.create(spec)
	return s
}

const routedTables = `
create table shop.item (id bigint primary key, tenant text not null, name text);
create table shop.note (item_id bigint, text text); create index on shop.note (item_id)`

func routed(t *testing.T) *shop {
	t.Helper()
	return newTenants(t, routedTables, migrations.OutboxSpec{Routing: "tenant", Children: []migrations.Child{{Table: "shop.note", Columns: []string{"item_id"}}}})
}

const pairTables = `
create table shop.item (tenant text, code varchar(600), n numeric, c char(5), name text, primary key (tenant, code, n, c));
create table shop.note (t text, code text, n numeric, c char(5), text text); create index on shop.note (t, code)`

func compositeKeys(t *testing.T) *shop {
	t.Helper()
	return newTenants(t, pairTables, migrations.OutboxSpec{Children: []migrations.Child{{Table: "shop.note", Columns: []string{"t", "code", "n", "c"}}}})
}

func TestCompositeKeysMakeOneText(t *testing.T) {
	t.Parallel()
	s := compositeKeys(t)
	for _, tc := range []struct {
		what, sql string
		want      []string
	}{
		{"insert", `insert into shop.item values ('a:b', '50%/x', 1.50, 'ab')`, []string{"upsert a%3Ab:50%25/x:1.5:ab"}},
		{"update", `update shop.item set name = 'x'`, []string{"upsert a%3Ab:50%25/x:1.5:ab"}},
		{"equal key in another text", `update shop.item set n = 1.500, c = 'ab   '`, []string{"upsert a%3Ab:50%25/x:1.5:ab"}},
		{"child", `insert into shop.note values ('a:b', '50%/x', 1.5, 'ab')`, []string{"upsert a%3Ab:50%25/x:1.5:ab"}},
		{"child of nothing", `insert into shop.note values ('a:b', null, 1.5, 'ab')`, nil},
		{"child moved", `update shop.note set t = 'other' where code is not null`, []string{"delete other:50%25/x:1.5:ab", "upsert a%3Ab:50%25/x:1.5:ab"}},
		{"key changed", `update shop.item set tenant = 'z', code = ''`, []string{"delete a%3Ab:50%25/x:1.5:ab", "upsert z::1.5:ab"}},
		{"delete", `delete from shop.item`, []string{"delete z::1.5:ab"}},
	} {
		s.exec(tc.sql)
		got := s.took()
		slices.Sort(got)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.what, got, tc.want)
		}
	}
	long := strings.Repeat("é🎉'%", 50)
	s.exec(`insert into shop.item values ($1, $2, -0.10, '')`, long, long)
	s.want("long parts", "upsert "+outbox.Composite(long, long, "-0.1", "").String())
	if got := one[string](t, s.pool, `select product_outbox_id(tenant, code, n, c) from shop.item`); got != outbox.Composite(long, long, "-0.1", "").String() {
		t.Errorf("product_outbox_id: got %s", got)
	}
}

func TestMovesDeleteTheOldPlace(t *testing.T) {
	t.Parallel()
	s := routed(t)
	for _, tc := range []struct {
		what, sql string
		want      []string
	}{
		{"insert", `insert into shop.item values (1, 'A'), (2, 'a:%')`, []string{"upsert A:1", "upsert a%3A%25:2"}},
		{"update", `update shop.item set name = 'x'`, []string{"upsert A:1", "upsert a%3A%25:2"}},
		{"child", `insert into shop.note values (1, 'n'), (null, 'n')`, []string{"upsert A:1"}},
		{"child of nobody", `insert into shop.note values (99, 'n')`, nil},
		{"move", `update shop.item set tenant = 'B' where id = 1`, []string{"delete A:1", "upsert B:1"}},
		{"move there and back in one transaction", `update shop.item set tenant = 'C' where id = 1; update shop.item set tenant = 'B' where id = 1`,
			[]string{"delete B:1", "upsert C:1", "delete C:1", "upsert B:1"}},
		{"child after the move", `update shop.note set text = 'm' where item_id = 1`, []string{"upsert B:1"}},
		{"key changed", `update shop.item set id = 3 where id = 1`, []string{"delete B:1", "upsert B:3"}},
		{"key and routing changed", `update shop.item set id = 1, tenant = 'D' where id = 3`, []string{"delete B:1", "upsert D:1", "delete B:3"}},
		{"swap of two", `update shop.item set tenant = case id when 1 then 'a:%' else 'D' end`, []string{"delete D:1", "delete a%3A%25:2", "upsert a%3A%25:1", "upsert D:2"}},
		{"delete", `delete from shop.item where id = 1`, []string{"delete a%3A%25:1"}},
		{"child of a deleted one", `update shop.note set text = 'l' where item_id = 1`, []string{"delete a%3A%25:1"}},
		{"return elsewhere", `insert into shop.item values (1, 'E')`, []string{"delete a%3A%25:1", "upsert E:1"}},
		{"nothing", `update shop.item set tenant = tenant`, nil},
	} {
		s.exec(tc.sql)
		got := s.took()
		if tc.what == "key and routing changed" || tc.what == "swap of two" {
			slices.Sort(got)
			slices.Sort(tc.want)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.what, got, tc.want)
		}
	}
	if diff := cmp.Diff([]string{"1 E false", "2 D false", "3 B true"}, query[string](t, s.pool,
		`select concat_ws(' ', entity_id, routing, case when deleted then 'true' else 'false' end) from product_outbox_versions where routing is not null order by entity_id`)); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

// A row of before the outbox has no version row: the trigger knows where it was.
func TestMovesOfRowsWithoutVersion(t *testing.T) {
	t.Parallel()
	s := routed(t)
	s.exec(`insert into shop.item select i, 'A' from generate_series(1, 3) i; truncate product_outbox_versions; delete from product_outbox_events`)
	s.exec(`update shop.item set tenant = 'B' where id = 1`)
	s.want("move", "delete A:1", "upsert B:1")
	s.exec(`delete from shop.item where id = 2`)
	s.want("delete", "delete A:2")
	s.exec(`insert into shop.note values (3, 'n')`)
	s.want("child", "upsert A:3")
}

// A load gives rows with a routing versions by their key, and events by their place.
func TestLoadOfPlaces(t *testing.T) {
	t.Parallel()
	s := routed(t)
	s.exec(`insert into shop.item select i, 'A:' || i % 2 from generate_series(1, 3) i; truncate product_outbox_versions; delete from product_outbox_events`)
	s.exec(`update shop.item set name = 'changed' where id = 2`)
	s.took()
	before := one[int64](t, s.pool, `select version from product_outbox_versions`)
	ids := `'{A%3A1:1,A%3A0:2,A%3A1:3}'`
	user, mode := testenv.Runner(t, s.dsn), migrations.Mode{Table: "product_outbox_events"}
	app := testenv.Pool(t, testenv.As(t, s.dsn, user))
	s.exec(`revoke execute on function weft_load(text, text[], boolean) from ` + user.Username())
	if err := migrations.CheckRights(t.Context(), app, mode); err == nil || !strings.Contains(err.Error(), "lacks execute on weft_load(text, text[], boolean)") {
		t.Errorf("without the right to load: %v", err)
	}
	if _, err := app.Exec(t.Context(), `select weft_load('product_outbox_events', `+ids+`, false)`); code(err) != "42501" {
		t.Errorf("by a role without the right: got %v, want permission denied", err)
	}
	if err := migrations.Grant(t.Context(), s.dsn, user.Username(), mode); err != nil {
		t.Fatal(err)
	}
	exec(t, app, `select weft_load('product_outbox_events', `+ids+`, false)`)
	if diff := cmp.Diff([]string{"1 A:1 true", "2 A:0 false", "3 A:1 true"}, query[string](t, s.pool,
		`select concat_ws(' ', entity_id, routing, case when version > $1 then 'true' else 'false' end) from product_outbox_versions order by entity_id`, before)); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
	s.want("versions alone")
	s.exec(`select weft_load('product_outbox_events', ` + ids + `, true)`)
	if n := one[int](t, s.pool, `select count(*) from product_outbox_events where tracestate = 'weft=load'`); n != 3 {
		t.Errorf("%d events are marked as those of a load, want 3", n)
	}
	s.want("events", "upsert A%3A1:1", "upsert A%3A0:2", "upsert A%3A1:3")
	if _, err := s.pool.Exec(t.Context(), `select weft_load('search_outbox_events', '{1}', false)`); code(err) != "42P01" {
		t.Errorf("an outbox of the application: got %v, want undefined table", err)
	}
}

// Versions of one key grow from place to place, in the order of the commits.
func TestVersionsOfPlacesGrow(t *testing.T) {
	t.Parallel()
	s := routed(t)
	s.exec(`insert into shop.item values (1, 'A')`)
	for _, to := range []string{"B", "A", "B"} {
		s.exec(`update shop.item set tenant = $1`, to)
	}
	got := query[string](t, s.pool, `select op || ' ' || entity_id from product_outbox_events order by event_version`)
	want := []string{"upsert A:1", "delete A:1", "upsert B:1", "delete B:1", "upsert A:1", "delete A:1", "upsert B:1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if n := one[int](t, s.pool, `select count(distinct event_version) from product_outbox_events`); n != len(want) {
		t.Errorf("%d versions for %d events: both places may be one document", n, len(want))
	}
	if !one[bool](t, s.pool, `select v.version = max(e.event_version) from product_outbox_versions v, product_outbox_events e group by v.version`) {
		t.Error("the version row has not the version of the newest event")
	}
}

// A child that is written beside the move of its parent, in both orders: the newest event is an
// upsert of where the parent is.
func TestChildBesideTheMoveOfItsParent(t *testing.T) {
	t.Parallel()
	const move, child = `update shop.item set tenant = 'B'`, `insert into shop.note values (1, 'n')`
	for name, tc := range map[string]struct {
		first, second string
		want          []string
	}{
		"MoveFirst":  {move, child, []string{"delete A:1", "upsert B:1", "upsert B:1"}},
		"ChildFirst": {child, move, []string{"upsert A:1", "delete A:1", "upsert B:1"}},
		"Arrival":    {`delete from shop.item; insert into shop.item values (1, 'C')`, child, []string{"delete A:1", "delete A:1", "upsert C:1", "upsert C:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := routed(t)
			s.exec(`insert into shop.item values (1, 'A')`)
			s.took()
			a, b := s.begin(pgx.ReadCommitted), s.begin(pgx.ReadCommitted)
			mustExec(t, a, tc.first)
			blocked := background(t, b, tc.second)
			s.waits()
			if err := a.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-blocked; err != nil {
				t.Fatal(err)
			}
			if err := b.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.want("both", tc.want...)
		})
	}
}

// Under a deferred key two rows may have it until the commit.
func TestRowsThatSwapADeferredKey(t *testing.T) {
	t.Parallel()
	s := newTenants(t, `create table shop.item (id bigint primary key deferrable initially deferred, tenant text not null); insert into shop.item values (1, 'a'), (2, 'b')`,
		migrations.OutboxSpec{Routing: "tenant"})
	s.exec(`update shop.item set id = 2 where tenant = 'a'; update shop.item set id = 1 where tenant = 'b'`)
	got := s.took()
	for _, want := range []string{"upsert a:2", "upsert b:1"} {
		if !slices.Contains(got, want) {
			t.Errorf("got %q, want %s", got, want)
		}
	}
	for _, place := range one[[]string](t, s.pool, `select array_agg(routing || ':' || entity_id order by 1) from product_outbox_versions`) {
		if place != "a:2" && place != "b:1" {
			t.Errorf("a version is of place %s", place)
		}
	}
}

func TestRoutingThatIsPartOfTheKey(t *testing.T) {
	t.Parallel()
	s := newTenants(t, `create table shop.item (tenant text, id bigint, name text, primary key (tenant, id))`, migrations.OutboxSpec{Routing: "tenant"})
	s.exec(`insert into shop.item values ('A', 1)`)
	s.exec(`update shop.item set tenant = 'B'`)
	got := s.took()
	slices.Sort(got)
	if want := []string{"delete A:1", "upsert A:1", "upsert B:1"}; !slices.Equal(got, want) {
		t.Errorf("events: got %q, want %q", got, want)
	}
}

// Several outboxes of one table have events and versions of their own, and go alone.
func TestSeveralOutboxesOfOneTable(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	_, err := migrations.CreateOutbox(t.Context(), s.dsn, productSpec(), true)
	wantError(t, err, "product_outbox_events", "is there already", "another --name")
	second := productSpec()
	second.Name = "suggest_outbox_events"
	s.create(second)
	events := func() []int {
		return query[int](t, s.pool, `select (select count(*) from product_outbox_events) union all select (select count(*) from suggest_outbox_events)`)
	}
	s.exec(`insert into shop.variant (product_id) values (1)`)
	if got := events(); !slices.Equal(got, []int{1, 1}) {
		t.Errorf("events: got %v, want one in each", got)
	}
	_, err = migrations.DropOutbox(t.Context(), s.dsn, migrations.DropSpec{Table: "shop.product"}, true)
	wantError(t, err, "has the outboxes product_outbox_events, suggest_outbox_events", "--name")
	if _, err := migrations.DropOutbox(t.Context(), s.dsn, migrations.DropSpec{Name: "suggest_outbox_events", Force: true}, true); err != nil {
		t.Fatal(err)
	}
	s.exec(`update shop.product set name = 'x'`)
	s.want("the other one", "upsert 1", "upsert 1")
}

// Bulk updates of moves and of children in opposite orders wait for each other.
func TestMovesAndChildrenDoNotDeadlock(t *testing.T) {
	t.Parallel()
	s := routed(t)
	s.exec(`insert into shop.item select i, 'A' from generate_series(1, 100) i; insert into shop.note select i, 'n' from generate_series(100, 1, -1) i`)
	s.took()
	done := make(chan error, 2)
	for _, sql := range []string{`update shop.item set tenant = case tenant when 'A' then 'B' else 'A' end`, `update shop.note set text = text || 'x'`} {
		go func() {
			for range 10 {
				if _, err := s.pool.Exec(t.Context(), sql); err != nil {
					done <- fmt.Errorf("%s: %w", sql, err)
					return
				}
			}
			done <- nil
		}()
	}
	for range 2 {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(testenv.Limit):
			t.Fatal("the writers do not end")
		}
	}
	if n := one[int](t, s.pool, `select count(*) from (select distinct on (split_part(entity_id, ':', 2)) op, entity_id from product_outbox_events
		order by split_part(entity_id, ':', 2), event_version desc) e join shop.item i on e.entity_id = i.tenant || ':' || i.id where op = 'upsert'`); n != 100 {
		t.Errorf("%d of 100 items end with an upsert of where they are", n)
	}
}

// Names that SQL has to quote, in keys and routings.
func TestHostileNamesOfKeysAndRoutings(t *testing.T) {
	t.Parallel()
	s := newShop(t, 0)
	for i, name := range []string{`a"b'c`, `$weft$; drop table x; --`, "two\nlines", `{schema}{name}`, `back\slash`, `weft_old`, `was`} {
		table, key, routing := pgx.Identifier{"shop", name}.Sanitize(), pgx.Identifier{name + " key"}.Sanitize(), pgx.Identifier{name}.Sanitize()
		s.exec(fmt.Sprintf(`create table %s (%s text, n numeric, %s char(40) not null, primary key (%[2]s, n))`, table, key, routing))
		outbox := fmt.Sprintf("hostile_%d_outbox_events", i)
		s.create(migrations.OutboxSpec{Table: table, Key: []string{name + " key", "n"}, Routing: name, Name: outbox})
		s.exec(fmt.Sprintf(`insert into %s values ('k', 1.0, 'r')`, table))
		s.exec(fmt.Sprintf(`update %s set %s = 's'`, table, routing))
		s.exec(fmt.Sprintf(`delete from %s`, table))
		got := query[string](t, s.pool, `select op || ' ' || entity_id from `+outbox+` order by event_version`)
		if want := []string{"upsert r:k:1", "delete r:k:1", "upsert s:k:1", "delete s:k:1"}; !slices.Equal(got, want) {
			t.Errorf("%q: events %q, want %q", name, got, want)
		}
		if _, err := migrations.DropOutbox(t.Context(), s.dsn, migrations.DropSpec{Table: table, Force: true}, true); err != nil {
			t.Errorf("drop of %q: %v", name, err)
		}
	}
	if left := query[string](t, s.pool, `select proname::text from pg_proc where proname like 'hostile%'`); len(left) > 0 {
		t.Errorf("drop has left %q", left)
	}
}

func TestCallsOfEnqueueWithPlaces(t *testing.T) {
	t.Parallel()
	s := routed(t)
	s.exec(`insert into shop.item values (1, 'A')`)
	s.took()
	for _, call := range []string{`'A:1', 'delete'`, `'B:1', 'upsert'`} {
		s.exec(`select weft_enqueue('product_outbox_events', null, ` + call + `)`)
	}
	s.want("calls", "delete A:1", "upsert B:1")
	if got := one[string](t, s.pool, `select routing from product_outbox_versions`); got != "B" {
		t.Errorf("routing: got %s", got)
	}
	_, err := s.pool.Exec(t.Context(), `select weft_enqueue('product_outbox_events', null, '1', 'upsert')`)
	wantError(t, err, "id 1 of product_outbox_events: want tenant:id")
}

// A call with a place finds the version of its entity by the index, as the key's type reads the
// id: it costs the same whatever number of entities there is.
func TestCallsOfEnqueueWithPlacesReadOneVersion(t *testing.T) {
	t.Parallel()
	s := routed(t)
	s.exec(`insert into shop.item select i, 'A' from generate_series(1, 3000) i`)
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	var routing string
	var scans int
	for _, into := range []struct {
		sql string
		of  any
	}{
		{`select weft_enqueue('product_outbox_events', null, 'B:01', 'upsert')::text`, new(string)},
		{`select seq_scan from pg_stat_xact_user_tables where relname = 'product_outbox_versions'`, &scans},
		{`select routing from product_outbox_versions where entity_id = 1`, &routing},
	} {
		if err := tx.QueryRow(t.Context(), into.sql).Scan(into.of); err != nil {
			t.Fatalf("%s: %v", into.sql, err)
		}
	}
	if routing != "B" || scans != 0 {
		t.Errorf("routing %s after %d scans of all versions, want B after none", routing, scans)
	}
}

func TestKeysAndRoutingsThatAreRefused(t *testing.T) {
	t.Parallel()
	s := &shop{t: t, dsn: testenv.Database(t)}
	s.pool = testenv.Pool(t, s.dsn)
	s.exec(`create schema shop; create table shop.item (tenant text, id bigint, maybe text, at timestamptz not null, price numeric unique, primary key (tenant, id), unique (id));
		create table shop.note (id bigint); create table shop.keyless (id bigint)`)
	for _, tc := range []struct {
		spec migrations.OutboxSpec
		want []string
	}{
		{migrations.OutboxSpec{Table: "shop.item", Key: []string{"id"}, Routing: "maybe"}, []string{`the routing "maybe", which may be null`, "set not null"}},
		{migrations.OutboxSpec{Table: "shop.item", Routing: "nobody"}, []string{`no column "nobody"`}},
		{migrations.OutboxSpec{Table: "shop.item", Routing: "at"}, []string{`the routing "at" of type timestamp with time zone`, "a routing needs"}},
		{migrations.OutboxSpec{Table: "shop.item", Key: []string{"tenant", "at"}}, []string{`the key "at" of type timestamp with time zone`}},
		{migrations.OutboxSpec{Table: "shop.item", Key: []string{"tenant", "maybe"}}, []string{`the key "tenant, maybe" without a unique index`}},
		{migrations.OutboxSpec{Table: "shop.item", Key: []string{"id", "id"}}, []string{`named twice`}},
		{migrations.OutboxSpec{Table: "shop.item", Key: []string{"price"}}, []string{`the key "price" of type numeric`, "a part of a key may be a numeric"}},
		{migrations.OutboxSpec{Table: "shop.keyless"}, []string{"has no primary key", "--key"}},
		{migrations.OutboxSpec{Table: "shop.item", Children: []migrations.Child{{Table: "shop.note", Columns: []string{"id"}}}},
			[]string{"shop.note", "names 1 of its columns as the key of the parent, which has 2", "tenant, id, in this order"}},
	} {
		_, err := migrations.CreateOutbox(t.Context(), s.dsn, tc.spec, true)
		wantError(t, err, tc.want...)
	}
}
