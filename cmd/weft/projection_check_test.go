package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/projections"
)

// Each finding names the line of the configuration, what is wrong and what to do.
func TestProjectionCheckNames(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sql      string
		from, to string // of the query
		mapping  string
		good     bool // nothing stands in the way
		want     string
	}{
		"NoOutbox":       {sql: "alter table product_outbox_events rename to other", want: "error: outbox.table: table product_outbox_events does not exist; run `weft migrate up`, or `weft outbox create`"},
		"MissingColumn":  {sql: "alter table product_outbox_events drop column behind cascade", want: "error: outbox.table: table product_outbox_events lacks columns of this build; run `weft migrate up` (F:3)"},
		"MissingIndex":   {sql: "drop index weft_product_outbox_list", want: "error: outbox.table: index weft_product_outbox_list is missing or unfinished: statements would read the whole table; run `weft migrate up` (F:3)"},
		"IndexElsewhere": {sql: "drop index weft_product_outbox_list; create table old (); create index weft_product_outbox_list on old ((1))", want: "error: outbox.table: index weft_product_outbox_list is on table old: statements would read the whole table; run `weft doctor` for the statements that free its name and make it anew (F:3)"},
		"ForeignVersion": {from: shopQuery, to: "\n        select p.id as entity_id, p.id as version, p.name, p.price, '[]'::json as variants from shop.product p where p.id = any($1)", want: "error: source.query: version is not that of "},
		"VersionOfTheApplication": {sql: "alter table shop.product add lock_version int not null default 1", from: "v.version", to: "p.lock_version as version",
			want: "product_outbox_versions\", or the query reads what is behind, as a materialized view: an event of entity 1 has a higher one; join it on the entity's id and return its version (F:5)"},
		"NotAChild": {sql: "create table shop.tenant (id bigint primary key, name text)", from: "p.name", to: "(select t.name from shop.tenant t where t.id = p.id) as name", good: true,
			want: "warning: source.query: changes of shop.tenant write no event: documents keep what it had; name it with --children when the outbox is made; where no column of it is the key, let a trigger on it call weft_enqueue, or change the row of the entity whenever it changes (F:5)"},
		"ViewOverOtherTable": {sql: "create table shop.tenant (id bigint primary key, name text); create view shop.named as select * from shop.tenant", from: "p.name", to: "(select t.name from shop.named t where t.id = p.id) as name", good: true,
			want: "warning: source.query: changes of shop.tenant write no event"},
		"MaterializedView": {sql: "create materialized view shop.names as select id, name from shop.product", from: "p.name", to: "(select t.name from shop.names t where t.id = p.id) as name", good: true,
			want: "warning: source.query: shop.names is a materialized view: a refresh fires no trigger; change the row of the entity whenever it changes"},
		"ForeignTable": {sql: "create extension file_fdw; create server files foreign data wrapper file_fdw; create foreign table shop.away (id bigint, name text) server files options (filename '/dev/null')",
			from: "p.name", to: "(select t.name from shop.away t where t.id = p.id) as name", good: true, want: "warning: source.query: shop.away is a foreign table: changes on its server fire no trigger here"},
		"OpaqueFunction": {sql: "create function shop.label(bigint) returns text stable language plpgsql as 'begin return (select name from shop.product where id = $1); end'", from: "p.name", to: "shop.label(p.id) as name", good: true,
			want: "warning: source.query: function shop.label may read tables that the plan does not show"},
		"FunctionOfAnExtension": {sql: "create extension citext", from: "p.name", to: "replace(p.name, 'a', 'b') as name", good: true, want: "nothing stands in the way"},
		"Unordered":             {from: " order by x.id", to: "", good: true, want: "warning: source.query: json_agg puts its values in no certain order, so the document of a row may differ each time it is written; order them inside it, as in json_agg(x order by x.id) (F:5)"},
		"Clock":                 {from: "p.name", to: "now()::text as name", want: "warning: source.query: now() has another value each time"},
		"ClockWord":             {from: "p.name", to: "current_date::text as name", good: true, want: "warning: source.query: CURRENT_DATE has another value each time"},
		"Volatile":              {from: "p.name", to: "random()::text as name", want: "warning: source.query: random() has another value each time, so the document of a row differs each time it is written; take it out of the query"},
		"Differs":               {from: "p.name", to: "random()::text as name", want: "error: source.query: read twice by different plans, the document of entity 1 was not the same though its version was"},
		"BadRow": {sql: "update shop.product set price = 'NaN' where id = 4", good: true,
			want: "warning: source.query: some events would end in failed, as of entity 4: field price: NaN is not a finite number"},
		"NoRow":        {from: "where p.id", to: "where p.id < 0 and p.id", good: true, want: "warning: source.query: it returns no row for any of 50 entities that have events: their documents would be deleted"},
		"MetadataName": {from: "p.name", to: "p.id as _id, p.name", want: "error: source.query: Elasticsearch takes no field with the name \"_id\": every document would be refused; give its column another name with `as` (F:5)"},
		"BlankName":    {from: "p.name", to: "p.name, 1 as \"a..b\"", want: "error: source.query: Elasticsearch takes no field with the name \"a..b\": every document would be refused"},
		"Limit":        {from: "where p.id = any($1)", to: "where p.id = any($1) order by p.id limit 10000", want: "error: source.query: it returns a limited number of rows: documents of the other entities of a batch would be deleted; leave limit, offset and fetch out; a batch has its own bound (F:5)"},
		"LimitOfAPart": {from: "p.name", to: "(select x.sku from shop.variant x where x.product_id = p.id order by x.id limit 1) as name", good: true, want: "nothing stands in the way"},
		"NoArray":      {from: "= any($1)", to: "= $1", want: "error: source.query: query refused: ERROR: invalid input syntax for type bigint: \"{}\" (SQLSTATE 22P02); correct the query, in which each parameter is an array, as in `where p.id = any($1)` (F:5)"},
		"NoVersion":    {from: "v.version, ", want: "error: source.query: there is no column version: join product_outbox_versions v on the entity's id and return v.version"},
		"Slow":         {from: "p.name", to: "pg_sleep(1)::text as name", want: "error: source.query: it takes too long for 200 entities, and was cancelled; see by its plan"},
		"Disabled": {sql: "alter table shop.variant disable trigger product_outbox_update",
			want: "error: outbox.table: trigger product_outbox_update of shop.variant is disabled, or enabled for replicas alone: changes write no event; alter table shop.variant enable trigger product_outbox_update, then `weft verify --repair`: a load leaves the documents of rows that were deleted meanwhile (F:3)"},
		"ForReplicas": {sql: "alter table shop.product enable replica trigger product_outbox_delete", want: "error: outbox.table: trigger product_outbox_delete of shop.product is disabled, or enabled for replicas alone"},
		"Always":      {sql: "alter table shop.product enable always trigger product_outbox_insert", good: true, want: "warning: outbox.table: trigger product_outbox_insert of shop.product fires under session_replication_role = replica, too"},
		"Dropped":     {sql: "drop trigger product_outbox_insert on shop.product", want: "error: outbox.table: shop.product has no trigger for insert: such changes write no event; drop the outbox"},
		"Attached": {sql: "create table shop.all_products (like shop.product) partition by range (id); alter table shop.product drop constraint product_pkey cascade; alter table shop.all_products attach partition shop.product for values from (0) to (9999)",
			want: "error: outbox.table: shop.product is a partition: triggers on it miss what is written through its parent; take it out of there"},
		"PartitionsOfOneTable": {sql: "create table shop.visit (id bigint, at int) partition by range (at); create table shop.visit_1 partition of shop.visit for values from (1) to (2); create table shop.visit_2 partition of shop.visit for values from (2) to (3)",
			from: "p.name", to: "(select max(t.at)::text from shop.visit t where t.id = p.id) as name", good: true,
			want: "products:\n  warning: source.query: shop.visit is partitioned: triggers of an outbox miss what is written into a partition directly; change the row of the entity whenever it changes (F:5)\n"},
		"Inherited":         {sql: "create table shop.heir () inherits (shop.variant)", want: "error: outbox.table: shop.variant is part of an inheritance tree"},
		"Subscribed":        {sql: "set allow_system_table_mods = on; insert into pg_subscription_rel (srsubid, srrelid, srsubstate) values (1, 'shop.product'::regclass, 'r'); reset allow_system_table_mods", want: "error: outbox.table: shop.product is filled by a logical replication subscription"},
		"Unlogged":          {sql: "alter table shop.variant set unlogged", want: "error: outbox.table: shop.variant is unlogged: a crash empties it, and no event says so; alter table shop.variant set logged, which locks and rewrites it (F:3)"},
		"UnloggedEvents":    {sql: "alter table product_outbox_events set unlogged", want: "error: outbox.table: product_outbox_events is unlogged: a crash empties it, and what it held is lost; alter table product_outbox_events set logged"},
		"UnloggedVersions":  {sql: "alter table product_outbox_versions set unlogged", want: "error: outbox.table: product_outbox_versions is unlogged: a crash empties it, and what it held is lost; alter table product_outbox_versions set logged"},
		"Renamed":           {sql: "alter table shop.product rename to goods; create view shop.product_now as select * from shop.goods", from: "from shop.product p", to: "from shop.goods p", want: "error: outbox.table: its source shop.product is gone, or has another name"},
		"RenamedAndQueried": {sql: "alter table shop.product rename to goods", want: "error: outbox.table: its source shop.product is gone, or has another name: writers of it fail; drop the outbox with `weft outbox drop`, make it again, then `weft load` and `weft verify --repair`: no event told of the changes meanwhile (F:3)"},
		"RenamedKey":        {sql: "alter table shop.product rename id to number", want: `error: outbox.table: shop.product has lost column "id", or it has another name: writers of it fail; drop the outbox`},
		"RenamedKeyOfAChild": {sql: "alter table shop.variant rename product_id to product", from: "x.product_id", to: "x.product",
			want: `error: outbox.table: shop.variant has lost column "product_id", or it has another name: writers of it fail; drop the outbox`},
		"KeyOfAnotherType": {sql: "alter table shop.variant drop constraint variant_product_id_fkey; alter table shop.product alter id type text",
			want: "error: outbox.table: the key of shop.product has another type than when the outbox was made: id is a text, no bigint; writers of it may fail; drop the outbox"},
		"WiderKey": {sql: "alter table shop.variant drop constraint variant_product_id_fkey; alter table shop.product alter id type integer", good: true, want: "nothing stands in the way"},
		"SecondOutbox": {sql: "insert into weft_outbox (table_name, entity_type, source, key_columns, key_types) values ('copy_outbox_events', 'copy', 'shop.product', '{id}', '{bigint}')", good: true,
			want: "warning: outbox.table: copy_outbox_events gets the changes of shop.product as well, and no projection reads it: its events pile up"},
		"WritesAsReplica": {sql: "do $$ begin execute format('alter role postgres in database %I set session_replication_role = replica', current_database()); end $$", good: true,
			want: "warning: outbox.table: role postgres has session_replication_role = replica in its settings: what it writes fires no trigger"},
		"RoleWritesAsReplica": {sql: "do $$ begin execute format('alter role postgres in database %I set session_replication_role = replica', current_database()); end $$", good: true,
			want: "fires no trigger; alter role postgres in database "},
		"DatabaseWritesAsReplica": {sql: "do $$ begin execute format('alter database %I set session_replication_role = replica', current_database()); end $$", good: true,
			want: "warning: outbox.table: every role of this database has session_replication_role = replica in its settings: what it writes fires no trigger; alter database "},
		"IgnoredValue": {sql: "update shop.product set name = repeat('é', 300) where id = 3", mapping: strings.Replace(shopMapping, `{"type": "text"}`, `{"type": "keyword", "ignore_above": 256}`, 1), good: true,
			want: "warning: index.mapping: field name has a value of 300 characters, and ignore_above 256 leaves it out of searches; raise ignore_above"},
		"LongKeyword": {sql: "update shop.product set name = repeat('x', 40000) where id = 3", mapping: strings.Replace(shopMapping, `{"type": "text"}`, `{"type": "keyword"}`, 1),
			want: "error: index.mapping: field name has a value of 40000 bytes, and a keyword holds 32766: the document would be refused"},
		"NoNumber": {from: "p.price", to: "p.price::money as price", good: true,
			want: "warning: index.mapping: the event of entity 1 would end in failed: its value of field price is none of type double; correct the query, the row or the mapping (F:"},
		"NoAddress": {from: "p.price", to: "'10.0.0.1/8'::inet as price", mapping: strings.Replace(shopMapping, "double", "ip", 1), good: true,
			want: "its value of field price is none of type ip; return host() of an inet, or correct the mapping"},
		"NoRange": {from: "p.price", to: "int4range(1, 2) as price", mapping: strings.Replace(shopMapping, "double", "integer_range", 1), good: true,
			want: "its value of field price is none of type integer_range; return json_build_object('gte', lower(…), 'lt', upper(…)), or correct the mapping"},
		"BeyondTheType": {from: "p.price", to: "p.id + 3000000000 as price", mapping: strings.Replace(shopMapping, "double", "integer", 1), good: true,
			want: "its value of field price is none of type integer"},
		"NoDate": {from: "p.price", to: "'22.11.2026' as price", mapping: strings.Replace(shopMapping, "double", "date", 1), good: true,
			want: "its value of field price is none of type date"},
		"ObjectInText": {from: "p.name", to: "json_build_object('en', p.name) as name", good: true, want: "its value of field name is none of type text"},
		"PartOfAnObject": {from: "'sku', x.sku", to: "'sku', row_to_json(x)", sql: "insert into shop.variant (id, product_id, sku) values (999, 7, 'a')", good: true,
			want: "the event of entity 7 would end in failed: its value of field variants.sku is none of type keyword"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.exec("update shop.product set price = 1; analyze shop.product")
			if tc.sql != "" {
				s.exec(tc.sql)
			}
			mapping := shopMapping
			if tc.mapping != "" {
				mapping = tc.mapping
			}
			if !strings.Contains(shopQuery, tc.from) {
				t.Fatalf("the query lacks %q", tc.from)
			}
			s.declare(strings.Replace(shopQuery, tc.from, tc.to, 1), mapping)
			r := weft(t, s.env, "projection", "check")
			code := exitBad
			if tc.good {
				code = exitOK
			}
			if out := strings.ReplaceAll(r.out, s.file, "F"); r.code != code || !strings.Contains(out, tc.want) {
				t.Errorf("exit %d, want %d with %q: %s%s", r.code, code, tc.want, out, r.errOut)
			}
		})
	}
}

