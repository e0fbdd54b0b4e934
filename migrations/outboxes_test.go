package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

// What an outbox that was made is to weft: a table that a store leases from, settles on and
// archives, whatever the type of the entities' ids.
func TestStoreWorksOnACreatedOutbox(t *testing.T) {
	t.Parallel()
	for typ, tc := range map[string]struct {
		kind outbox.IDKind
		id   string
	}{"smallint": {outbox.KindNumber, "7"}, "bigint": {outbox.KindNumber, "9223372036854775807"}, "uuid": {outbox.KindUUID, "0af76519-16cd-43dd-8448-eb211c80319c"}, "varchar(40)": {outbox.KindText, "a'b"}, "text": {outbox.KindText, "é/%"}} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			dsn := testenv.Database(t)
			owner := testenv.Pool(t, dsn)
			exec(t, owner, `create table "Thing" ("Key" `+typ+` primary key, name text)`)
			if _, err := migrations.CreateOutbox(t.Context(), dsn, migrations.OutboxSpec{Table: `"Thing"`}, true); err != nil {
				t.Fatal(err)
			}
			const table = "thing_outbox_events"
			mode := migrations.Mode{Table: table, Finished: "archive", Retention: true}
			user := testenv.Runner(t, dsn)
			pool := testenv.Pool(t, testenv.As(t, dsn, user))
			if err := migrations.CheckRights(t.Context(), pool, mode); err == nil || !strings.Contains(err.Error(), "delete on "+table) {
				t.Errorf("rights before they were granted: got %v, want delete to be missing", err)
			}
			if err := migrations.Grant(t.Context(), dsn, user.Username(), mode); err != nil {
				t.Fatal(err)
			}
			if err := migrations.CheckRights(t.Context(), pool, mode); err != nil {
				t.Errorf("rights: %v", err)
			}
			exec(t, owner, `insert into "Thing" values ('`+strings.ReplaceAll(tc.id, "'", "''")+`')`)
			settled(t, pool, owner, table, tc.kind, tc.id)
		})
	}
}

