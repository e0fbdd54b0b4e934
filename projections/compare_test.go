package projections

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// Elasticsearch takes no empty id: the row of such a key has a problem, and all others are compared.
func TestEmptyKeyIsComparedWithNoDocument(t *testing.T) {
	t.Parallel()
	d := newDomain(t, "create table item (code text primary key, name text)", migrations.OutboxSpec{}, Declaration{
		Query: "select i.code as entity_id, v.version, i.name from item i join item_outbox_versions v on v.entity_id = i.code where i.code = any($1)",
	})
	d.start()
	d.exec("insert into item values ('', 'empty'), ('a', 'b')")
	events := d.events()
	out, err := d.index.Project(leading(t, 1), events)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]outbox.Key, len(events))
	for i, e := range events {
		keys[i] = e.Key
		want := outbox.OK()
		if e.Key.ID == outbox.Text("") {
			want = outbox.Reject(outbox.ReasonDeterministic, "")
		}
		wantOutcomes(t, out[i:i+1], []outbox.Outcome{want})
	}
	d.exec("insert into item_outbox_events (entity_type, entity_id, op, event_version) values ('item', '', 'upsert', 1)")
	if _, err := (Registry{Declared: []Declaration{d.declaration}}).Check(t.Context(), "items", Deps{Pool: d.pool, Elastic: elasticsearch(t)}); err != nil {
		t.Errorf("check: %v", err)
	}
	wanted, err := d.index.Wanted(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range wanted {
		if empty := keys[i].ID == outbox.Text(""); empty != (w.Problem != "") || empty == w.Found {
			t.Errorf("%s: got %+v", keys[i], w)
		}
	}
	d.documents() // refreshes
	for _, newest := range []bool{false, true} {
		held, err := d.index.Held(t.Context(), keys, newest)
		if err != nil || len(held) != 1 || held[0].ID != "a" {
			t.Errorf("newest %t: got %+v, %v, want the other document", newest, held, err)
		}
	}
	if held, err := d.index.Held(t.Context(), []outbox.Key{{ID: outbox.Text("")}}, true); err != nil || len(held) > 0 {
		t.Errorf("the empty key alone: got %+v, %v", held, err)
	}
}

// An entity is known by its row, whatever the query makes of that: the documents of a row that it leaves out are
// found with the rows.
func TestKnownIsWhatHasARow(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		table string
		spec  migrations.OutboxSpec
		d     Declaration
		rows  string
		known map[string]bool
	}{
		"Text": {"create table item (code text primary key, name text)", migrations.OutboxSpec{}, Declaration{
			Query: "select i.code as entity_id, v.version, i.name from item i join item_outbox_versions v on v.entity_id = i.code where i.name is not null and i.code = any($1)",
		}, "('a', 'b'), ('c', null)", map[string]bool{"a": true, "c": true, "d": false}},
		"Number": {"create table item (code int primary key, name text)", migrations.OutboxSpec{}, Declaration{
			Query: "select i.code as entity_id, v.version, i.name from item i join item_outbox_versions v on v.entity_id = i.code where i.name is not null and i.code = any($1)",
		}, "(1, 'b'), (2, null)", map[string]bool{"1": true, "2": true, "3": false}},
		"Parts": {"create table item (code int, part text, name text, primary key (code, part))", migrations.OutboxSpec{}, Declaration{
			Query: "select i.code, i.part, v.version, i.name from item i join item_outbox_versions v on v.entity_id = item_outbox_id(i.code, i.part) where i.name is not null and (i.code, i.part) in (select * from unnest($1::int[], $2::text[]))",
		}, "(1, 'x:y', 'b'), (2, 'z', null)", map[string]bool{"1:x%3Ay": true, "2:z": true, "2:x": false}},
		"Placed": {"create table item (code int primary key, name text, tenant text not null default 't')", migrations.OutboxSpec{Routing: "tenant"}, Declaration{
			Query:   "select i.code as entity_id, v.version, i.name, i.tenant from item i join item_outbox_versions v on v.entity_id = i.code where i.name is not null and i.code = any($1)",
			Routing: "tenant",
		}, "(1, 'b'), (2, null)", map[string]bool{"t:1": true, "t:2": true, "u:2": false, "t:3": false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDomain(t, tc.table, tc.spec, tc.d)
			d.exec("insert into item values " + tc.rows)
			d.start()
			shape, err := d.index.source.(*declaredSource).known(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var keys []outbox.Key
			var want []bool
			for text, known := range tc.known {
				id, err := outbox.ParseID(shape.key.kind, text)
				if err != nil {
					t.Fatal(err)
				}
				keys, want = append(keys, outbox.Key{Type: "item", ID: id}), append(want, known)
			}
			if got, err := d.index.Known(t.Context(), keys); err != nil || !slices.Equal(got, want) {
				t.Errorf("known of %v: got %v, %v, want %v", keys, got, err, want)
			}
		})
	}
}