// What an instance looks at again finds triggers that somebody has disabled, or that stay with the table that another one
// has replaced, and says the same each time.
func TestCheckOfAnOutboxFindsWhatHasBecomeOfItsTriggers(t *testing.T) {
	t.Parallel()
	for want, sql := range map[string]string{
		"trigger product_outbox_update of shop.variant is disabled": "alter table shop.variant disable trigger product_outbox_update",
		"shop.product has no trigger for update":                    "alter table shop.product rename to former; create table shop.product (like shop.former including all)",
	} {
		s := newShop(t)
		s.declare(shopQuery, shopMapping)
		cfg, err := config.Load(config.Options{Environ: s.env})
		if err != nil {
			t.Fatal(err)
		}
		look := func() []projections.Finding {
			found, err := cfg.Registry().CheckOutbox(t.Context(), "products", projections.Deps{Pool: s.pool})
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
		if found := look(); len(found) != 0 {
			t.Errorf("before: %+v", found)
		}
		s.exec(sql)
		found := look()
		if !slices.ContainsFunc(found, func(f projections.Finding) bool { return !f.Warning && strings.HasPrefix(f.What, want) }) {
			t.Errorf("got %+v, want %q", found, want)
		}
		if again := look(); !slices.Equal(again, found) {
			t.Errorf("looked again: got %+v, want %+v", again, found)
		}
	}
}

// Another index.id leaves the documents with the ids before, and a comparison passes over them.
func TestProjectionCheckNamesDocumentsOfOtherIDs(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != exitOK {
		t.Fatalf("load: %+v", r)
	}
	res, err := http.Post(testenv.ElasticURL(t)+"/"+s.index+"/_refresh", "application/json", nil)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("refresh: %v, %v", res, err)
	}
	res.Body.Close()
	text, err := os.ReadFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	own := strings.Replace(string(text), "index: {", `index: {id: "p-{id}", `, 1)
	other := strings.ReplaceAll(strings.ReplaceAll(strings.TrimPrefix(own, "projections:\n"), "products:\n", "others:\n"), "p-{id}", "o-{id}")
	for want, config := range map[string]string{
		"warning: index.id: the index has documents whose ids do not begin with \"p-\", as ": own,
		"products: nothing stands in the way\n": own + // another projection may have written them
			strings.Replace(other, "product_outbox_events", "other_outbox_events", 1),
	} {
		if err := os.WriteFile(s.file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := weft(t, s.env, "projection", "check", "products"); r.code != exitOK || !strings.Contains(r.out, want) {
			t.Errorf("want %q: %s%s", want, r.out, r.errOut)
		}
	}
}

// A setting of the whole server is in no catalog of roles and databases. The server is this test's own.
func TestProjectionCheckNamesAServerThatFiresNoTriggers(t *testing.T) {
	t.Parallel()
	own, err := stack.Start(t.Context(), stack.Options{Progress: io.Discard, Quick: true, ElasticURL: testenv.ElasticURL(t),
		Versions: stack.Versions{PostgresMajor: testenv.PostgresMajor(t)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := migrations.Up(t.Context(), own.DatabaseURL()); err != nil {
		t.Fatal(err)
	}
	s := newShopIn(t, own.DatabaseURL())
	for _, sql := range []string{"alter system set session_replication_role = replica", "select pg_reload_conf()"} {
		s.exec(sql)
	}
	const want = "warning: outbox.table: every role of this server has session_replication_role = replica in its settings: what it writes fires no trigger; " +
		"alter system set session_replication_role = origin; select pg_reload_conf() ("
	var r result
	testenv.Eventually(t, func() bool { r = weft(t, s.env, "projection", "check"); return strings.Contains(r.out, want) }, "the setting is named")
	if n := strings.Count(r.out, "session_replication_role"); n != 2 {
		t.Errorf("the setting and its remedy are named once: %s", r.out)
	}
}

// What stands in the way outside of the query is named with what to do, by each command that meets it.
func TestCommandsNameAMissingPipelineAndAnAliasThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, name := range []string{"-v1", "-v2"} {
		callElastic(t, http.MethodPut, "/"+s.index+name, `{"aliases":{"`+s.index+`":{}}}`)
	}
	s.redeclare("mapping: products.json", "mapping: products.json, pipeline: none")
	if r := weft(t, s.env, "verify", "products"); r.code != exitTryAgain || !strings.Contains(r.errOut, "0 of them take writes, want 1: set is_write_index on one index") {
		t.Errorf("verify: got %+v, want code %d and the remedy", r, exitTryAgain)
	}
	callElastic(t, http.MethodDelete, "/"+s.index+"-v2", "")
	missing := `there is no ingest pipeline "none": no document would be written; make it, or correct the name`
	if r := weft(t, s.env, "projection", "check"); r.code != exitBad || !strings.Contains(r.out, "error: index.pipeline: "+missing) {
		t.Errorf("check: got %+v, want %q", r, missing)
	}
	callElastic(t, http.MethodPut, "/"+s.index+"/_settings", `{"index":{"default_pipeline":"passed_over","final_pipeline":"last"}}`)
	missing = `there is no ingest pipeline "last": no document would be written; make it, or take it out of the settings of the index`
	if r := weft(t, s.env, "projection", "check"); r.code != exitBad || !strings.Contains(r.out, "error: index.pipeline: "+missing) || strings.Contains(r.out, "passed_over") {
		t.Errorf("check of the settings: got %+v, want %q", r, missing)
	}
	callElastic(t, http.MethodPut, "/"+s.index+"/_settings", `{"index":{"default_pipeline":null,"final_pipeline":null}}`)
	if r := weft(t, s.env, "doctor"); r.code != exitBad || !strings.Contains(r.out, `documents are to pass the ingest pipeline "none", and there is none of that name`) {
		t.Errorf("doctor: got %+v, want the pipeline named", r)
	}
}

// An index template of the server applies to the indexes that weft makes, too.
func TestProjectionCheckLooksAtIndexTemplates(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	template, applies := "/_index_template/"+s.index, fmt.Sprintf("the index template %q of the server applies to %s-v1, ", s.index, s.index)
	deleteAtEnd(t, template)
	for brought, want := range map[string]string{
		`"data_stream": {}`: "error: index.name: " + applies + "and Elasticsearch then refuses to make the index: it makes data streams only; give it other",
		`"template": {"settings": {"index.mapping.total_fields.limit": 2}}`:       "refuses to make the index: Limit of total fields [2] has been exceeded; give it other",
		`"template": {"settings": {"index.mapping.ignore_malformed": true}}`:      "warning: index.settings: " + applies + "and turns index.mapping.ignore_malformed on: searches do not find",
		`"template": {"settings": {"index.blocks.write": true}}`:                  "error: index.name: " + applies + "and turns index.blocks.write on: a new index",
		`"template": {"settings": {"index.blocks.read_only_allow_delete": true}}`: "error: index.name: " + applies + "and turns index.blocks.read_only_allow_delete on: a new index",
		`"template": {"settings": {"index.number_of_shards": 3}}`:                 "products: nothing stands in the way",
		`"template": {"settings": {"index.final_pipeline": "gone"}}`:              "error: index.name: " + applies + `and sets index.final_pipeline to "gone", which is not there: a new index`,
		`"template": {"settings": {"index.default_pipeline": "_none"}}`:           "products: nothing stands in the way",
		`"template": {"mappings": {"_routing": {"required": true}}}`:              "error: index.name: " + applies + "and has it take no document without a routing: every event would end in failed; take",
	} {
		callElastic(t, http.MethodPut, template, `{"index_patterns": ["`+s.index+`-*"], "priority": 500, `+brought+`}`)
		if r := weft(t, s.env, "projection", "check"); !strings.Contains(r.out, want) {
			t.Errorf("%s: got %+v, want %q", brought, r, want)
		}
	}
}

// deleteAtEnd has Elasticsearch forget path after the test.
func deleteAtEnd(t *testing.T, path string) {
	t.Cleanup(func() {
		req, err := http.NewRequest(http.MethodDelete, testenv.ElasticURL(t)+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	})
}

// A template of the older kind applies as well: all that match do, those of a higher order last.
func TestProjectionCheckLooksAtLegacyIndexTemplates(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	applies := fmt.Sprintf("the index template \"%[1]s-first, %[1]s-last\" of the server applies to %[1]s-v1, ", s.index)
	for order, name := range []string{"-first", "-last"} {
		template := "/_template/" + s.index + name
		callElastic(t, http.MethodPut, template, fmt.Sprintf(`{"index_patterns": ["%s-*"], "order": %d}`, s.index, order))
		deleteAtEnd(t, template)
	}
	for _, tc := range []struct{ first, last, want string }{
		{`"mapping.total_fields.limit": 2`, `"number_of_shards": 3`, "error: index.name: " + applies + "and Elasticsearch then refuses to make the index: Limit of total fields [2] has been exceeded"},
		{`"mapping.ignore_malformed": true`, `"number_of_shards": 3`, "warning: index.settings: " + applies + "and turns index.mapping.ignore_malformed on"},
		{`"mapping.ignore_malformed": true`, `"mapping.ignore_malformed": false`, "products: nothing stands in the way"},
		{`"default_pipeline": "gone"`, `"number_of_shards": 3`, "error: index.name: " + applies + `and sets index.default_pipeline to "gone", which is not there`},
	} {
		for order, settings := range []string{tc.first, tc.last} {
			callElastic(t, http.MethodPut, "/_template/"+s.index+[]string{"-first", "-last"}[order], fmt.Sprintf(`{"index_patterns": ["%s-*"], "order": %d, "settings": {"index": {%s}}}`, s.index, order, settings))
		}
		if r := weft(t, s.env, "projection", "check"); !strings.Contains(r.out, tc.want) {
			t.Errorf("%s, %s: got %+v, want %q", tc.first, tc.last, r, tc.want)
		}
	}
}

// Before the first load no entity has a version, and the check reads documents all the same: the page has it before.
func TestProjectionCheckReadsDocumentsBeforeTheLoad(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		routed   bool
		sql      string
		from, to string // of the query
		code     int
		want     string
	}{
		"Good":    {code: exitOK, want: "products: nothing stands in the way"},
		"BadRow":  {sql: "update shop.product set price = 'NaN' where id = 4; truncate product_outbox_events, product_outbox_versions", code: exitOK, want: "warning: source.query: some events would end in failed, as of entity 4: field price: NaN is not a finite number"},
		"Differs": {from: "p.name", to: "random()::text as name", code: exitBad, want: "error: source.query: read twice by different plans, the document of entity 1 was not the same though its version was"},
		"Crossed": {from: "on v.entity_id = p.id", to: "on true", code: exitOK, want: "warning: source.query: some events would end in failed, as of entity 1: source query: it returned more than one row of this entity"},
		"NoRow":   {from: "where p.id", to: "where p.id < 0 and p.id", code: exitOK, want: "warning: source.query: it returns no row for any of 50 entities, so their documents were not looked at; correct its joins"},
		"NoRowOfOne": {sql: "delete from shop.product where id > 1; truncate product_outbox_events, product_outbox_versions", from: "where p.id", to: "where p.id < 0 and p.id", code: exitOK,
			want: "warning: source.query: it returns no row for the one entity, so its document was not looked at; correct its joins"},
		"Schema": {from: "join product_outbox_versions", to: "join public.product_outbox_versions", code: exitOK, want: "where it names the versions with their schema, check again after `weft load products`"},
		"Routed": {routed: true, from: "p.name", to: "random()::text as name", code: exitBad, want: "error: source.query: read twice by different plans, the document of entity t1:eu:1 was not the same though its version was"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			create := newShop
			if tc.routed {
				create = newRoutedShop
			}
			s := create(t)
			if tc.sql != "" {
				s.exec(tc.sql)
			}
			if tc.from != "" {
				s.redeclare(tc.from, tc.to)
			}
			if r := weft(t, s.env, "projection", "check"); r.code != tc.code || !strings.Contains(r.out, tc.want) {
				t.Errorf("exit %d, want %d with %q: %s%s", r.code, tc.code, tc.want, r.out, r.errOut)
			}
		})
	}
}

// A new field is no reason for a rebuild, as an instance adds it when it starts. A field of another type is one.
func TestProjectionCheckOfAChangedMapping(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != exitOK {
		t.Fatalf("load: %+v", r)
	}
	for _, tc := range []struct {
		name, from, to string
		code           int
		want           string
	}{
		{"new field", `"properties": {`, `"properties": {"color": {"type": "keyword"}, `, exitOK,
			"warning: index.mapping: the index lacks fields: color; an instance adds them when it starts, and documents have them from their next event on; `weft rebuild products` fills them in for all (F:"},
		{"other type", `"name": {"type": "text"}`, `"name": {"type": "keyword"}`, exitBad,
			"error: index.mapping: the index was made for another one: field name has type text, and is to have keyword; `weft rebuild products` makes a new index with this one, and moves the alias (F:"},
		{"other parameter", `"name": {"type": "text"}`, `"name": {"type": "text", "search_analyzer": "keyword"}`, exitOK,
			"warning: index.mapping: the index was made for another one; an instance changes it when it starts; if readiness then names a change that Elasticsearch refuses, `weft rebuild products` (F:"},
	} {
		if !strings.Contains(shopMapping, tc.from) {
			t.Fatalf("the mapping lacks %q", tc.from)
		}
		s.declare(shopQuery, strings.Replace(shopMapping, tc.from, tc.to, 1))
		r := weft(t, s.env, "projection", "check")
		if out := strings.ReplaceAll(r.out, s.file, "F"); r.code != tc.code || !strings.Contains(out, tc.want) {
			t.Errorf("%s: exit %d, want %d with %q: %s%s", tc.name, r.code, tc.code, tc.want, out, r.errOut)
		}
	}
}

// An index that somebody else has made may take no document without a routing.
func TestProjectionCheckNamesAnIndexThatRequiresARouting(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	callElastic(t, http.MethodPut, "/"+s.index, `{"mappings":{"_routing":{"required":true},"properties":{"name":{"type":"text"}}}}`)
	want := "error: index.name: index " + s.index + " takes no document without a routing, and the projection has none: every event would end in failed; "
	if r := weft(t, s.env, "projection", "check"); r.code != exitBad || !strings.Contains(r.out, want) {
		t.Errorf("exit %d, want %d with %q: %s%s", r.code, exitBad, want, r.out, r.errOut)
	}
}

// Where Elasticsearch does not let weft in, that is all there is to tell: no privilege would help.
func TestProjectionCheckTellsOfRefusedCredentialsOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	env := s.front(func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"error":{"type":"security_exception","reason":"unable to authenticate user"},"status":401}`)
		return true
	})
	r := weft(t, env, "projection", "check")
	if r.code != exitBad || strings.Count(r.out, "unable to authenticate user") != 1 || strings.Contains(r.out, "manage_index_templates") {
		t.Errorf("exit %d, want %d with the refusal alone: %s%s", r.code, exitBad, r.out, r.errOut)
	}
}

// Elasticsearch may not let weft ask about templates alone, as by a rule of a proxy: the credentials are not to blame.
func TestProjectionCheckTellsOfRefusedTemplates(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for path, want := range map[string]string{
		"/_index_template/_simulate": "warning: index.mapping: Elasticsearch was not asked about it: it, or a proxy before it, takes the credentials for the index, and for templates not",
		"/_index_template":           "warning: index.name: the index templates of the server are not checked: it, or a proxy before it, does not take the credentials for them",
	} {
		env := s.front(func(w http.ResponseWriter, r *http.Request, _ string) bool {
			if r.URL.Path != path {
				return false
			}
			w.Header().Set("X-Elastic-Product", "Elasticsearch")
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":{"type":"security_exception","reason":"not here"},"status":401}`)
			return true
		})
		if r := weft(t, env, "projection", "check"); r.code != exitOK || !strings.Contains(r.out, want) || strings.Contains(r.out, "ELASTIC_USERNAME") {
			t.Errorf("%s: exit %d, want %d with %q, and no word of the user: %s%s", path, r.code, exitOK, want, r.out, r.errOut)
		}
	}
}

