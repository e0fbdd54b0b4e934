package projections

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// shop is a bench with products, their variants and the outbox of products.
func shop(tb testing.TB) *bench {
	b := setup(tb)
	b.exec(`create table product (id bigint primary key, name text, price numeric, stock int, gone boolean not null default false, version bigint)`)
	b.exec(`create table variant (id bigint primary key, product_id bigint, sku text)`)
	b.exec(`create table product_outbox_events (id uuid primary key, entity_id bigint not null)`)
	return b
}

const productQuery = `
select p.id as entity_id, p.version, p.gone as deleted, p.name, p.price,
       coalesce((select json_agg(json_build_object('sku', v.sku) order by v.id) from variant v where v.product_id = p.id), '[]') as variants
from product p
where p.id = any($1); -- the shell's semicolon`

func products() Declaration {
	return Declaration{Name: "products", Table: "product_outbox_events", Query: strings.TrimSuffix(productQuery, " -- the shell's semicolon"), Index: "products"}
}

// declared returns the projection of d on the bench's database.
func (b *bench) declared(d Declaration, documents Documents) *Index {
	b.tb.Helper()
	i, err := NewDeclared(d, b.pool, documents, zaptest.NewLogger(b.tb), prometheus.NewRegistry())
	if err != nil {
		b.tb.Fatal(err)
	}
	return i
}

func number(n int64) outbox.Key { return outbox.Key{Type: "product", ID: outbox.Number(n)} }

// documentOf returns what was written for an id: the body, or "deleted".
func (s *sink) documentOf(tb testing.TB, id string) (body string, version int64) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.writes {
		for _, a := range w {
			if a.ID == id {
				if body, version = string(a.Body), a.Version; a.Delete {
					body = "deleted"
				}
			}
		}
	}
	return body, version
}

func TestDeclaredRules(t *testing.T) {
	t.Parallel()
	b := shop(t)
	b.exec(`insert into product (id, name, price, version) select i, 'p' || i, 1.10, 10 from generate_series(1, 6) i`)
	b.exec(`update product set gone = true where id = 4`)
	b.exec(`update product set gone = true, version = 30 where id = 5`)
	b.exec(`insert into variant values (1, 1, 'b'), (2, 1, 'a')`)
	s := &sink{}
	got, err := b.declared(products(), s).Project(leading(t, 1), []outbox.Event{
		event(outbox.Upsert, number(1), 10), event(outbox.Upsert, number(2), 7), event(outbox.Delete, number(3), 20),
		event(outbox.Upsert, number(4), 10), event(outbox.Delete, number(5), 20), event(outbox.Upsert, number(99), 3),
	})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, []outbox.Outcome{outbox.OK(), outbox.OK(), outbox.OK(), outbox.OK(), outbox.OK(), outbox.NoOp(outbox.NoopSourceMissing)})
	for _, want := range []struct {
		id, body string
		version  int64
	}{
		{"1", `{"name":"p1","price":1.10,"variants":[{"sku" : "b"}, {"sku" : "a"}]}`, 10},
		{"2", `{"name":"p2","price":1.10,"variants":[]}`, 10},
		{"3", "deleted", 20},
		{"4", "deleted", 10},
		{"5", "deleted", 30},
		{"99", "deleted", 3},
	} {
		if body, version := s.documentOf(t, want.id); body != want.body || version != want.version {
			t.Errorf("document %s: got %s at version %d, want %s at %d", want.id, body, version, want.body, want.version)
		}
	}
}

