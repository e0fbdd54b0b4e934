package projections

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
)

func cards() Declaration {
	d := products()
	d.Index, d.Destination = "", "shop.product_card"
	return d
}

// cardShop is a shop with a table for cards.
func cardShop(t *testing.T) *bench {
	b := shop(t)
	b.exec(`drop table product_outbox_events; create table product_outbox_events (like search_outbox_events including defaults); alter table product_outbox_events alter entity_id type bigint using 0`)
	b.exec(`create schema shop; create table shop.product_card (entity_id bigint primary key, version bigint not null, name text not null, price numeric check (price < 100), variants jsonb)`)
	return b
}

func (b *bench) cards() string {
	b.tb.Helper()
	return one[string](b, `select coalesce(string_agg(concat_ws(' ', entity_id, version, name, price), '; ' order by entity_id), '') from shop.product_card`)
}

func TestTableRules(t *testing.T) {
	t.Parallel()
	b := cardShop(t)
	b.exec(`insert into product (id, name, price, version) select i, 'p' || i, 1.10, 10 from generate_series(1, 6) i`)
	b.exec(`update product set gone = true where id = 4`)
	b.exec(`insert into shop.product_card select i, v, 'old', 2, null from (values (1, 9), (2, 11), (3, 20), (4, 10), (5, 21), (98, 3)) as c(i, v)`)
	b.exec(`delete from product where id in (3, 5)`)
	p := b.declared(cards(), nil)
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.Destination(); got != "postgres/shop.product_card" {
		t.Errorf("destination %q", got)
	}
	got, err := p.Project(leading(t, 1), []outbox.Event{
		event(outbox.Upsert, number(1), 10), event(outbox.Upsert, number(2), 10), event(outbox.Delete, number(3), 20),
		event(outbox.Upsert, number(4), 10), event(outbox.Delete, number(5), 20), event(outbox.Upsert, number(6), 12),
		event(outbox.Upsert, number(98), 3), event(outbox.Delete, number(99), 3),
	})
	if err != nil {
		t.Fatal(err)
	}
	ahead := outbox.NoOp(outbox.NoopVersionAhead) // the card of 2 and 5 is newer than anything that was given out
	wantOutcomes(t, got, []outbox.Outcome{
		outbox.OK(), ahead, outbox.OK(), outbox.OK(), ahead, outbox.OK(), outbox.NoOp(outbox.NoopSourceMissing), outbox.NoOp(outbox.NoopES404),
	})
	if want, got := "1 10 p1 1.10; 2 11 old 2; 5 21 old 2; 6 12 p6 1.10", b.cards(); got != want {
		t.Errorf("cards:\ngot  %s\nwant %s", got, want)
	}
	// Repeats change nothing, nor does an older event bring back what was deleted.
	got, err = p.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(1), 10), event(outbox.Upsert, number(3), 5)})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, []outbox.Outcome{outbox.OK(), outbox.NoOp(outbox.NoopSourceMissing)})
	if want, got := "1 10 p1 1.10; 2 11 old 2; 5 21 old 2; 6 12 p6 1.10", b.cards(); got != want {
		t.Errorf("cards after repeats:\ngot  %s\nwant %s", got, want)
	}
}

func TestTableRefusesOneRowAndTakesTheOthers(t *testing.T) {
	t.Parallel()
	b := cardShop(t)
	b.exec(`insert into product (id, name, price, version) select i, case when i <> 3 then 'p' end, case when i = 5 then 100 else 1 end, 1 from generate_series(1, 9) i`)
	var events []outbox.Event
	for i := range int64(9) {
		events = append(events, event(outbox.Upsert, number(i+1), 1))
	}
	got, err := b.declared(cards(), nil).Project(leading(t, 1), events)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int]string{2: "null value in column", 4: "constraint product_card_price_check"} {
		if got[i].Verdict != outbox.Failed || got[i].Reason != outbox.ReasonDeterministic || !strings.Contains(got[i].Detail, want) {
			t.Errorf("event %d: got %+v, want it to fail and say %q", i+1, got[i], want)
		}
		got[i] = outbox.OK()
	}
	for i, o := range got {
		if o.Verdict != outbox.Done {
			t.Errorf("event %d: got %+v, want it done", i+1, o)
		}
	}
	if n := one[int](b, "select count(*) from shop.product_card"); n != 7 {
		t.Errorf("%d cards, want the 7 that the table takes", n)
	}
}