// An index that somebody else has made may have a field with another type, which refuses the documents.
func TestProjectionCheckNamesAFieldOfAnotherTypeInAForeignIndex(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	callElastic(t, http.MethodPut, "/"+s.index, `{"mappings":{"properties":{"name":{"type":"long"}}}}`)
	want := "error: index.mapping: the index has another one: field name has type long, and is to have text; `weft rebuild products` makes a new index with this one, and moves the alias"
	if r := weft(t, s.env, "projection", "check"); r.code != exitBad || !strings.Contains(r.out, want) {
		t.Errorf("exit %d, want %d with %q: %s%s", r.code, exitBad, want, r.out, r.errOut)
	}
}

// Older versions of PostgreSQL hide rows of a MERGE from triggers where it sets off a foreign key of the table to
// itself. The check says so where it is so, and there alone.
func TestProjectionCheckNamesAMergeThatHidesRows(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	if r := weft(t, s.env, "projection", "check"); strings.Contains(r.out, "MERGE") {
		t.Errorf("a table that refers to others alone: %s", r.out)
	}
	s.exec("alter table shop.product add part_of bigint references shop.product on delete set null")
	s.exec("insert into shop.product (id, name) values (101, 'whole'), (103, 'other'); insert into shop.product (id, name, part_of) values (102, 'part', 101)")
	s.exec("truncate product_outbox_events")
	hides := false
	if s.count("select current_setting('server_version_num')::int / 10000") >= 15 {
		s.exec("merge into shop.product p using (values (101), (103)) s(id) on p.id = s.id when matched and p.id = 101 then delete when matched then update set name = 'changed'")
		hides = s.count("select count(*) from product_outbox_events where entity_id = 103") == 0
	}
	r := weft(t, s.env, "projection", "check")
	if said := strings.Contains(r.out, "warning: outbox.table: shop.product refers to itself with an action on delete or update: a MERGE that sets it off hides other rows"); said != hides || r.code != exitOK {
		t.Errorf("exit %d; a row was hidden: %t; the check says so: %t: %s%s", r.code, hides, said, r.out, r.errOut)
	}
}