// Every type has one form in JSON, whatever the settings of the role.
func TestDeclaredTypes(t *testing.T) {
	t.Parallel()
	b := shop(t)
	for _, set := range []string{"timezone = 'Asia/Tokyo'", "datestyle = 'German'", "intervalstyle = 'postgres_verbose'", "bytea_output = 'escape'", "extra_float_digits = -10"} {
		b.exec(fmt.Sprintf("do $$ begin execute format('alter database %%I set %s', current_database()); end $$", strings.ReplaceAll(set, "'", "''")))
	}
	b.pool.Reset()
	b.exec("create type mood as enum ('glad', 'sad'); create domain sku as varchar(9); create type pair as (a int, b text)")
	d := products()
	d.Query = `select e as entity_id, 1 as version, v.* from unnest($1::bigint[]) e cross join (select
		true as b, 1::int2 as i2, -2147483648 as i4, 9223372036854775807 as i8, 0.1::float4 as f4, 0.1::float8 as f8, 12345678901234567890.123450 as n,
		'a"b' || chr(10) || chr(1) || '\' as t, 'x'::varchar(3) as vc, 'y'::char(3) as c, 'Z'::sku as dom, 'glad'::mood as en,
		'6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid as u, '2026-11-22 10:00:00.5+09'::timestamptz as tz, '2026-11-22 10:00'::timestamp as ts, '2026-11-22'::date as d,
		interval '1 day 2 hours' as iv, '\x00ff'::bytea as by, ('{"a":' || chr(10) || '1}')::json as j, '{"b": [1.50]}'::jsonb as jb,
		array[1,null,3] as ai, array['a"',null] as at, row(1,'x')::pair as comp, null::text as nul, '10.0.0.1'::inet as ip, '10.0.0.1/8'::inet as net, '10.0.0.0/8'::cidr as block) v`
	s := &sink{}
	if _, err := b.declared(d, s).Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(1), 1)}); err != nil {
		t.Fatal(err)
	}
	body, _ := s.documentOf(t, "1")
	want := `{"b":true,"i2":1,"i4":-2147483648,"i8":9223372036854775807,"f4":0.1,"f8":0.1,"n":12345678901234567890.123450,` +
		`"t":"a\"b\n\u0001\\","vc":"x","c":"y","dom":"Z","en":"glad","u":"6ba7b810-9dad-11d1-80b4-00c04fd430c8",` +
		`"tz":"2026-11-22T01:00:00.5Z","ts":"2026-11-22T10:00:00","d":"2026-11-22","iv":"P1DT2H","by":"AP8=","j":{"a": 1},"jb":{"b": [1.50]},` +
		`"ai":[1,null,3],"at":["a\"",null],"comp":{"a":1,"b":"x"},"nul":null,"ip":"10.0.0.1","net":"10.0.0.1/8","block":"10.0.0.0/8"}`
	if d := cmp.Diff(want, body); d != "" {
		t.Errorf("document (-want +got):\n%s", d)
	}
	if !json.Valid([]byte(body)) || strings.ContainsAny(body, "\n\r") {
		t.Errorf("document is no line of JSON: %q", body)
	}
	d.DropNulls = true
	if _, err := b.declared(d, s).Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(2), 1)}); err != nil {
		t.Fatal(err)
	}
	if body, _ := s.documentOf(t, "2"); body != strings.Replace(want, `"nul":null,`, "", 1) {
		t.Errorf("without nulls: got %s", body)
	}
}

// A row that the query cannot read fails alone, and the others are written.
func TestDeclaredBadRowFailsAlone(t *testing.T) {
	t.Parallel()
	b := shop(t)
	b.exec(`insert into product (id, name, price, stock, version) select i, 'p', 1, i, 1 from generate_series(1, 500) i`)
	b.exec(`update product set stock = 0 where id in (77, 400)`)
	b.exec(`update product set price = 'NaN' where id = 5`)
	b.exec(`update product set version = null where id = 6`)
	b.exec(`update product set version = -1 where id = 7`)
	d := products()
	d.Query = `select id as entity_id, version, 100 / stock + sqrt(case id when 9 then -1 else 0 end) as ratio, price from product where id = any($1)
		union all select id, version, 1, 1 from product where id = any($1) and id = 8`
	var events []outbox.Event
	for i := range int64(500) {
		events = append(events, event(outbox.Upsert, number(i+1), 1))
	}
	s := &sink{}
	got, err := b.declared(d, s).Project(leading(t, 1), events)
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]string{
		5: "field price: NaN is not a finite number", 6: "version is null", 7: "version -1: want 0 or more",
		8: "more than one row of this entity", 9: "2201F: a function refuses its argument", 77: "22012: division by zero", 400: "22012: division by zero",
	}
	for i, o := range got {
		text, bad := want[i+1]
		switch {
		case bad && (o.Verdict != outbox.Failed || o.Reason != outbox.ReasonDeterministic || !strings.Contains(o.Detail, text)):
			t.Errorf("product %d: got %+v, want it to fail with %q", i+1, o, text)
		case !bad && o.Verdict != outbox.Done:
			t.Errorf("product %d: got %+v, want it done", i+1, o)
		}
	}
}