func TestTableIsFenced(t *testing.T) {
	t.Parallel()
	b := cardShop(t)
	b.exec(`insert into product (id, name, price, version) values (1, 'p', 1, 1)`)
	b.exec(`insert into shop.product_card values (2, 1, 'kept', 1, null)`)
	events := []outbox.Event{event(outbox.Upsert, number(1), 1), event(outbox.Delete, number(2), 9)}
	if _, err := b.declared(cards(), nil).Project(leading(t, 7), events); !errors.Is(err, outbox.ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
	if got := b.cards(); got != "2 1 kept 1" {
		t.Errorf("cards %q, want the one that was there", got)
	}
}

// A table that goes away while it is written is a fault of all events, and ends none in
// failed; one that comes back with other columns is looked at anew.
func TestTableThatChangesWhileItIsWritten(t *testing.T) {
	t.Parallel()
	b := cardShop(t)
	b.exec(`insert into product (id, name, price, version) values (1, 'p', 1, 1)`)
	p := b.declared(cards(), nil)
	project := func() ([]outbox.Outcome, error) {
		return p.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(1), 1)})
	}
	if _, err := project(); err != nil {
		t.Fatal(err)
	}
	b.exec("alter table shop.product_card rename column variants to options")
	_, err := project()
	if f, ok := errors.AsType[*outbox.Fault](err); !ok || !f.Shared {
		t.Errorf("got %v, want a fault that all events share", err)
	}
	if err := p.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "lacks column variants") {
		t.Errorf("readiness: got %v, want it to name the column", err)
	}
	b.exec("alter table shop.product_card rename column options to variants; alter table shop.product_card add column more text")
	if out, err := project(); err != nil || out[0].Verdict != outbox.Done {
		t.Errorf("got %v, %v, want it done", out, err)
	}
}

// What a trigger of the table discards is not written, and no event of it is done.
func TestTableWhoseTriggerDiscardsRows(t *testing.T) {
	t.Parallel()
	b := cardShop(t)
	b.exec(`insert into product (id, name, price, version) select i, 'p', 1, 5 from generate_series(1, 3) i`)
	b.exec(`insert into shop.product_card values (2, 1, 'old', 1, null), (4, 1, 'old', 1, null), (6, 9, 'new', 1, null)`)
	b.exec(`create function discard() returns trigger language plpgsql as 'begin return null; end';
		create trigger discard before insert or update or delete on shop.product_card for each row execute function discard()`)
	got, err := b.declared(cards(), nil).Project(leading(t, 1), []outbox.Event{
		event(outbox.Upsert, number(1), 5), event(outbox.Upsert, number(2), 5), event(outbox.Delete, number(4), 5), event(outbox.Delete, number(5), 5), event(outbox.Delete, number(6), 5),
	})
	if err != nil {
		t.Fatal(err)
	}
	discarded := outbox.Reject(outbox.ReasonDeterministic, "")
	wantOutcomes(t, got, []outbox.Outcome{discarded, discarded, discarded, outbox.NoOp(outbox.NoopES404), outbox.NoOp(outbox.NoopVersionAhead)})
	if want := "table shop.product_card does not take the change"; !strings.HasPrefix(got[0].Detail, want) {
		t.Errorf("detail: got %q, want %q", got[0].Detail, want)
	}
}

