package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

// shop is products, their variants, and an outbox of the products.
type shop struct {
	t    *testing.T
	dsn  string
	pool *pgxpool.Pool
}

const shopTables = `
create schema shop;
create table shop.product (id integer primary key, name text, doc json);
create table shop.variant (id bigint generated always as identity primary key,
	product_id integer references shop.product on delete cascade on update cascade, sku text);
create index on shop.variant (product_id)`

func productSpec() migrations.OutboxSpec {
	return migrations.OutboxSpec{Table: "shop.product", Children: []migrations.Child{{Table: "shop.variant", Columns: []string{"product_id"}}}}
}

func newShop(t *testing.T, products int) *shop {
	t.Helper()
	s := &shop{t: t, dsn: testenv.Database(t)}
	s.pool = testenv.Pool(t, s.dsn)
	s.exec(shopTables)
	s.exec(`insert into shop.product select i, 'p' || i, '{"a": 1}' from generate_series(1, $1) i`, products)
	s.exec(`insert into shop.variant (product_id, sku) select id, 'v' || id from shop.product`)
	s.create(productSpec())
	return s
}

func (s *shop) exec(sql string, args ...any) {
	s.t.Helper()
	exec(s.t, s.pool, sql, args...)
}

func (s *shop) create(spec migrations.OutboxSpec) *migrations.OutboxPlan {
	s.t.Helper()
	plan, err := migrations.CreateOutbox(s.t.Context(), s.dsn, spec, true)
	if err != nil {
		s.t.Fatalf("create: %v", err)
	}
	return plan
}

// took returns the events since it was last asked, as "upsert 1", and empties the outbox.
func (s *shop) took() []string {
	s.t.Helper()
	return query[string](s.t, s.pool, `with gone as (delete from product_outbox_events returning op, entity_id, event_version)
		select op || ' ' || entity_id from gone order by event_version`)
}

func (s *shop) want(what string, want ...string) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.took(), cmp.Transformer("none", func(in []string) []string { return append([]string{}, in...) })); diff != "" {
		s.t.Errorf("%s: events (-want +got):\n%s", what, diff)
	}
}

// begin opens a transaction that the test's end rolls back.
func (s *shop) begin(level pgx.TxIsoLevel) pgx.Tx {
	s.t.Helper()
	tx, err := s.pool.BeginTx(s.t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func mustExec(t *testing.T, tx pgx.Tx, sql string) {
	t.Helper()
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// background runs sql in tx and reports its end.
func background(t *testing.T, tx pgx.Tx, sql string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := tx.Exec(t.Context(), sql)
		done <- err
	}()
	return done
}

// waits blocks until a session of the database waits for a lock.
func (s *shop) waits() {
	s.t.Helper()
	testenv.Eventually(s.t, func() bool {
		return one[int](s.t, s.pool, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) > 0
	}, "a writer waits for the other")
}

func TestStatementsTouchTheirEntities(t *testing.T) {
	t.Parallel()
	s := newShop(t, 4)
	s.want("what was there before")
	for _, tc := range []struct {
		what, sql string
		want      []string
	}{
		{"insert of several", `insert into shop.product (id, name) values (7, 'a'), (6, 'b')`, []string{"upsert 6", "upsert 7"}},
		{"update", `update shop.product set name = name || '!' where id in (2, 1)`, []string{"upsert 1", "upsert 2"}},
		{"update that changes nothing", `update shop.product set name = name, doc = doc`, nil},
		{"update of a type without equality", `update shop.product set doc = '{"a":1}' where id = 3`, []string{"upsert 3"}},
		{"update of no row", `update shop.product set name = 'x' where false`, nil},
		{"child updated", `update shop.variant set sku = 'x' where product_id = 2`, []string{"upsert 2"}},
		{"child that does not change", `update shop.variant set sku = sku`, nil},
		{"child moved", `update shop.variant set product_id = 4 where product_id = 3`, []string{"upsert 3", "upsert 4"}},
		{"child orphaned", `update shop.variant set product_id = null where product_id = 1`, []string{"upsert 1"}},
		{"child without a parent", `insert into shop.variant (sku) values ('none')`, nil},
		{"key changed, and that of its children by the cascade", `update shop.product set id = 9 where id = 2`, []string{"delete 2", "upsert 9", "delete 2", "upsert 9"}},
		{"children of one parent at once", `insert into shop.variant (product_id) select 6 from generate_series(1, 50)`, []string{"upsert 6"}},
		{"children deleted", `delete from shop.variant where product_id = 6`, []string{"upsert 6"}},
		{"delete with a cascade", `delete from shop.product where id = 9`, []string{"delete 9", "delete 9"}},
		{"delete without children", `delete from shop.product where id = 7`, []string{"delete 7"}},
		{"return of a deleted key", `insert into shop.product (id) values (7)`, []string{"upsert 7"}},
		{"on conflict", `insert into shop.product (id, name) values (7, 'c'), (8, 'd') on conflict (id) do update set name = excluded.name`, []string{"upsert 7", "upsert 8"}},
		{"on conflict that does nothing", `insert into shop.product (id) values (7) on conflict do nothing`, nil},
		{"merge", `merge into shop.product p using (values (7, 'm'), (12, 'n'), (1, null)) as v(id, name) on p.id = v.id
			when matched and v.name is null then delete when matched then update set name = v.name when not matched then insert (id, name) values (v.id, v.name)`,
			[]string{"delete 1", "upsert 7", "upsert 12"}},
		{"swap of two keys", `alter table shop.product drop constraint product_pkey cascade; alter table shop.product add primary key (id) deferrable;
			update shop.product set id = case id when 3 then 4 else 3 end where id in (3, 4)`, []string{"upsert 3", "upsert 4"}},
	} {
		if tc.what == "merge" && testenv.PostgresMajor(t) < 15 {
			t.Log("merge came with PostgreSQL 15; three statements stand for it")
			tc.sql = `delete from shop.product where id = 1; update shop.product set name = 'm' where id = 7; insert into shop.product (id, name) values (12, 'n')`
		}
		s.exec(tc.sql)
		got := s.took()
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.what, got, tc.want)
		}
	}
	if n, err := s.pool.CopyFrom(t.Context(), pgx.Identifier{"shop", "product"}, []string{"id"}, pgx.CopyFromRows([][]any{{31}, {30}})); err != nil || n != 2 {
		t.Fatalf("copy: %d, %v", n, err)
	}
	s.want("copy", "upsert 30", "upsert 31")
	if diff := cmp.Diff([]string{"1 true", "2 true", "9 true"}, query[string](t, s.pool,
		`select entity_id || ' ' || deleted from product_outbox_versions where deleted order by 1`)); diff != "" {
		t.Errorf("versions that outlive their rows (-want +got):\n%s", diff)
	}
}