// settled carries the one event of an outbox as an instance does that archives.
func settled(t *testing.T, pool, owner outbox.DB, table string, kind outbox.IDKind, id string) {
	t.Helper()
	store, err := outbox.OpenStore(t.Context(), pool, outbox.StoreConfig{Table: table, Group: "g", Owner: "a", Lease: 30 * time.Second, Finished: outbox.Archive})
	if err != nil {
		t.Fatal(err)
	}
	if got := store.Shape().Entity; got != kind {
		t.Errorf("kind of the entities: got %s, want %s", got, kind)
	}
	for _, sql := range []string{`insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('g', 1, 'a', now(), now())`,
		`select weft_history_attach('` + table + `', (now() at time zone 'UTC')::date)`} {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	list, err := store.List(t.Context(), outbox.ListRequest{Ready: 10, Due: 10})
	if err != nil || len(list.Ready) != 1 || list.Ready[0].Key.ID.String() != id {
		t.Fatalf("list: got %+v, %v, want the event of %s", list, err, id)
	}
	row, batch := list.Ready[0], uuid.New()
	lease, err := store.Lease(t.Context(), 1, batch, []outbox.Group{{Key: row.Key, Rows: []outbox.Row{row}, Check: true}})
	if err != nil || len(lease.Events) != 1 {
		t.Fatalf("lease: got %+v, %v", lease, err)
	}
	var shown int
	if err := owner.QueryRow(t.Context(), `select count(*) from weft_inflight i join `+table+`_live l on l.id::text = i.event_id
		where i.table_name = $1 and i.entity_id = $2 and l.status = 'processing'`, table, id).Scan(&shown); err != nil || shown != 1 {
		t.Errorf("in flight: got %d, %v, want the event", shown, err)
	}
	event := &lease.Events[0][0]
	done, err := store.Settle(t.Context(), 1, batch, []outbox.Settlement{{Event: event, Verdict: outbox.Done}})
	if err != nil {
		t.Fatalf("settle: %+v, %v", done, err)
	}
	var archived, left int
	if err := owner.QueryRow(t.Context(), `select (select count(*) from thing_outbox_history where status = 'done' and entity_id::text = $1), (select count(*) from `+table+`)`, id).Scan(&archived, &left); err != nil || archived != 1 || left != 0 {
		t.Errorf("archived %d and left %d, %v, want 1 and 0", archived, left, err)
	}
}

// Up gives a registered table the columns, settings, indexes and views that it lacks.
func TestUpAdoptsRegisteredTables(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	before := query[string](t, s.pool, columnsOf, "product_outbox_events")
	indexes := query[string](t, s.pool, `select indexname::text from pg_indexes where tablename = 'product_outbox_events' order by 1`)
	if want := []string{"product_outbox_events_pkey", "weft_product_outbox_behind", "weft_product_outbox_blocked", "weft_product_outbox_discarded", "weft_product_outbox_entity",
		"weft_product_outbox_failed", "weft_product_outbox_letters", "weft_product_outbox_list", "weft_product_outbox_processing", "weft_product_outbox_retry"}; !slices.Equal(indexes, want) {
		t.Errorf("indexes: got %q, want %q", indexes, want)
	}
	if got := up(t, s.dsn); len(got) != 0 {
		t.Errorf("up after create: got %v, want nothing to do", got)
	}
	s.exec(`drop view product_outbox_events_live, weft_inflight; alter table product_outbox_events drop column behind; alter table product_outbox_events reset (vacuum_truncate);
		alter table product_outbox_events add column tenant text; drop index weft_product_outbox_failed`)
	if got := versions(up(t, s.dsn)); !slices.Equal(got, []int64{migrations.Latest}) {
		t.Errorf("up: got %v, want a step of the latest version", got)
	}
	after := query[string](t, s.pool, columnsOf, "product_outbox_events")
	slices.Sort(before)
	slices.Sort(after)
	if len(after) != len(before)+1 {
		t.Errorf("columns: got %q, want those of before and tenant", after)
	}
	if got := query[string](t, s.pool, `select indexname::text from pg_indexes where tablename = 'product_outbox_events' order by 1`); len(got) != len(indexes) {
		t.Errorf("indexes: got %q, want %q again", got, indexes)
	}
	if diff := cmp.Diff(query[string](t, s.pool, columnsOf, "product_outbox_events"), query[string](t, s.pool, columnsOf, "product_outbox_events_live")); diff != "" {
		t.Errorf("columns (-table +view):\n%s", diff)
	}
	if got := up(t, s.dsn); len(got) != 0 {
		t.Errorf("up again: got %v, want nothing to do", got)
	}
	if costly, err := findCostly(t, s.dsn); err != nil || slices.ContainsFunc(costly, func(c migrations.CostlyIndex) bool { return c.Table == "product_outbox_events" }) {
		t.Errorf("advice on indexes: got %v, %v, want none for the new table", costly, err)
	}
	s.exec(`create index mine on product_outbox_events (created_at)`)
	if costly, err := findCostly(t, s.dsn); err != nil || !slices.ContainsFunc(costly, func(c migrations.CostlyIndex) bool { return c.Name == "mine" }) {
		t.Errorf("advice on indexes: got %v, %v, want mine to be named", costly, err)
	}
}

func findCostly(t *testing.T, dsn string) ([]migrations.CostlyIndex, error) {
	t.Helper()
	conn, err := testenv.Pool(t, dsn).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	return migrations.FindCostly(t.Context(), conn.Conn())
}

func TestCreateRefusesWhatTriggersWouldMiss(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	exec(t, pool, shopTables+`;
		create table shop.split (id int primary key) partition by range (id);
		create table shop.part partition of shop.split for values from (0) to (9);
		create view shop.seen as table shop.product; create materialized view shop.kept as table shop.product;
		create extension if not exists file_fdw; create server files foreign data wrapper file_fdw; create foreign table shop.away (id int) server files options (filename '/dev/null');
		create table shop.family (id int primary key); create table shop.heir (primary key (id)) inherits (shop.family);
		create unlogged table shop.loose (id int primary key);
		create table shop.keyless (id int, "Other" numeric unique);
		create table shop.pair (a int, b int, primary key (a, b));
		create table shop.partial (id int); create unique index on shop.partial (id) where id > 0;
		create collation blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false); create table shop.blind (id text collate blind primary key);
		create table shop.hidden (id int primary key); alter table shop.hidden enable row level security;
		create table product_outbox_history (id int);
		create table shop.virtual (product_id int);
		create table shop.replica (id int primary key); set allow_system_table_mods = on;
		insert into pg_subscription_rel (srsubid, srrelid, srsubstate) values (1, 'shop.replica'::regclass, 'r');
		update pg_attribute set attgenerated = 'v' where attrelid = 'shop.virtual'::regclass and attname = 'product_id'; reset allow_system_table_mods;
		create table shop.a_name_that_is_so_long_that_no_history_fits (id int primary key)`)
	user := testenv.Runner(t, dsn)
	exec(t, pool, `grant usage on schema shop to `+user.Username()+`; grant select, trigger on shop.hidden to `+user.Username())
	for _, tc := range []struct {
		spec      migrations.OutboxSpec
		user      bool
		why, then string
	}{
		{spec: migrations.OutboxSpec{Table: "shop.split"}, why: "shop.split is partitioned: triggers on it miss what is written into a partition directly: keep its keys", then: "name that instead (docs/projections.md); nothing was changed"},
		{spec: migrations.OutboxSpec{Table: "weft_leader"}, why: "weft_leader is weft's own: name a table of the application"},
		{spec: migrations.OutboxSpec{Table: "search_outbox_events"}, why: "search_outbox_events is weft's own"},
		{spec: migrations.OutboxSpec{Table: "chronicle_outbox_history"}, why: "chronicle_outbox_history is weft's own"},
		{spec: migrations.OutboxSpec{Table: "shop.part"}, why: "shop.part is a partition", then: "keep the keys of the whole"},
		{spec: migrations.OutboxSpec{Table: "shop.seen"}, why: "is a view: it has no rows of its own to watch: name the tables behind it"},
		{spec: migrations.OutboxSpec{Table: "shop.kept"}, why: "is a materialized view", then: "name the tables behind it"},
		{spec: migrations.OutboxSpec{Table: "shop.away"}, why: "is a foreign table", then: "on that server"},
		{spec: migrations.OutboxSpec{Table: "shop.family"}, why: "is part of an inheritance tree", then: "no inherit"},
		{spec: migrations.OutboxSpec{Table: "shop.heir"}, why: "is part of an inheritance tree"},
		{spec: migrations.OutboxSpec{Table: "shop.replica"}, why: "is filled by a logical replication subscription", then: "where it is written"},
		{spec: migrations.OutboxSpec{Table: "shop.loose"}, why: "is unlogged", then: "set logged"},
		{spec: migrations.OutboxSpec{Table: "shop.none"}, why: "does not exist"},
		{spec: migrations.OutboxSpec{Table: `shop."none`}, why: "does not exist", then: "as SQL does"},
		{spec: migrations.OutboxSpec{Table: "other.shop.none"}, why: "does not exist", then: "as SQL does"},
		{spec: migrations.OutboxSpec{Table: "a.b.c.d"}, why: "does not exist", then: "as SQL does"},
		{spec: migrations.OutboxSpec{Table: "shop.keyless"}, why: "has no primary key", then: "--key"},
		{spec: migrations.OutboxSpec{Table: "shop.pair", Key: []string{"a"}}, why: `has the key "a" without a unique index on it alone`},
		{spec: migrations.OutboxSpec{Table: "shop.partial", Key: []string{"id"}}, why: `has the key "id" without a unique index`},
		{spec: migrations.OutboxSpec{Table: "shop.keyless", Key: []string{"Other"}}, why: `has the key "Other" of type numeric`, then: "other unique columns with --key"},
		{spec: migrations.OutboxSpec{Table: "shop.keyless", Key: []string{"other"}}, why: `has no column "other"`, then: "in its case"},
		{spec: migrations.OutboxSpec{Table: "shop.blind"}, why: "nondeterministic collation"},
		{spec: migrations.OutboxSpec{Table: "shop.hidden"}, user: true, why: "has row security that applies to role " + user.Username(), then: "a role that bypasses it"},
		{spec: migrations.OutboxSpec{Table: "shop.product"}, user: true, why: "belongs to postgres, and role " + user.Username() + " may not read it and create triggers on it", then: "run this as its owner"},
		{spec: migrations.OutboxSpec{Table: "shop.product"}, why: `"product_outbox_history" is there already`, then: "--name"},
		{spec: migrations.OutboxSpec{Table: "shop.product", Name: "Mine"}, why: `"Mine" cannot be the name of an outbox table`},
		{spec: migrations.OutboxSpec{Table: "shop.product", Name: "order"}, why: "order is a word that SQL reserves", then: "--name"},
		{spec: migrations.OutboxSpec{Table: "shop.product", Name: "search_outbox_events"}, why: "search_outbox_events is there already"},
		{spec: migrations.OutboxSpec{Table: "shop.a_name_that_is_so_long_that_no_history_fits"}, why: "cannot be the name", then: "--name"},
		{spec: migrations.OutboxSpec{Table: "shop.product", Name: "p_outbox_events", EntityType: strings.Repeat("x", 51)}, why: "has an entity type of 51 characters"},
		{spec: migrations.OutboxSpec{Table: "shop.product", Name: "p_outbox_events", Children: []migrations.Child{{Table: "shop.variant", Columns: []string{"sku"}}}}, why: `has the column "sku" of type text, which cannot hold keys of type integer`},
		{spec: migrations.OutboxSpec{Table: "shop.product", Name: "p_outbox_events", Children: []migrations.Child{{Table: "shop.split", Columns: []string{"id"}}}}, why: "shop.split is partitioned"},
		{spec: migrations.OutboxSpec{Table: "shop.product", Name: "p_outbox_events", Children: []migrations.Child{{Table: "shop.virtual", Columns: []string{"product_id"}}}}, why: `has the column "product_id" generated when it is read (virtual)`, then: "stored"},
	} {
		url := dsn
		if tc.user {
			url = testenv.As(t, dsn, user)
		}
		_, err := migrations.CreateOutbox(t.Context(), url, tc.spec, true)
		var refused *migrations.OutboxError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), tc.why) || !strings.Contains(refused.Remedy, tc.then) {
			t.Errorf("%+v: got %v, want it refused because it %s (%s)", tc.spec, err, tc.why, tc.then)
		}
	}
	if got := one[int](t, pool, `select count(*) from weft_outbox`) + one[int](t, pool, `select count(*) from pg_trigger where not tgisinternal and tgname like '%outbox%'`); got != 0 {
		t.Errorf("%d triggers and registrations are left of what was refused", got)
	}
}