// A column that the query returns from now on is written, and one that the table lacks stops the projection.
func TestTableGetsColumnsThatTheQueryReturnsSince(t *testing.T) {
	t.Parallel()
	b := cardShop(t)
	b.exec(`create table wide (entity_id bigint primary key, version bigint not null, name text, later text);
		create view read as select id as entity_id, version, name from product`)
	b.exec(`insert into product (id, name, price, version) values (1, 'p', 1, 1)`)
	d := Declaration{Name: "wide", Table: "product_outbox_events", Destination: "wide", Query: "select * from read where entity_id = any($1)"}
	p := b.declared(d, nil)
	project := func() ([]outbox.Outcome, error) {
		return p.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(1), 1)})
	}
	if _, err := project(); err != nil {
		t.Fatal(err)
	}
	b.exec(`create or replace view read as select id as entity_id, version, name, 'since'::text as later from product`)
	if out, err := project(); err != nil || out[0].Verdict != outbox.Done {
		t.Fatalf("got %v, %v, want it done", out, err)
	}
	if got := one[string](b, "select later from wide"); got != "since" {
		t.Errorf("the new column has %q, want since", got)
	}
	b.exec(`create or replace view read as select id as entity_id, version, name, 'since'::text as later, 1 as lacking from product`)
	if _, err := project(); err == nil || !strings.Contains(err.Error(), "lacks column lacking") {
		t.Errorf("got %v, want it to name the column that the table lacks", err)
	}
}

func TestTableTypes(t *testing.T) {
	t.Parallel()
	b := shop(t)
	b.exec(`create type mood as enum ('glad', 'sad'); create type pair as (a int, b text); create domain blob as bytea`)
	const columns = `b boolean, i smallint, f double precision, n numeric, t text, u uuid, z timestamptz, s timestamp, d date, w interval,
		y bytea, yd blob, j json, k jsonb, a text[], m int[], e mood, c pair, "Odd ""name'" text, empty text, l text`
	b.exec(`create table wide (entity_id bigint primary key, version bigint not null, ` + columns + `)`)
	b.exec(`create table source (id bigint primary key, ` + columns + `)`)
	b.exec(`insert into source values (1, true, -7, 1.5e300, 123456789012345678901234567890.120, e'a"b\\c\nd', '0af76519-16cd-43dd-8448-eb211c80319c',
		'2026-01-02 03:04:05.678901+09', '2026-01-02 03:04:05.6', '2026-01-02', '1 month 2 days 3.5 s', '\x00ff22', '\x00ff33', '{"x": [1.10]}', '{"y": null}',
		'{a,"b,c",null}', '{{1,2},{3,4}}', 'sad', row(1, 'z'), 'odd', null, '42')`)
	d := Declaration{Name: "wide", Table: "product_outbox_events", Destination: "wide",
		Query: `select id as entity_id, 1 as version, b, i, f, n, t, u, z, s, d, w, y, yd, j, k, a, m, e, c, "Odd ""name'", empty, l::int as l from source where id = any($1)`}
	out, err := b.declared(d, nil).Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(1), 1)})
	if err != nil || out[0].Verdict != outbox.Done {
		t.Fatalf("got %+v, %v, want it done", out, err)
	}
	same := one[string](b, `select (to_jsonb(x.*) - 'entity_id' - 'version')::text from wide x`)
	if want := one[string](b, `select (to_jsonb(x.*) - 'id')::text from source x`); same != want {
		t.Errorf("row:\ngot  %s\nwant %s", same, want)
	}
}

// A table holds what JSON has no word for.
func TestTableGetsValuesWithoutEnd(t *testing.T) {
	t.Parallel()
	b := shop(t)
	const columns = `f double precision, r real, n numeric, z timestamptz, s timestamp, d date, a double precision[]`
	b.exec(`create table wide (entity_id bigint primary key, version bigint not null, ` + columns + `)`)
	b.exec(`create table source (id bigint primary key, ` + columns + `)`)
	b.exec(`insert into source values (1, 'NaN', 'NaN', 'NaN', 'infinity', 'infinity', 'infinity', '{NaN,Infinity}'),
		(2, 'Infinity', 'Infinity', 'Infinity', '-infinity', '-infinity', '-infinity', null), (3, '-Infinity', '-Infinity', '-Infinity', null, null, null, null)`)
	d := Declaration{Name: "wide", Table: "product_outbox_events", Destination: "wide",
		Query: `select id as entity_id, 1 as version, f, r, n, z, s, d, a from source where id = any($1)`}
	var events []outbox.Event
	for id := range int64(3) {
		events = append(events, event(outbox.Upsert, number(id+1), 1))
	}
	out, err := b.declared(d, nil).Project(leading(t, 1), events)
	if err != nil || slices.ContainsFunc(out, func(o outbox.Outcome) bool { return o.Verdict != outbox.Done }) {
		t.Fatalf("got %+v, %v, want all done", out, err)
	}
	same := one[string](b, `select jsonb_agg(to_jsonb(x.*) - 'entity_id' - 'version' order by entity_id)::text from wide x`)
	if want := one[string](b, `select jsonb_agg(to_jsonb(x.*) - 'id' order by id)::text from source x`); same != want {
		t.Errorf("rows:\ngot  %s\nwant %s", same, want)
	}
}

