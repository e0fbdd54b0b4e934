package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

const shopTables = `
create schema shop;
create table shop.product (id bigint primary key, name text, price numeric, deleted_at timestamptz);
create table shop.variant (id bigint primary key, product_id bigint references shop.product, sku text);
create index on shop.variant (product_id);
insert into shop.product (id, name, price) select i, 'product ' || i, i * 1.10 from generate_series(1, 50) i;`

const shopQuery = `
        select p.id as entity_id, v.version, p.deleted_at is not null as deleted, p.name, p.price,
               coalesce((select json_agg(json_build_object('sku', x.sku) order by x.id) from shop.variant x where x.product_id = p.id), '[]') as variants
        from shop.product p join product_outbox_versions v on v.entity_id = p.id
        where p.id = any($1)`

const shopMapping = `{"dynamic": "strict", "properties": {"name": {"type": "text"}, "price": {"type": "double"},
	"variants": {"properties": {"sku": {"type": "keyword"}}}}}`

// shop is a database with products, their outbox, and a configuration that projects them.
type shop struct {
	t     *testing.T
	pool  *pgxpool.Pool
	index string
	env   []string
	file  string
}

// front returns the environment of a shop whose requests to Elasticsearch pass through before, unless it answers them itself.
func (s *shop) front(before func(w http.ResponseWriter, r *http.Request, body string) (answered bool)) []string {
	s.t.Helper()
	target, err := url.Parse(testenv.ElasticURL(s.t))
	if err != nil {
		s.t.Fatal(err)
	}
	to := httputil.NewSingleHostReverseProxy(target)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !before(w, r, string(body)) {
			to.ServeHTTP(w, r)
		}
	}))
	s.t.Cleanup(front.Close)
	return append(slices.Clone(s.env), "ELASTIC_URL="+front.URL)
}

func newShop(t *testing.T) *shop {
	t.Helper()
	return newShopIn(t, testenv.Database(t))
}

func newShopIn(t *testing.T, dsn string) *shop {
	t.Helper()
	s := &shop{t: t, pool: testenv.Pool(t, dsn), index: testenv.Index(t), file: filepath.Join(t.TempDir(), "weft.yaml")}
	s.env = []string{"DATABASE_URL=" + dsn, "ELASTIC_URL=" + testenv.ElasticURL(t), "WEFT_CONFIG=" + s.file, "OUTBOX_METRICS_PORT=0", "WEFT_GROUP=shop", longTrust, longIdle}
	s.exec(shopTables)
	s.declare(shopQuery, shopMapping)
	if r := weft(t, s.env, "outbox", "create", "--table", "shop.product", "--children", "shop.variant:product_id", "--apply"); r.code != 0 {
		t.Fatalf("outbox create: %+v", r)
	}
	return s
}