// A bulk update of children is one insert, of one event for each parent.
func TestBulkUpdateOfChildrenWritesOneEventForEachParent(t *testing.T) {
	t.Parallel()
	s := newShop(t, 10)
	s.exec(`insert into shop.variant (product_id) select 1 + i % 10 from generate_series(1, 10000) i`)
	s.took()
	s.exec(`create table inserts (n int);
		create function counted() returns trigger language plpgsql as 'begin insert into public.inserts select count(*) from added; return null; end';
		create trigger counted after insert on product_outbox_events referencing new table as added for each statement execute function counted()`)
	s.exec(`update shop.variant set sku = 'bulk'`)
	if got := query[int](t, s.pool, `select n from inserts`); !slices.Equal(got, []int{10}) {
		t.Errorf("inserts into the outbox: got %v events, want one insert of 10", got)
	}
	if got := s.took(); len(got) != 10 {
		t.Errorf("events: got %q, want one for each parent", got)
	}
}

// The writer of a second child waits for the first to commit and draws the higher version:
// whatever is committed later has the higher version.
func TestVersionsHaveTheOrderOfCommits(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.exec(`insert into shop.variant (product_id, sku) values (1, 'b')`)
	s.took()
	a, b := s.begin(pgx.ReadCommitted), s.begin(pgx.ReadCommitted)
	mustExec(t, a, `update shop.variant set sku = 'a2' where sku = 'v1'`)
	blocked := background(t, b, `update shop.variant set sku = 'b2' where sku = 'b'`)
	s.waits()
	if err := a.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := one[int64](t, s.pool, `select version from product_outbox_versions where entity_id = 1`)
	if err := <-blocked; err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := query[int64](t, s.pool, `select event_version from product_outbox_events order by event_version`)
	if len(got) != 2 || got[0] != first || got[1] <= first {
		t.Errorf("versions: got %v, want %d and a higher one", got, first)
	}
	if last := one[int64](t, s.pool, `select version from product_outbox_versions where entity_id = 1`); last != got[1] {
		t.Errorf("version row: got %d, want that of the last event, %d", last, got[1])
	}
}