// What is wrong with a query is said with its remedy, and fails no event.
func TestDeclaredQueryRefused(t *testing.T) {
	t.Parallel()
	b := shop(t)
	b.exec(`insert into product (id, name, version) values (1, 'a', 1), (2, 'b', 1)`)
	b.exec(`create function writes(bigint) returns bigint language sql as 'insert into variant (id) values ($1) returning id'`)
	for _, tc := range []struct{ name, query, want string }{
		{"UnknownColumn", "select id as entity_id, version, colour from product where id = any($1)", `column "colour" does not exist`},
		{"NoEntity", "select id, version from product where id = any($1)", "there is no column entity_id"},
		{"NoVersion", "select id as entity_id from product where id = any($1)", "there is no column version"},
		{"TwoNames", "select id as entity_id, version, name, name from product where id = any($1)", `two columns are named "name"`},
		{"NoName", "select id as entity_id, version, 1 from product where id = any($1)", "column 3 has no name"},
		{"DeletedIsText", "select id as entity_id, version, 'x' as deleted from product where id = any($1)", "column deleted is no boolean"},
		{"NotAsked", "select id as entity_id, version, name from product where $1::bigint[] is not null", "which it was not asked for"},
		{"Writes", "select writes(id) as entity_id, version from product where id = any($1)", "a source query only reads"},
		{"WritesInWith", "with x as (insert into variant (id) select unnest($1::bigint[]) returning id) select id as entity_id, 1 as version from x", "query refused"},
		{"TwoStatements", "select id as entity_id, version from product where id = any($1); select 1", "query refused"},
		{"KeyOfOtherType", "select name as entity_id, version from product where id = any($1)", "22P02"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := products()
			d.Query = tc.query
			s := &sink{}
			out, err := b.declared(d, s).Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(1), 1)})
			text := fmt.Sprint(out, err)
			if !strings.Contains(text, tc.want) {
				t.Errorf("got %s, want %q", text, tc.want)
			}
			if len(s.writes) > 0 {
				t.Errorf("%d requests were sent", len(s.writes))
			}
			if n := one[int](b, "select count(*) from variant"); n != 0 {
				t.Errorf("the query has written %d rows", n)
			}
		})
	}
}

// A column that comes or goes is seen at the next batch.
func TestDeclaredFollowsTheTable(t *testing.T) {
	t.Parallel()
	b := shop(t)
	b.exec(`insert into product (id, name, version) values (1, 'a', 1)`)
	d := products()
	d.Query = "select p.id as entity_id, p.* from product p where p.id = any($1)"
	s := &sink{}
	i := b.declared(d, s)
	project := func() string {
		t.Helper()
		if _, err := i.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(1), 1)}); err != nil {
			t.Fatal(err)
		}
		body, _ := s.documentOf(t, "1")
		return body
	}
	project()
	for _, c := range []struct{ sql, has, lacks string }{
		{"alter table product add color text default 'red'", `"color":"red"`, ""},
		{"alter table product alter column stock type bigint", `"stock":null`, ""},
		{"alter table product alter column price type text using 'A-7'", `"price":"A-7"`, ""}, // read as text before and after
		{"alter table product rename column color to colour", `"colour":"red"`, `"color"`},
		{"alter table product alter colour drop default, alter colour type json using '[1]'", `"colour":[1]`, ""},
		{"alter table product drop column price", "", "price"},
	} {
		b.exec(c.sql)
		got := project()
		if !json.Valid([]byte(got)) || !strings.Contains(got, c.has) || c.lacks != "" && strings.Contains(got, c.lacks) {
			t.Errorf("after %s: got %s, want it with %q and without %q", c.sql, got, c.has, c.lacks)
		}
	}
}