// What create made is dropped as a whole, and not while there is something to lose; the schema
// cannot go back to a build that would lose it.
func TestDropTakesBackWhatCreateMade(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	exec(t, pool, shopTables)
	reader := testenv.Runner(t, dsn).Username()
	const objects = `select coalesce(array_agg(x order by x), '{}') from (
		select relkind::text || ' ' || oid::regclass from pg_class where relnamespace in ('public'::regnamespace, 'shop'::regnamespace)
		union all select 'f ' || oid::regprocedure from pg_proc where pronamespace = 'public'::regnamespace
		union all select 't ' || tgname from pg_trigger where not tgisinternal) as made(x)`
	before := one[[]string](t, pool, objects)
	s := &shop{t: t, dsn: dsn, pool: pool}
	s.create(productSpec())

	_, err := migrations.CreateOutbox(t.Context(), dsn, productSpec(), true)
	wantError(t, err, "product_outbox_events is there already", "weft outbox drop --name product_outbox_events")
	downTo(t, dsn, 6)
	wantError(t, downError(t, dsn), "product_outbox_events is not known to the build before this one", "weft outbox drop --name product_outbox_events")
	if got := versions(up(t, dsn)); !slices.Equal(got, []int64{7}) {
		t.Errorf("up after the refusal: got versions %v, want 7", got)
	}

	drop := func(spec migrations.DropSpec) error {
		_, err := migrations.DropOutbox(t.Context(), dsn, spec, true)
		return err
	}
	s.exec(`insert into shop.product values (1)`)
	first := one[int64](t, pool, `select version from product_outbox_versions`)
	wantError(t, drop(migrations.DropSpec{Table: "shop.product"}), "product_outbox_events has events that are not done", "--force")
	s.exec(`select weft_history_attach('product_outbox_events', current_date); insert into product_outbox_history (id, processed_at) values (gen_random_uuid(), now()); delete from product_outbox_events`)
	wantError(t, drop(migrations.DropSpec{Table: "shop.product"}), "product_outbox_events has finished events in product_outbox_history", "--force")
	s.exec(`insert into shop.product values (2)`)
	s.want("triggers after a refused drop", "upsert 2")
	wantError(t, drop(migrations.DropSpec{Name: "search_outbox_events"}), "has no outbox that weft knows", "weft outbox list")
	s.create(migrations.OutboxSpec{Table: "shop.product", Name: "second"})
	wantError(t, drop(migrations.DropSpec{Table: "shop.product"}), "has the outboxes product_outbox_events, second", "--name")
	for _, of := range []string{"product", "second", "other"} { // what was compared, and what is the destination
		s.exec(fmt.Sprintf(`insert into weft_progress (table_name, group_name, projection, epoch, last_settle_at) values ('%[1]s_outbox_events', 'weft', 'of_%[1]s', 1, now());
			insert into weft_verify (projection, part, entity_type, entity_id, report, began_at, updated_at) values ('of_%[1]s', 'index', '', '', '{}', now(), now())`, of))
	}
	if err := errors.Join(drop(migrations.DropSpec{Name: "second"}), drop(migrations.DropSpec{Table: "shop.product", Force: true})); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, one[[]string](t, pool, objects)); diff != "" {
		t.Errorf("objects (-before +after):\n%s", diff)
	}
	if left := one[[]string](t, pool, `select array_agg(projection order by projection) from weft_verify`); !slices.Equal(left, []string{"of_other", "of_second"}) {
		t.Errorf("comparisons: got those of %v, want those of_other and of_second, whose tables are others", left)
	}
	if !one[bool](t, pool, `select has_table_privilege($1, 'weft_inflight', 'select')`, reader) {
		t.Error("the right to read weft_inflight was lost")
	}

	// Made again, it goes on above the versions of before.
	s.create(productSpec())
	s.exec(`update shop.product set name = 'again' where id = 1`)
	if again := one[int64](t, pool, `select version from product_outbox_versions`); again <= first {
		t.Errorf("version of the second outbox: got %d, want more than %d", again, first)
	}
	// A table that somebody has dropped by hand.
	s.exec(`drop table product_outbox_events cascade`)
	_, err = migrations.Up(t.Context(), dsn)
	wantError(t, err, "product_outbox_events is registered in weft_outbox, and there is no such table", "weft outbox drop --name product_outbox_events")
	if err := drop(migrations.DropSpec{Name: "product_outbox_events"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, one[[]string](t, pool, objects)); diff != "" {
		t.Errorf("objects (-before +after):\n%s", diff)
	}
	if err := downError(t, dsn); err != nil {
		t.Errorf("down: %v", err)
	}
	if !one[bool](t, pool, `select weft_history_attach('search_outbox_events', current_date)`) {
		t.Error("the history of the version below does not work")
	}
}