// A row whose key has no value, as a unique index allows, is no entity: it writes no event, and nobody reads it.
func TestRowWithoutAKeyIsNoEntity(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		key  []string
		d    Declaration
		want []outbox.Key
	}{
		"OneColumn": {[]string{"a"}, Declaration{Query: "select i.a as entity_id, v.version from item i join item_outbox_versions v on v.entity_id = i.a where i.a = any($1)"},
			[]outbox.Key{{Type: "item", ID: outbox.Text("w")}, {Type: "item", ID: outbox.Text("x")}, {Type: "item", ID: outbox.Text("y")}}},
		"TwoColumns": {[]string{"a", "b"}, Declaration{Query: "select i.a, i.b, v.version from item i join item_outbox_versions v on v.entity_id = item_outbox_id(i.a, i.b) where (i.a, i.b) in (select * from unnest($1::text[], $2::bigint[]))"},
			[]outbox.Key{{Type: "item", ID: outbox.Composite("w", "1")}, {Type: "item", ID: outbox.Composite("y", "3")}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDomain(t, "create table item (id bigint primary key, a text unique, b bigint, unique (a, b)); insert into item values (1, 'w', 1), (2, 'x', null), (3, 'y', 3), (4, null, 4), (5, null, null)",
				migrations.OutboxSpec{Key: tc.key}, tc.d)
			d.start()
			found, err := Registry{Declared: []Declaration{d.declaration}}.Check(t.Context(), "items", Deps{Pool: d.pool, Elastic: elasticsearch(t)})
			if err != nil || slices.ContainsFunc(found, func(f Finding) bool { return !f.Warning }) {
				t.Errorf("check: %+v, %v", found, err)
			}
			for size := 1; size < 7; size++ { // of a page
				var got []outbox.Key
				for after := (outbox.Key{}); ; after = got[len(got)-1] {
					page, err := d.index.Entities(t.Context(), after, size)
					if err != nil {
						t.Fatal(err)
					}
					if got = append(got, page...); len(page) == 0 || len(got) > 5 {
						break
					}
				}
				if diff := cmp.Diff(tc.want, got, cmp.Comparer(func(a, b outbox.Key) bool { return a == b })); diff != "" {
					t.Errorf("entities in pages of %d (-want +got):\n%s", size, diff)
				}
			}
			d.exec("update item set id = id + 10")
			if n := one[int](d.bench, "select count(*) from item_outbox_events"); n != len(tc.want) {
				t.Errorf("%d events, want %d", n, len(tc.want))
			}
		})
	}
}