// A column that the query does not return keeps its default, also where its domain refuses a null; lengths are those of
// the columns.
func TestTableWithDomainsAndLengths(t *testing.T) {
	t.Parallel()
	b := cardShop(t)
	b.exec(`create domain state as text not null; create table narrow (entity_id bigint primary key, version bigint not null, own state default 'new',
		given state, name char(5), flags bit(3), price numeric(10,1))`)
	b.exec(`insert into product (id, name, price, version) values (1, 'abc', 1.25, 1), (2, 'toolong', 1, 1)`)
	d := Declaration{Name: "narrow", Table: "product_outbox_events", Destination: "narrow",
		Query: `select id as entity_id, version, name as given, name, '101'::bit(3) as flags, price from product where id = any($1)`}
	out, err := b.declared(d, nil).Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(1), 1), event(outbox.Upsert, number(2), 1)})
	if err != nil || out[0].Verdict != outbox.Done || out[1].Verdict != outbox.Failed {
		t.Fatalf("got %+v, %v, want the first done and the second refused", out, err)
	}
	if got, want := one[string](b, `select narrow::text from narrow`), `(1,1,new,abc,"abc  ",101,1.3)`; got != want {
		t.Errorf("row: got %s, want %s", got, want)
	}
	d.Query = `select id as entity_id, version, '\x00ff'::bytea as y from product where id = any($1)` // no field but bytes
	b.exec("alter table narrow add y bytea, alter given set default 'd'")
	if out, err := b.declared(d, nil).Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(2), 2)}); err != nil || out[0].Verdict != outbox.Done {
		t.Errorf("bytes alone: got %+v, %v, want it done", out, err)
	}
}

func TestTableFindings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		want   []string // of the first finding and its remedy
	}{
		"Missing":     {"drop table shop.product_card", []string{"there is no table shop.product_card", "create it with the columns entity_id, version"}},
		"View":        {"alter table shop.product_card rename to c; create view shop.product_card as select * from shop.c", []string{"is no table of this database", "the fence"}},
		"NoKey":       {"alter table shop.product_card drop column entity_id", []string{"lacks column entity_id", "add column entity_id bigint not null"}},
		"NoVersion":   {"alter table shop.product_card drop column version", []string{"lacks column version", "add column version bigint not null"}},
		"KeyType":     {"alter table shop.product_card alter entity_id type text", []string{"column entity_id of shop.product_card is text, want bigint"}},
		"VersionType": {"alter table shop.product_card alter version type integer", []string{"column version of shop.product_card is integer, want bigint"}},
		"NotUnique":   {"alter table shop.product_card drop constraint product_card_pkey", []string{"no unique index", "add primary key (entity_id)"}},
		"PartlyUnique": {"alter table shop.product_card drop constraint product_card_pkey; create unique index on shop.product_card (entity_id) where price > 1",
			[]string{"no unique index"}},
		"NoColumn":   {"alter table shop.product_card drop column price", []string{"lacks column price", "leave it out of the query"}},
		"ColumnType": {"alter table shop.product_card drop column name; alter table shop.product_card add column name integer", []string{"column name of shop.product_card is integer", `"name"::integer as "name"`}},
		"Generated":  {"alter table shop.product_card drop column price; alter table shop.product_card add column price numeric generated always as (1) stored", []string{"price of shop.product_card is generated", "leave it out"}},
		"Required":   {"alter table shop.product_card add column tenant int not null", []string{"column tenant of shop.product_card must not be null", "give it a default"}},
		"Loop":       {"insert into weft_outbox values ('product_outbox_events', 'product', 'shop.product_card', '{entity_id}', '{bigint}')", []string{"would work for ever"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := cardShop(t)
			r := Registry{Declared: []Declaration{cards()}}
			deps := Deps{Pool: b.pool, Log: zap.NewNop(), Registerer: prometheus.NewRegistry()}
			hard := func() (out []Finding) { // of the table; the bench's outbox lacks its indexes
				found, err := r.Check(t.Context(), "products", deps)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range found {
					if !f.Warning && f.Setting == "destination.table" {
						out = append(out, f)
					}
				}
				return out
			}
			if found := hard(); len(found) > 0 {
				t.Fatalf("findings %+v about a table that fits", found)
			}
			b.exec(c.change)
			found := hard()
			if len(found) == 0 {
				t.Fatal("no finding")
			}
			ready := b.declared(cards(), nil).Ready(t.Context())
			for _, want := range c.want {
				if text := found[0].What + "; " + found[0].Remedy; !strings.Contains(text, want) {
					t.Errorf("finding: %s; want it to say %q", text, want)
				}
				if ready == nil || !strings.Contains(ready.Error(), want) {
					t.Errorf("readiness: got %v, want it to say %q", ready, want)
				}
			}
		})
	}
}