// The plan runs as it is printed.
func TestInterruptedCreateIsFinishedByUp(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	pool := testenv.Pool(t, dsn)
	exec(t, pool, shopTables)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := migrations.CreateOutbox(ctx, dsn, productSpec(), true, migrations.WithProgress(func(p migrations.Progress) {
		if strings.Contains(p.What, "product_outbox_history") {
			cancel()
		}
	}))
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want it interrupted", err)
	}
	_, err = migrations.CreateOutbox(t.Context(), dsn, productSpec(), true)
	wantError(t, err, "product_outbox_events is there already", "`weft migrate up` finishes it")
	up(t, dsn)
	exec(t, pool, "select from product_outbox_events_live, product_outbox_history")
}

// Functions and triggers name their schema.
func TestRenamedSchemaIsRefused(t *testing.T) {
	t.Parallel()
	base := testenv.Database(t)
	admin := testenv.Pool(t, base)
	dsn, formerly := with(t, base, "search_path", `"We""ft_now"`), with(t, base, "search_path", `"We""ft"`)
	exec(t, admin, `create schema "We""ft"`)
	up(t, formerly)
	if err := migrations.Check(t.Context(), testenv.Pool(t, formerly)); err != nil {
		t.Fatal(err)
	}
	exec(t, admin, `alter schema "We""ft" rename to "We""ft_now"`)
	const want = `alter schema "We""ft_now" rename to "We""ft"`
	wantError(t, migrations.Check(t.Context(), testenv.Pool(t, dsn)), "has been renamed", want)
	_, err := migrations.Up(t.Context(), dsn)
	wantError(t, err, "has been renamed", want)
}