// Who waits for a version sees, once it has it, what the holder has done to the entity: a child
// that is written beside its parent's insert must not delete the parent's document.
func TestEventsAgreeWithWhatTheWriterBeforeCommitted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ first, second, want string }{
		"ChildBesideInsert": {`insert into shop.product (id) values (5)`, `insert into shop.variant (product_id) values (5)`, "upsert 5"},
		"ChildBesideDelete": {`delete from shop.product where id = 1`, `update shop.variant set sku = 'x' where product_id = 1`, "delete 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, 1)
			s.exec(`alter table shop.variant drop constraint variant_product_id_fkey`) // without it nothing else makes them wait
			a, b := s.begin(pgx.ReadCommitted), s.begin(pgx.ReadCommitted)
			mustExec(t, a, tc.first)
			blocked := background(t, b, tc.second)
			s.waits()
			if err := errors.Join(a.Commit(t.Context()), <-blocked, b.Commit(t.Context())); err != nil {
				t.Fatal(err)
			}
			s.want("both", tc.want, tc.want)
			if got := one[bool](t, s.pool, `select deleted from product_outbox_versions where entity_id = split_part($1, ' ', 2)::int`, tc.want); got != strings.HasPrefix(tc.want, "delete") {
				t.Errorf("deleted: got %v after %s", got, tc.want)
			}
		})
	}
}

// Two statements that touch the same parents in opposite orders wait, and do not deadlock.
func TestBulkUpdatesOfTheSameParentsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	s := newShop(t, 200)
	s.exec(`insert into shop.variant (product_id, sku) select id, 'second' from shop.product order by id desc;
		alter table shop.variant add changes int not null default 0`)
	s.took()
	const rounds = 20
	done := make(chan error, 2)
	for _, of := range []string{`sku like 'v%'`, `sku = 'second'`} {
		go func() {
			for range rounds {
				if _, err := s.pool.Exec(t.Context(), `update shop.variant set changes = changes + 1 where `+of); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		t.Fatal(err)
	}
	if got := len(s.took()); got != 2*rounds*200 {
		t.Errorf("events: got %d, want one for each parent and statement, %d", got, 2*rounds*200)
	}
}

// Two transactions of several statements may touch entities in opposite orders: PostgreSQL
// ends one of them, and its retry goes through. Under repeatable read the later writer of an
// entity is refused.
func TestWritersAreRefusedWithCodesToRetry(t *testing.T) {
	t.Parallel()
	t.Run("Deadlock", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, 2)
		a, b := s.begin(pgx.ReadCommitted), s.begin(pgx.ReadCommitted)
		mustExec(t, a, `insert into shop.variant (product_id) values (1)`)
		mustExec(t, b, `insert into shop.variant (product_id) values (2)`)
		blocked := background(t, a, `insert into shop.variant (product_id) values (2)`)
		s.waits()
		_, second := b.Exec(t.Context(), `insert into shop.variant (product_id) values (1)`)
		if second == nil {
			_ = b.Commit(t.Context())
		} else {
			_ = b.Rollback(t.Context())
		}
		if first := <-blocked; (code(first) == "40P01") == (code(second) == "40P01") {
			t.Errorf("got %v and %v, want one of them to be 40P01", first, second)
		}
	})
	t.Run("RepeatableRead", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, 1)
		s.exec(`update shop.product set name = 'x'`)
		a := s.begin(pgx.RepeatableRead)
		mustExec(t, a, `select from shop.product`)
		s.exec(`insert into shop.variant (product_id) values (1)`)
		if _, err := a.Exec(t.Context(), `insert into shop.variant (product_id) values (1)`); code(err) != "40001" {
			t.Errorf("got %v, want 40001", err)
		}
	})
}