func (s *shop) exec(sql string) {
	s.t.Helper()
	if _, err := s.pool.Exec(s.t.Context(), sql); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

func (s *shop) declare(query, mapping string) {
	s.t.Helper()
	text := "projections:\n  products:\n    outbox: {table: product_outbox_events}\n    source:\n      query: |" + query +
		"\n    index: {name: " + s.index + ", mapping: products.json}\n"
	for name, text := range map[string]string{s.file: text, filepath.Join(filepath.Dir(s.file), "products.json"): mapping} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

// document returns the fields of a document, nil when there is none.
func (s *shop) document(id string) map[string]any {
	s.t.Helper()
	res, err := http.Get(testenv.ElasticURL(s.t) + "/" + s.index + "/_doc/" + id)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var doc struct {
		Source map[string]any `json:"_source"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		s.t.Fatal(err)
	}
	return doc.Source
}

// A table of the application gets an outbox and a declaration, and is searchable: rows,
// children, soft and hard deletes.
func TestDeclaredProjectionRuns(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec("alter table shop.variant enable always trigger product_outbox_insert")
	r := start(t, runDaemon, s.env...)
	defer func() {
		if t.Failed() {
			t.Log(r.errOut)
		}
		r.signals <- syscall.SIGTERM
		if code := <-r.code; code != 0 {
			t.Errorf("weft run ended with %d: %s", code, r.errOut)
		}
	}()
	testenv.Eventually(t, func() bool {
		return strings.Contains(r.errOut.String(), "trigger product_outbox_insert of shop.variant fires under session_replication_role")
	}, "the finding of the check in the log")
	if n := strings.Count(r.errOut.String(), "projection.finding"); n != 1 {
		t.Errorf("%d findings in the log, want one: %s", n, r.errOut)
	}
	s.exec("alter table shop.variant enable trigger product_outbox_insert")
	if r := weft(t, s.env, "load", "products"); r.code != 0 || !strings.HasPrefix(r.out, "products: 50 rows read, 0 events written in ") {
		t.Errorf("load: %+v", r)
	}
	s.exec("update shop.product set name = 'lamp' where id = 7")
	s.exec("insert into shop.variant values (1, 7, 'L-7'), (2, 8, 'X-8')")
	s.exec("update shop.product set price = 9.99 where id between 1 and 20")
	eventually := func(what string, ok func() bool) {
		t.Helper()
		testenv.Eventually(t, ok, what)
	}
	eventually("the documents", func() bool {
		doc := s.document("7")
		return doc["name"] == "lamp" && doc["price"] == 9.99 && len(doc["variants"].([]any)) == 1 && s.document("20") != nil && s.document("50") != nil
	})
	s.exec("update shop.variant set product_id = 8 where id = 1") // moved: both change
	s.exec("update shop.product set deleted_at = now() where id = 9")
	s.exec("delete from shop.product where id = 10")
	eventually("the moved child, and the deletes", func() bool {
		return len(s.document("7")["variants"].([]any)) == 0 && len(s.document("8")["variants"].([]any)) == 2 && s.document("9") == nil && s.document("10") == nil
	})
	if r := weft(t, s.env, "load", "products"); r.code != 0 || !strings.Contains(r.out, "49 rows read, 0 events") {
		t.Errorf("load: %+v", r)
	}
	if r := weft(t, s.env, "status"); r.code != 0 || !strings.Contains(r.out, "products") {
		t.Errorf("status: %+v", r)
	}
	if r := weft(t, s.env, "projection", "check"); r.code != 0 || r.out != "products: nothing stands in the way\n" {
		t.Errorf("check: %+v", r)
	}
	if r := weft(t, s.env, "projection", "render", "products", "--id", "999999"); r.code != 0 || !strings.Contains(r.out, "the query returns no row of it: a row from before the outbox") {
		t.Errorf("render of what is not there: %+v", r)
	}
	if r := weft(t, s.env, "projection", "render", "products", "--id", "8"); r.code != 0 || !strings.Contains(r.out, "  price: 9.99\n") {
		t.Errorf("render: %+v", r)
	}
}

func TestProjectionCheckFindings(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec("drop index shop.variant_product_id_idx; insert into shop.variant select i, 1 + i % 50, i from generate_series(1, 20000) i; analyze shop.variant")
	s.exec("update shop.product set price = 1")
	s.declare(strings.Replace(shopQuery, "p.name", "p.name, p.id as number", 1),
		strings.Replace(shopMapping, `{"name":`, `{"colour": {"type": "nope"}, "name":`, 1))
	r := weft(t, s.env, "projection", "check", "products")
	for _, want := range []string{
		"error: index.mapping: the mapping is strict and lacks field number: every document would be refused; add the field to properties, or leave its column out of the query (" + s.file + ":",
		"warning: source.query: nothing fills field colour of the mapping",
		`error: source.query: for each batch it reads all 20000 rows of "shop"."variant"; make an index`,
		"error: index.mapping: Elasticsearch refuses it: ", "type [nope] declared on field [colour]",
	} {
		if r.code != exitBad || !strings.Contains(r.out, want) {
			t.Errorf("got %+v, want %q", r, want)
		}
	}

	s.declare(strings.Replace(shopQuery, "p.name", "p.colour", 1), shopMapping)
	if r := weft(t, s.env, "projection", "check"); r.code != exitBad || !strings.Contains(r.out, "column p.colour does not exist") || !strings.Contains(r.out, s.file+":5)") {
		t.Errorf("unknown column: %+v", r)
	}
	s.exec("insert into shop.product (id, name, price) values (1000, 'nan', 'NaN')")
	s.declare(shopQuery, shopMapping)
	if r := weft(t, s.env, "projection", "render", "products", "--id", "1000"); r.code != exitBad || !strings.Contains(r.out, "it would fail: field price: NaN is not a finite number") {
		t.Errorf("render of NaN: %+v", r)
	}
	if r := weft(t, s.env, "projection", "render", "products", "--id", "1"); r.code != exitBad || !strings.Contains(r.out, "it would be new:\n+ name: \"product 1\"\n") {
		t.Errorf("render of a new one: %+v", r)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"check", "chronicle"}, `"chronicle" is no declared projection: want one of products, search_index_to_elastic`},
		{[]string{"render", "products"}, "want one projection, and an entity with --id"},
		{[]string{"render", "products", "--id", "x"}, `--id: id "x": want a whole number`},
	} {
		if r := weft(t, s.env, append([]string{"projection"}, tc.args...)...); r.code != exitUsage || !strings.Contains(r.errOut, tc.want) {
			t.Errorf("%v: %+v, want %q", tc.args, r, tc.want)
		}
	}
	if r := weft(t, s.env, "projection", "list"); !strings.Contains(r.out, "products                     product_outbox_events    "+s.index) {
		t.Errorf("list: %+v", r)
	}
}

// A query that is wrong as a whole, at once or only when it runs, fails no event, however
// often it is tried.
func TestWrongQueryFailsNoEvent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ from, to, want string }{
		"UnknownColumn": {"p.name", "p.colour", "column p.colour does not exist"},
		"NotAsked":      {"p.id as entity_id", "p.id + 1000 as entity_id", "which it was not asked for"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.declare(strings.Replace(shopQuery, tc.from, tc.to, 1), shopMapping)
			r := start(t, runDaemon, append(s.env, "OUTBOX_MAX_ATTEMPTS=1", "OUTBOX_BASE_BACKOFF_SECONDS=0.01", "OUTBOX_MAX_BACKOFF_SECONDS=0.02")...)
			s.exec("update shop.product set name = 'lamp' where id between 7 and 9")
			testenv.Eventually(t, func() bool { return strings.Contains(r.errOut.String(), tc.want) }, "the fault in the log")
			s.declare(shopQuery, shopMapping)
			r.signals <- syscall.SIGTERM
			if code := <-r.code; code != 0 {
				t.Errorf("weft run ended with %d", code)
			}
			var failed, open int
			if err := s.pool.QueryRow(t.Context(), "select count(*) filter (where status = 'failed'), count(*) filter (where status = 'pending') from product_outbox_events").Scan(&failed, &open); err != nil {
				t.Fatal(err)
			}
			if failed != 0 || open != 3 || s.document("7") != nil {
				t.Errorf("%d failed and %d open, want 0 and 3: %s", failed, open, r.errOut)
			}

			// With the query corrected, the next instance carries them.
			again := start(t, runDaemon, s.env...)
			testenv.Eventually(t, func() bool { return s.document("7")["name"] == "lamp" && s.document("9") != nil }, "the documents")
			again.signals <- syscall.SIGTERM
			if code := <-again.code; code != 0 {
				t.Errorf("weft run ended with %d: %s", code, again.errOut)
			}
		})
	}
}

// The projection of search_index is a declaration as well, of entities of several types.
func TestBuiltInDeclaration(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	const id = "11111111-1111-1111-1111-111111111111"
	s.exec(`insert into search_index (entity_type, entity_id, text, event_version) values ('block', '` + id + `', 'a block', 3), ('page', '` + id + `', 'a page', 5)`)
	s.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version)
		select gen_random_uuid(), entity_type, entity_id, 'upsert', event_version from search_index`)
	const name = "search_index_to_elastic"
	if r := weft(t, s.env, "projection", "check", name); r.code != 0 || r.out != name+": nothing stands in the way\n" {
		t.Errorf("check: %+v", r)
	}
	for args, want := range map[string]string{"page:" + id: `+ text: "a page"`, "block:" + id: `+ text: "a block"`, id: "want its type and its id, as in block:17"} {
		if r := weft(t, s.env, "projection", "render", name, "--id", args); r.code == 0 || !strings.Contains(r.out+r.errOut, want) {
			t.Errorf("render %s: %+v, want %q", args, r, want)
		}
	}
}

// A proxy that answers of its own says of no document or index whether it is there.
func TestProxyBeforeElasticsearch(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for name, root := range map[string]bool{"OfEverything": false, "OfDocuments": true} {
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if root && r.URL.Path == "/" {
				w.Header().Set("X-Elastic-Product", "Elasticsearch")
				fmt.Fprint(w, `{"version":{"number":"8.19.0"}}`)
				return
			}
			http.Error(w, "<html>no such page</html>", http.StatusNotFound)
		}))
		t.Cleanup(proxy.Close)
		env := append(s.env, "ELASTIC_URL="+proxy.URL)
		if r := weft(t, env, "projection", "check", "products"); r.code != exitBad || strings.Count(r.out, "status 404 from ") != 1 {
			t.Errorf("%s, check: got %+v, want code %d and the fault once", name, r, exitBad)
		}
		for _, command := range []string{"projection render products --id 7", "verify products"} {
			r := weft(t, env, strings.Fields(command)...)
			if want := "status 404 from " + strings.TrimPrefix(proxy.URL, "http://") + "; correct ELASTIC_URL, or the proxy that it leads to"; r.code != exitConfig || !strings.Contains(r.errOut, want) {
				t.Errorf("%s, %s: got %+v, want code %d and %q", name, command, r, exitConfig, want)
			}
		}
	}
}

// Before an instance has made the index there is a document to be seen, and none to compare it with.
func TestRenderWithoutAnIndex(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec("update shop.product set name = 'lamp' where id = 7")
	if r := weft(t, s.env, "projection", "render", "products", "--id", "7"); r.code != exitBad || !strings.Contains(r.out, "there is no index yet") || !strings.Contains(r.out, "+ name: \"lamp\"\n") {
		t.Errorf("render: %+v", r)
	}
}