func TestPrintedPlanRuns(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	s := &shop{t: t, dsn: dsn, pool: testenv.Pool(t, dsn)}
	s.exec(shopTables)
	plan, err := migrations.CreateOutbox(t.Context(), dsn, productSpec(), false)
	if err != nil {
		t.Fatal(err)
	}
	if one[int](t, s.pool, `select count(*) from weft_outbox`) != 0 {
		t.Error("something was made without apply")
	}
	s.exec(plan.SQL())
	if got := versions(up(t, dsn)); !slices.Equal(got, []int64{migrations.Latest}) {
		t.Errorf("up: got %v, want the history and the views", got)
	}
	s.exec(`insert into shop.product values (1)`)
	s.want("what was made", "upsert 1")
	plan, err = migrations.DropOutbox(t.Context(), dsn, migrations.DropSpec{Table: "shop.product"}, false)
	if err != nil {
		t.Fatal(err)
	}
	s.exec(plan.SQL())
	if got := up(t, dsn); len(got) != 0 {
		t.Errorf("up after the drop: got %v, want nothing to do", got)
	}
	if got := query[string](t, s.pool, `select relname::text from pg_class where relname like 'product%' and relnamespace = 'public'::regnamespace`); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
}

func TestEnqueueFunction(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	user := testenv.Runner(t, s.dsn)
	s.exec(`grant execute on function weft_enqueue to ` + user.Username())
	app := testenv.Pool(t, testenv.As(t, s.dsn, user))
	id := one[string](t, app, `select weft_enqueue('product_outbox_events', null, '1', 'upsert')::text`)
	exec(t, app, `select weft_enqueue('product_outbox_events', 'gadget', '2', 'delete', null)`)
	got := query[string](t, s.pool, `select entity_type || ' ' || op || ' ' || e.entity_id || ' ' || (v.version = event_version) || ' ' || v.deleted || ' ' || (id = $1::uuid)
		from product_outbox_events e join product_outbox_versions v using (entity_id) order by event_version`, id)
	if want := []string{"product upsert 1 true false true", "gadget delete 2 true true false"}; !slices.Equal(got, want) {
		t.Errorf("events: got %q, want %q", got, want)
	}
	exec(t, app, `select weft_enqueue('search_outbox_events', 'block', gen_random_uuid()::text, 'upsert', 5)`)
	for sql, want := range map[string]string{
		`'product_outbox_events', null, '1', 'upsert', 5`:                               "draws its versions itself: pass null",
		`'search_outbox_events', 'block', gen_random_uuid()::text, 'upsert', null`:      "has no version rows: pass a version",
		`'search_outbox_events', null, gen_random_uuid()::text, 'upsert', 5`:            "want an entity type and id",
		`'product_outbox_events', null, '1', 'update', null`:                            "upsert or delete",
		`'product_outbox_events', null, 'one', 'upsert', null`:                          "invalid input syntax for type bigint",
		`'weft_audit', 'x', '1', 'upsert', 1`:                                           "weft_audit is no outbox table that weft knows",
		`null, 'x', '1', 'upsert', 1`:                                                   "null is no outbox table",
		`'search_outbox_events', 'block', gen_random_uuid()::text, 'upsert', (-1)`:      "a version of 0 or more",
		`'search_outbox_events', repeat('x', 51), gen_random_uuid()::text, 'upsert', 1`: "too long",
	} {
		if _, err := app.Exec(t.Context(), `select weft_enqueue(`+sql+`)`); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("weft_enqueue(%s): got %v, want %q", sql, err, want)
		}
	}
}