// A role that lacks a right of weft's is told which, and who grants it; rows that it cannot
// see are named.
func TestProjectionCheckRights(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec("update shop.product set price = 1; analyze shop.product")
	user := testenv.Runner(t, s.pool.Config().ConnString())
	env := append(slices.Clone(s.env), "DATABASE_URL="+testenv.As(t, s.pool.Config().ConnString(), user))
	role := user.Username()
	want := func(lines ...string) {
		t.Helper()
		r := weft(t, env, "projection", "check")
		for _, line := range lines {
			if r.code != exitBad || !strings.Contains(r.out, line) {
				t.Errorf("got %+v, want %q", r, line)
			}
		}
	}
	s.exec("revoke all on product_outbox_events, product_outbox_versions from " + role)
	want("error: outbox.table: role "+role+" lacks select on product_outbox_events; run `weft migrate grant "+role+"` as the owner of the tables",
		"lacks update on product_outbox_events", "lacks select on product_outbox_versions")
	s.exec("grant select, update on product_outbox_events to " + role + "; grant select on product_outbox_versions, weft_outbox to " + role + "; grant usage on schema shop to " + role)
	want("permission denied for table product", "grant select on it to weft's role")
	s.exec("grant select on all tables in schema shop to " + role + "; alter table shop.product enable row level security; create policy none on shop.product using (id = 1)")
	want(`error: source.query: query refused: ERROR: query would be affected by row-level security policy for table "product" (SQLSTATE 42501); documents of hidden rows would be deleted: let weft's role bypass row security`)
	s.exec("create view shop.seen as select * from shop.product; grant select on shop.seen to " + role) // with the rights of its owner
	s.declare(strings.Replace(shopQuery, "from shop.product p", "from shop.seen p", 1), shopMapping)
	want("error: outbox.table: row security hides rows of shop.product from weft's role, which compares and loads them; let the role bypass it")
}