// Row security that applies to weft's role while it runs takes no document for one whose row is gone: the
// query, and what a comparison or a rebuild reads of the source, are refused with what to do.
func TestDeclaredRowSecurityHidesNothing(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	owner := testenv.Pool(t, dsn)
	b := &bench{tb: t, pool: owner}
	b.exec("create table product (id bigint primary key, name text)")
	if _, err := migrations.CreateOutbox(t.Context(), dsn, migrations.OutboxSpec{Table: "product"}, true); err != nil {
		t.Fatal(err)
	}
	user := testenv.Runner(t, dsn)
	b.exec("insert into product values (1, 'a'); grant select on product, product_outbox_versions, weft_outbox, product_outbox_events to " + user.Username())
	b.pool = testenv.Pool(t, testenv.As(t, dsn, user))
	d := products()
	d.Query = "select p.id as entity_id, v.version, p.name from product p join product_outbox_versions v on v.entity_id = p.id where p.id = any($1)"
	s := &sink{}
	i := b.declared(d, s)
	keys := []outbox.Key{number(1)}
	if _, err := i.Wanted(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	if _, err := owner.Exec(t.Context(), "alter table product enable row level security"); err != nil {
		t.Fatal(err)
	}
	_, projected := i.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(1), 1)})
	_, listed := i.Entities(t.Context(), outbox.Key{}, 10)
	_, known := i.Known(t.Context(), keys)
	for name, err := range map[string]error{"project": projected, "entities": listed, "known": known, "ready": i.Ready(t.Context())} {
		f, ok := errors.AsType[*outbox.Fault](err)
		if !ok || !f.Shared || !strings.Contains(err.Error(), "row-level security") || !strings.Contains(err.Error(), "bypassrls") {
			t.Errorf("%s: got %v, want it refused because row security hides rows", name, err)
		}
	}
	if len(s.writes) > 0 {
		t.Errorf("%d requests were sent", len(s.writes))
	}
}

// A lock on a table of the query, as of a refresh of a materialized view, is told as one: it ends no event, and the query is not slow.
func TestDeclaredLockedTable(t *testing.T) {
	t.Parallel()
	b := shop(t)
	b.exec(`insert into product (id, name, price, version) values (1, 'p', 1, 1)`)
	p := b.hurried().declared(products(), &sink{})
	events := []outbox.Event{event(outbox.Upsert, number(1), 1)}
	if _, err := p.Project(leading(t, 1), events); err != nil {
		t.Fatal(err)
	}
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "lock table product"); err != nil {
		t.Fatal(err)
	}
	_, err = p.Project(leading(t, 1), events)
	f, ok := errors.AsType[*outbox.Fault](err)
	if !ok || f.Reason != outbox.ReasonDBContention {
		t.Fatalf("got %v, want a fault for db_contention", err)
	}
	if want := "somebody has locked a table that the query reads, which pg_locks names"; !strings.Contains(f.Error(), want) {
		t.Errorf("got %q, want it to say %q", f, want)
	}
}

// Documents beyond what is held at once come in several rounds. A comparison, which holds all that it asks for, is refused.
func TestDeclaredLargeDocuments(t *testing.T) {
	t.Parallel()
	b := shop(t)
	b.exec(`insert into product (id, name, version) select i, repeat('x', 5000000), 1 from generate_series(1, 20) i`)
	s := &sink{}
	d := products()
	d.Query = "select id as entity_id, version, name from product where id = any($1)"
	var events []outbox.Event
	for i := range int64(20) {
		events = append(events, event(outbox.Upsert, number(i+1), 1))
	}
	index := b.declared(d, s)
	got, err := index.Project(leading(t, 1), events)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]outbox.Key, len(events))
	for i := range events {
		keys[i] = events[i].Key
	}
	if _, err := index.Wanted(t.Context(), keys); !errors.Is(err, elastic.ErrOverBudget) {
		t.Errorf("100 MB at once: got %v, want %v", err, elastic.ErrOverBudget)
	}
	if wanted, err := index.Wanted(t.Context(), keys[:6]); err != nil || len(wanted) != 6 || len(wanted[5].Document) < 5000000 {
		t.Errorf("30 MB at once: got %d documents, %v", len(wanted), err)
	}
	for i, o := range got {
		if o.Verdict != outbox.Done {
			t.Errorf("product %d: %+v", i+1, o)
		}
		if body, _ := s.documentOf(t, fmt.Sprint(i+1)); len(body) < 5000000 {
			t.Errorf("product %d: a document of %d bytes", i+1, len(body))
		}
	}
	if len(s.writes) < 3 {
		t.Errorf("%d rounds, want 100 MB in several", len(s.writes))
	}
}

func TestDeclaredTextKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`create table item (tenant text, code text, version bigint); create table item_outbox_events (id uuid, entity_id text)`)
	ids := []string{`a'b"c`, "50%/x?y#z", "日本 🎉", strings.Repeat("é", 250)}
	s := &sink{}
	d := Declaration{Name: "items", Table: "item_outbox_events", Index: "items", Query: "select code as entity_id, version, tenant from item where code = any($1)"}
	var events []outbox.Event
	for _, id := range ids {
		b.exec("insert into item values ('t', $1, 1)", id)
		events = append(events, event(outbox.Upsert, outbox.Key{Type: "item", ID: outbox.Text(id)}, 1))
	}
	if _, err := b.declared(d, s).Project(leading(t, 1), events); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if body, _ := s.documentOf(t, id); body != `{"tenant":"t"}` {
			t.Errorf("%q: got %q", id, body)
		}
	}
}

// An id that the type of the key cannot hold, as a child's bigint beside its parent's integer, holds up nobody.
func TestDeclaredIDBeyondTheTypeOfTheKey(t *testing.T) {
	t.Parallel()
	b := shop(t)
	b.exec("alter table product alter id type integer; insert into product (id, name, version) values (1, 'a', 5)")
	s := &sink{}
	got, err := b.declared(products(), s).Project(leading(t, 1), []outbox.Event{
		event(outbox.Upsert, number(1), 5), event(outbox.Upsert, number(3e9), 7), event(outbox.Delete, number(4e9), 8),
	})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, []outbox.Outcome{outbox.OK(), outbox.Reject(outbox.ReasonDeterministic, ""), outbox.OK()})
	if body, _ := s.documentOf(t, "4000000000"); body != "deleted" {
		t.Errorf("document of a deleted entity: %q, want it deleted", body)
	}
}

func TestDeclaredUUIDKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`create table part (id uuid, version bigint, name text); create table part_outbox_events (id uuid, entity_id uuid)`)
	id := uuid.New()
	b.exec("insert into part values ($1, 4, 'n')", id)
	s := &sink{}
	d := Declaration{Name: "parts", Table: "part_outbox_events", Index: "parts", Query: "select id as entity_id, version, name from part where id = any($1)"}
	if _, err := b.declared(d, s).Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, outbox.Key{Type: "part", ID: outbox.UUID(id)}, 2)}); err != nil {
		t.Fatal(err)
	}
	if body, version := s.documentOf(t, id.String()); body != `{"name":"n"}` || version != 4 {
		t.Errorf("got %s at %d", body, version)
	}
}

func TestDeclarationValidate(t *testing.T) {
	t.Parallel()
	err := Declaration{Name: "A b", Table: "x.y", Source: "s", Query: "select 1", Mapping: []byte("[]"), Settings: []byte("{\n")}.Validate()
	for _, want := range []string{`name "A b"`, `outbox.table "x.y"`, `source table "s"`, "does not use $1", "index.name is empty", "index.mapping: want a JSON object", "index.settings: want a JSON object: line 2 of the file: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := products().Validate(); err != nil {
		t.Error(err)
	}
	whole := products()
	whole.Mapping, whole.Settings = []byte(`{"mappings":{"properties":{}}}`), []byte(`{"settings":{"number_of_shards":2}}`)
	for _, want := range []string{`index.mapping: the file has all of an index: want the object that is "mappings" there`, `index.settings: the file has all of an index`} {
		if err := whole.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := NewDeclared(Declaration{}, nil, nil, nil, nil); err == nil || !strings.Contains(err.Error(), "source.query is empty") {
		t.Errorf("empty: %v", err)
	}
}

// A document that is newer than its source row is an alarm here, too.
func TestDeclaredVersionAhead(t *testing.T) {
	t.Parallel()
	b := shop(t)
	b.exec(`insert into product (id, name, version) values (1, 'a', 5)`)
	s := &sink{answer: func(actions []elastic.Action) ([]outbox.Outcome, error) {
		actions[0].Held = 9
		return []outbox.Outcome{outbox.NoOp(outbox.NoopAlreadyApplied)}, nil
	}}
	got, err := b.declared(products(), s).Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(1), 5)})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, []outbox.Outcome{outbox.NoOp(outbox.NoopVersionAhead)})
	if !bytes.Contains([]byte(one[string](b, "select string_agg(projection, ' ') from weft_audit")), []byte("products")) {
		t.Error("the audit does not name the projection")
	}
}