// Rights on the source are granted where the granter may, and named where he may not.
func TestGrantSources(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	user, granter := testenv.Runner(t, s.dsn), testenv.Runner(t, s.dsn)
	owners, err := migrations.GrantSources(t.Context(), testenv.As(t, s.dsn, granter), user.Username())
	name := user.Username()
	want := []string{"grant usage on schema shop to " + name + "; grant select on shop.product to " + name, "grant usage on schema shop to " + name + "; grant select on shop.variant to " + name}
	if err != nil || !slices.Equal(owners, want) {
		t.Errorf("by a role that owns neither: got %q, %v, want %q", owners, err, want)
	}
	if owners, err := migrations.GrantSources(t.Context(), s.dsn, user.Username()); err != nil || len(owners) != 0 {
		t.Errorf("by the owner: got %q, %v, want nothing left to grant", owners, err)
	}
	pool := testenv.Pool(t, testenv.As(t, s.dsn, user))
	one[int](t, pool, `select count(*) from shop.product p join shop.variant v on v.product_id = p.id left join product_outbox_versions o on o.entity_id = p.id`)
}

// The role of the instances writes events through weft_load and weft_mend alone, which call the
// function of the outbox with their owner's rights.
func TestGrantedRoleMayNotWriteEventsItself(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	user := testenv.Runner(t, s.dsn)
	if err := migrations.Grant(t.Context(), s.dsn, user.Username(), migrations.Mode{Table: "product_outbox_events", Repair: true}); err != nil {
		t.Fatal(err)
	}
	if owners, err := migrations.GrantSources(t.Context(), s.dsn, user.Username()); err != nil || len(owners) != 0 {
		t.Fatalf("by the owner: got %q, %v, want nothing left to grant", owners, err)
	}
	app := testenv.Pool(t, testenv.As(t, s.dsn, user))
	if _, err := app.Exec(t.Context(), `select product_outbox_touch('{1}')`); code(err) != "42501" {
		t.Errorf("the function of the outbox: got %v, want permission denied", err)
	}
	exec(t, app, `select weft_load('product_outbox_events', '{1}', true)`)
	s.want("a load", "upsert 1")
	exec(t, app, `select weft_mend('product_outbox_events', '{product}', '{1}', '{upsert}', '{1}', 1)`)
	s.want("a repair", "upsert 1")
	s.exec(`grant insert, update on shop.variant to ` + user.Username())
	exec(t, app, `insert into shop.variant (product_id) values (1)`)
	s.want("the triggers", "upsert 1")
}