// The rows of a table, and those of a chronicle, are read from a position on, which one of an index is not.
func TestDocumentsOfTables(t *testing.T) {
	t.Parallel()
	b := cardShop(t)
	b.exec(`insert into shop.product_card values (1, 1, 'a', 1, null), (2, 1, 'b', 1, null)`)
	c, kept := b.chronicle(1), b.happened("book_created", `{}`)
	b.project(c, event(outbox.Upsert, kept, 1))
	table := b.declared(cards(), nil).sink
	for name, read := range map[string]func(from string) (ids []string, next string, err error){
		"Table": func(from string) (ids []string, next string, err error) {
			page, next, err := table.Scan(t.Context(), from)
			for _, d := range page {
				ids = append(ids, d.ID)
			}
			return ids, next, err
		},
		"Chronicle": func(from string) (ids []string, next string, err error) {
			page, next, err := c.Documents(t.Context(), from)
			for _, h := range page {
				ids = append(ids, h.ID)
			}
			return ids, next, err
		},
	} {
		want := []string{"1", "2"}
		if name == "Chronicle" {
			want = []string{kept.ID.String()}
		}
		ids, next, err := read("")
		if err != nil || !slices.Equal(ids, want) {
			t.Errorf("%s: got %v, %v, want %v", name, ids, err, want)
		}
		if ids, end, err := read(next); len(ids) > 0 || end != "" || err != nil {
			t.Errorf("%s, from %q: got %v, %q, %v", name, next, ids, end, err)
		}
		if _, _, err := read("0-60/20 of an index"); !errors.Is(err, elastic.ErrOtherIndex) {
			t.Errorf("%s, a position of an index: got %v, want %v", name, err, elastic.ErrOtherIndex)
		}
	}
}

// A page of a destination or of the chronicle costs the same however many rows are before it.
func TestPagesBeginInTheIndex(t *testing.T) {
	t.Parallel()
	b := cardShop(t)
	card, err := b.declared(cards(), nil).sink.(*tableSink).known(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	events, _ := pageOf("chronicle_events", key(), 10)
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	for sql, last := range map[string]string{events: "00000000-0000-0000-0000-000000000001", card.next: "7"} {
		if _, err := tx.Exec(t.Context(), "set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off; deallocate all; prepare page as "+sql); err != nil {
			t.Fatal(err)
		}
		rows, err := tx.Query(t.Context(), "explain (costs off) execute page (10, '"+last+"')", pgx.QueryExecModeExec)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if text := strings.Join(plan, "\n"); err != nil || !strings.Contains(text, "Index Cond") || strings.Contains(text, "Filter") {
			t.Errorf("%s: %v, plan:\n%s", sql, err, text)
		}
	}
}

// Sizes come from the catalogue, those of partitions together. A partitioned source had none, so that nobody was told how far a load was; and
// to count the rows of a large destination took longer than a statement may, so that no comparison began.
func TestSizesAreEstimates(t *testing.T) {
	t.Parallel()
	b := cardShop(t)
	b.exec(`create table parted (id int) partition by range (id); create table low partition of parted for values from (0) to (100);
		create table high partition of parted for values from (100) to (1000) partition by range (id); create table higher partition of high for values from (100) to (1000)`)
	b.exec(`insert into parted select generate_series(50, 549); insert into shop.product_card select i, 1, 'a', 1, null from generate_series(1, 70) i`)
	b.exec(`analyze low; analyze higher; analyze shop.product_card`)
	size := func(table string) (n int64) {
		t.Helper()
		if err := each(t.Context(), b.pool, rowsQuery, []any{table}, []any{&n}, nil); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 2 {
		for table, want := range map[string]int64{"parted": 500, "low": 50, "shop.product_card": 70, "product": 0, "nowhere": 0} {
			if got := size(table); got != want {
				t.Errorf("%s: got %d, want %d", table, got, want)
			}
		}
		b.exec(`analyze parted`)
	}

	sink := b.hurried().declared(cards(), nil).sink
	if err := sink.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "lock table shop.product_card"); err != nil {
		t.Fatal(err)
	}
	if n, err := sink.Count(t.Context()); n != 70 || err != nil {
		t.Errorf("got %d, %v, want 70 although no row can be read", n, err)
	}
}