func TestWhatIsRolledBackLeavesNoEvent(t *testing.T) {
	t.Parallel()
	s := newShop(t, 2)
	tx := s.begin(pgx.ReadCommitted)
	mustExec(t, tx, `update shop.product set name = 'a' where id = 1`)
	mustExec(t, tx, `savepoint s`)
	mustExec(t, tx, `update shop.product set name = 'b' where id = 2`)
	mustExec(t, tx, `rollback to savepoint s`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.want("a savepoint", "upsert 1")
	tx = s.begin(pgx.ReadCommitted)
	mustExec(t, tx, `delete from shop.product where id = 1`)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.want("a transaction")
	if one[bool](t, s.pool, `select deleted from product_outbox_versions where entity_id = 1`) {
		t.Error("the version row says deleted after the rollback")
	}
}

func TestEventsCarryTheTraceContext(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	tx := s.begin(pgx.ReadCommitted)
	mustExec(t, tx, `select set_config('weft.traceparent', '`+parent+`', true), set_config('weft.tracestate', 'a=b', true)`)
	mustExec(t, tx, `update shop.product set name = 'a'`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.exec(`update shop.product set name = 'b'`)
	s.exec(`select set_config('weft.traceparent', repeat('x', 600), false); update shop.product set name = 'c'`)
	got := query[string](t, s.pool, `select coalesce(traceparent, 'none') || ' ' || coalesce(tracestate, 'none') from product_outbox_events order by event_version`)
	if want := []string{parent + " a=b", "none none", "none none"}; !slices.Equal(got, want) {
		t.Errorf("trace contexts: got %q, want %q: none where none is set, and where it does not fit", got, want)
	}
}

// Truncate is refused, also by way of a cascade, and says what to do; nothing fires for a
// session that replicates.
func TestTruncateIsRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	for _, sql := range []string{`truncate shop.product cascade`, `truncate shop.variant`} {
		_, err := s.pool.Exec(t.Context(), sql)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pg.Code != "0A000" || !strings.Contains(pg.Message, "would leave what it removes in the index") || !strings.Contains(pg.Hint, "disable trigger product_outbox_truncate") {
			t.Errorf("%s: got %v, want a refusal with a remedy", sql, err)
		}
	}
	s.exec(`set session_replication_role = replica; update shop.product set name = 'r'; reset session_replication_role`)
	s.want("a replicating session")
}

// What is written through a partitioned table, to which the source was attached later, writes no
// event: `weft projection check` names it. Detached again, nothing is missed.
func TestAttachedSourceMissesWritesThroughItsParent(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	s.exec(`create table shop.everything (like shop.product) partition by range (id)`)
	s.exec(`alter table shop.product drop constraint product_pkey cascade`)
	s.exec(`alter table shop.everything attach partition shop.product for values from (0) to (1000)`)
	s.exec(`insert into shop.everything (id) values (5)`)
	s.want("a row written through the parent")
	s.exec(`insert into shop.product (id) values (6)`)
	s.want("a row written directly", "upsert 6")
	s.exec(`alter table shop.everything detach partition shop.product`)
	s.exec(`update shop.product set name = 'x' where id = 5`)
	s.want("after the detachment", "upsert 5")
}

// Whoever writes the source needs no right on the outbox, and gets none.
func TestWritersNeedNoRightOnTheOutbox(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	user := testenv.Runner(t, s.dsn) // of weft, who may not write events
	s.exec(`grant usage on schema shop to ` + user.Username() + `; grant select, insert, update, delete on all tables in schema shop to ` + user.Username())
	app := testenv.Pool(t, testenv.As(t, s.dsn, user))
	for _, sql := range []string{`update shop.product set name = 'app'`, `insert into shop.variant (product_id) values (1)`} {
		exec(t, app, sql)
	}
	s.want("the application", "upsert 1", "upsert 1")
	// What is called with the owner's rights takes no function from where others put one.
	s.exec(`create schema evil; create function evil.nextval(regclass) returns bigint language sql as 'select 1::bigint'; grant usage on schema evil to public`)
	exec(t, app, `set search_path = evil, pg_catalog, public; update shop.product set name = 'evil'`)
	if one[int64](t, s.pool, `select event_version from product_outbox_events`) < 1e15 {
		t.Error("the version came from a function of the caller")
	}
	for _, sql := range []string{`insert into product_outbox_events (entity_type, entity_id, op, event_version) values ('x', 1, 'upsert', 1)`,
		`update product_outbox_versions set version = 0`, `select product_outbox_touch('{1}')`, `select weft_enqueue('product_outbox_events', null, '1', 'upsert', null)`} {
		if _, err := app.Exec(t.Context(), sql); code(err) != "42501" {
			t.Errorf("%s: got %v, want permission denied", sql, err)
		}
	}
}

// A table to which the source refers is no child by its own key: events would be those of other rows.
func TestCreateOutboxWarnsOfATableThatTheSourceRefersTo(t *testing.T) {
	t.Parallel()
	s := newShop(t, 0)
	s.exec(`create table shop.author (id bigint primary key); create table shop.post (id bigint primary key references shop.author, author_id bigint references shop.author);
		create table shop.detail (id bigint primary key references shop.post); alter table shop.post add detail_id bigint references shop.detail;
		create table shop.root (id bigint primary key); create table shop.leaf (id bigint primary key references shop.root)`)
	for name, tc := range map[string]struct {
		table, child string
		warned       bool
	}{
		"ByAnotherColumn": {"shop.post", "shop.author", true},
		"BothWays":        {"shop.post", "shop.detail", false},
		"SameKey":         {"shop.leaf", "shop.root", false},
	} {
		plan := s.create(migrations.OutboxSpec{Table: tc.table, Name: strings.ToLower(name) + "_outbox_events", Children: []migrations.Child{{Table: tc.child, Columns: []string{"id"}}}})
		warned := slices.ContainsFunc(plan.Warnings, func(w string) bool {
			return strings.Contains(w, tc.table+" refers to "+tc.child+" by another column than its key")
		})
		if warned != tc.warned {
			t.Errorf("%s: got warnings %q, want one about the key: %v", name, plan.Warnings, tc.warned)
		}
	}
}

// Names that SQL has to quote, in a table, its key, its child and what they contain.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	s := newShop(t, 0)
	for i, name := range []string{`Order Line`, `a"b'c`, `$weft$; drop table x; --`, "two\nlines", `{schema}{name}`, `back\slash`, `weft_old`, `ids`, `déjà vu`} {
		table, key, ref := pgx.Identifier{"shop", name}.Sanitize(), pgx.Identifier{name + " key"}.Sanitize(), pgx.Identifier{name}.Sanitize()
		child := pgx.Identifier{"shop", name + " child"}.Sanitize()
		s.exec(fmt.Sprintf(`create table %s (%s text primary key, %s text); create table %s (%s varchar(60))`, table, key, ref, child, ref))
		outbox := fmt.Sprintf("hostile_%d_outbox_events", i)
		plan := s.create(migrations.OutboxSpec{Table: table, Key: []string{name + " key"}, EntityType: name, Name: outbox, Children: []migrations.Child{{Table: child, Columns: []string{name}}}})
		if len(plan.Warnings) != 1 || !strings.HasPrefix(plan.Warnings[0], "no index of shop.") {
			t.Errorf("%q: warnings %q, want that the child lacks an index", name, plan.Warnings)
		}
		s.exec(fmt.Sprintf(`insert into %s values ($1, 'x')`, table), name)
		s.exec(fmt.Sprintf(`insert into %s values ($1), (null)`, child), name)
		s.exec(fmt.Sprintf(`update %s set %s = 'gone'`, child, ref))
		s.exec(fmt.Sprintf(`update %s set %s = 'y'`, table, ref))
		got := query[string](t, s.pool, `select op || ' ' || entity_type || ' ' || entity_id from `+outbox+` order by event_version`)
		want := []string{"upsert " + name + " " + name, "upsert " + name + " " + name, "upsert " + name + " " + name, "delete " + name + " gone", "upsert " + name + " " + name}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: events (-want +got):\n%s", name, diff)
		}
		if _, err := migrations.DropOutbox(t.Context(), s.dsn, migrations.DropSpec{Table: table, Force: true}, true); err != nil {
			t.Errorf("drop of %q: %v", name, err)
		}
	}
}