// The role of an instance of version 5 knows nothing of weft_outbox, and archives on.
func TestRoleOfTheBuildBeforeArchivesOnThisSchema(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	owner := testenv.Pool(t, dsn)
	pool, role := archiver(t, dsn, false)
	exec(t, owner, `revoke all on weft_outbox from `+role)
	if !one[bool](t, pool, attach, 0) {
		t.Error("today's partition was not made")
	}
	if _, err := pool.Exec(t.Context(), `select weft_history('product_outbox_events')`); code(err) != "42501" {
		t.Errorf("history of a table of the application: got %v, want permission denied", err)
	}
}

// The outbox is made in weft's schema, whatever its name, for a table of any other.
func TestOutboxInASchemaOfAnotherName(t *testing.T) {
	t.Parallel()
	base := testenv.Database(t)
	exec(t, testenv.Pool(t, base), `create schema "We""ft's"; create table public.thing (id int primary key)`)
	dsn := with(t, base, "search_path", `"We""ft's"`)
	pool := testenv.Pool(t, dsn)
	up(t, dsn)
	if _, err := migrations.CreateOutbox(t.Context(), dsn, migrations.OutboxSpec{Table: "public.thing"}, true); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `insert into public.thing values (7)`)
	one[string](t, pool, `select weft_enqueue('thing_outbox_events', null, '7', 'upsert')::text`)
	if got := query[string](t, pool, `select op || ' ' || entity_id from thing_outbox_events order by event_version`); !slices.Equal(got, []string{"upsert 7", "upsert 7"}) {
		t.Errorf("events: got %q, want that of the trigger and that of the call", got)
	}
	if !one[bool](t, pool, `select weft_history_attach('thing_outbox_events', current_date)`) {
		t.Error("no day of the history was made")
	}
	if _, err := migrations.DropOutbox(t.Context(), dsn, migrations.DropSpec{Table: "public.thing", Force: true}, true); err != nil {
		t.Error(err)
	}
	exec(t, pool, `insert into public.thing values (8)`)
}