func TestRenderShowsTheRowOfATable(t *testing.T) {
	t.Parallel()
	b := cardShop(t)
	b.exec(`insert into product (id, name, price, version) values (1, 'new', 2, 5)`)
	b.exec(`insert into shop.product_card values (1, 4, 'old', 1, '[]')`)
	r := Registry{Declared: []Declaration{cards()}}
	got, err := r.Render(t.Context(), "products", "1", Deps{Pool: b.pool})
	if err != nil {
		t.Fatal(err)
	}
	want := &Rendered{ID: "1", Version: 5, Document: []byte(`{"name":"new","price":2,"variants":[]}`),
		Indexed: []byte(`{"name": "old", "price": 1, "variants": []}`), IndexedVersion: 4}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("rendered (-want +got):\n%s", d)
	}
	if r.Indexed("products") || !r.Indexed(SearchIndexToElastic) || r.Indexed(ChronicleEventsToEntries) {
		t.Error("only search_index_to_elastic writes to Elasticsearch")
	}
}

func TestTableOrIndex(t *testing.T) {
	t.Parallel()
	both := products()
	both.Destination = "t"
	none := cards()
	none.Destination = ""
	for want, d := range map[string]Declaration{"want a table or an index": both, "or a table in destination.table": none} {
		if err := d.Validate(); err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("got %v, want it to say %q", err, want)
		}
	}
}

// A constraint that is checked at the end of a statement may refuse it after all its rows have
// been answered: nothing of it is written then, and nothing of it is done.
func TestTableThatRefusesAtTheEnd(t *testing.T) {
	t.Parallel()
	b := cardShop(t)
	b.exec(`insert into product (id, name, price, version) values (1, 'p', 1, 1), (2, 'q', 1, 1)`)
	b.exec(`create table shop.shelf (id bigint primary key); insert into shop.shelf values (1), (2)`)
	b.exec(`alter table shop.product_card add foreign key (entity_id) references shop.shelf deferrable initially deferred`)
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select from shop.shelf for update"); err != nil {
		t.Fatal(err)
	}
	p := b.hurried().declared(cards(), nil)
	project := func() ([]outbox.Outcome, error) {
		return p.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, number(1), 1), event(outbox.Upsert, number(2), 1)})
	}
	out, err := project()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f, ok := errors.AsType[*outbox.Fault](err); !ok || f.Reason != outbox.ReasonDBContention || f.Shared || out != nil {
		t.Errorf("got %+v, %v, want no outcome and a fault for db_contention", out, err)
	}
	if got := b.cards(); got != "" {
		t.Errorf("cards %q, want none", got)
	}
	out, err = project()
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, out, []outbox.Outcome{outbox.OK(), outbox.OK()})
}