// The type of the events stands in the functions' bodies, as the names do.
func TestHostileType(t *testing.T) {
	t.Parallel()
	s := newShop(t, 0)
	const typ = `$weft$ "a'b" $_weft$`
	s.create(migrations.OutboxSpec{Table: "shop.product", Name: "typed_outbox_events", EntityType: typ})
	s.exec("insert into shop.product values (1)")
	if got := one[string](t, s.pool, "select entity_type from typed_outbox_events"); got != typ {
		t.Errorf("type: got %q, want %q", got, typ)
	}
}

// A table may refer to itself, and a child to its parent by two columns.
func TestTableThatIsItsOwnChild(t *testing.T) {
	t.Parallel()
	s := newShop(t, 0)
	s.exec(`create table shop.node (id uuid primary key, parent_id uuid, other_id uuid)`)
	s.create(migrations.OutboxSpec{Table: "shop.node", Children: []migrations.Child{{Table: "shop.node", Columns: []string{"parent_id"}}, {Table: "shop.node", Columns: []string{"other_id"}}}})
	const id = `'00000000-0000-0000-0000-00000000000%d'`
	s.exec(fmt.Sprintf(`insert into shop.node values (`+id+`), (`+id+`)`, 1, 2))
	s.exec(`delete from node_outbox_events`)
	s.exec(fmt.Sprintf(`insert into shop.node values (`+id+`, `+id+`, `+id+`)`, 3, 1, 2))
	if got := query[string](t, s.pool, `select op || right(entity_id::text, 1) from node_outbox_events order by event_version`); !slices.Equal(got, []string{"upsert1", "upsert2", "upsert3"}) {
		t.Errorf("events: got %q, want those of the node and both that it refers to", got)
	}
}
