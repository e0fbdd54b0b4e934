package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

const routedTables = `
create schema shop;
create table shop.product (region text, id integer, tenant text not null, name text, primary key (region, id));
create table shop.variant (region text, product_id integer, sku text);
create index on shop.variant (region, product_id);
insert into shop.product select 'eu', i, 't' || i % 7, 'product ' || i from generate_series(1, 40) i;`

const routedQuery = `
        select p.region, p.id, v.version, p.tenant, p.name,
               (select count(*) from shop.variant x where (x.region, x.product_id) = (p.region, p.id)) as variants
        from shop.product p join product_outbox_versions v on v.entity_id = product_outbox_id(p.region, p.id)
        where (p.region, p.id) in (select * from unnest($1::text[], $2::bigint[]))`

// newRoutedShop is a shop whose products have a key of two columns and a routing of a third.
func newRoutedShop(t *testing.T) *shop {
	t.Helper()
	dsn := testenv.Database(t)
	s := &shop{t: t, pool: testenv.Pool(t, dsn), index: testenv.Index(t), file: filepath.Join(t.TempDir(), "weft.yaml")}
	s.env = []string{"DATABASE_URL=" + dsn, "ELASTIC_URL=" + testenv.ElasticURL(t), "WEFT_CONFIG=" + s.file, "OUTBOX_METRICS_PORT=0", "WEFT_GROUP=routed", longTrust, longIdle}
	s.exec(routedTables)
	s.declareRouted("", "routing: tenant")
	if r := weft(t, s.env, "outbox", "create", "--table", "shop.product", "--routing", "tenant", "--children", "shop.variant:region,product_id", "--apply"); r.code != 0 {
		t.Fatalf("outbox create: %+v", r)
	}
	return s
}

func (s *shop) declareRouted(source, index string) {
	s.t.Helper()
	text := "projections:\n  products:\n    outbox: {table: product_outbox_events}\n    source:\n      query: |" + routedQuery + "\n" + source +
		"    index: {name: " + s.index + ", settings: settings.json, mapping: products.json, " + index + "}\n"
	for name, text := range map[string]string{
		"weft.yaml": text, "settings.json": `{"number_of_shards": 3}`,
		"products.json": `{"dynamic": "strict", "properties": {"region": {"type": "keyword"}, "id": {"type": "long"}, "tenant": {"type": "keyword"}, "name": {"type": "text"}, "variants": {"type": "long"}}}`,
	} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(s.file), name), []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

// hits returns the documents that searches of all shards find, by shard, id and routing.
func (s *shop) hits() (found []string) {
	s.t.Helper()
	for shard := range 3 {
		res, err := http.Get(fmt.Sprintf("%s/%s/_search?size=1000&preference=_shards:%d", testenv.ElasticURL(s.t), s.index, shard))
		if err != nil {
			s.t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil {
			s.t.Fatal(err)
		}
		var answer struct {
			Hits struct {
				Hits []struct {
					ID      string         `json:"_id"`
					Routing string         `json:"_routing"`
					Source  map[string]any `json:"_source"`
				} `json:"hits"`
			} `json:"hits"`
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			s.t.Fatalf("%s: %v", text, err)
		}
		for _, h := range answer.Hits.Hits {
			found = append(found, fmt.Sprint(h.ID, " ", h.Routing, " ", h.Source["name"], " ", h.Source["variants"]))
		}
	}
	return found
}

// rows returns what hits should find.
func (s *shop) rows() map[string]bool {
	s.t.Helper()
	var list []string
	err := s.pool.QueryRow(s.t.Context(), `select coalesce(array_agg(region || ':' || id || ' ' || tenant || ' ' || name || ' ' ||
		(select count(*) from shop.variant x where (x.region, x.product_id) = (p.region, p.id))), '{}') from shop.product p`).Scan(&list)
	if err != nil {
		s.t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, r := range list {
		rows[r] = true
	}
	return rows
}

// converges waits until the index has the rows and nothing else.
func (s *shop) converges(what string) {
	s.t.Helper()
	var last string
	testenv.Eventually(s.t, func() bool {
		want, got := s.rows(), s.hits()
		last = fmt.Sprintf("%d documents, %d rows", len(got), len(want))
		if len(got) != len(want) {
			return false
		}
		for _, h := range got {
			if !want[h] {
				last = h + " is no row"
				return false
			}
		}
		return true
	}, what)
	if s.t.Failed() {
		s.t.Log(last)
	}
}

func (s *shop) epoch() (epoch int) {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), `select epoch from weft_leader where group_name = 'routed'`).Scan(&epoch); err != nil {
		s.t.Fatal(err)
	}
	return epoch
}

// Tenants move there and back beside writes of children, while the sessions of the leader are
// ended again and again: nothing stays on an old shard.
func TestMovesOfTenantsUnderLoad(t *testing.T) {
	t.Parallel()
	s := newRoutedShop(t)
	for _, instance := range []string{"a", "b"} {
		r := start(t, runDaemon, append(s.env, "WEFT_INSTANCE="+instance)...)
		defer func() {
			r.signals <- syscall.SIGTERM
			if code := <-r.code; code != 0 || t.Failed() {
				t.Errorf("weft run ended with %d: %s", code, r.errOut)
			}
		}()
	}
	if r := weft(t, s.env, "load", "products"); r.code != 0 || !strings.HasPrefix(r.out, "products: 40 rows read, 0 events written in ") {
		t.Fatalf("load: %+v", r)
	}
	s.converges("the rows of before")
	done := make(chan error, 2)
	for worker, sql := range []string{
		`update shop.product set tenant = 't' || $1::int, name = 'n' || $2::int where id = $2::int % 40 + 1`,
		`insert into shop.variant select 'eu', $2::int % 40 + 1, 's' where $1::int >= 0`,
	} {
		random := rand.New(rand.NewPCG(7, uint64(worker)))
		go func() {
			var err error
			for range 600 {
				if _, err = s.pool.Exec(t.Context(), sql, random.IntN(7), random.IntN(100000)); err != nil {
					break
				}
			}
			done <- err
		}()
	}
	for epoch := s.epoch(); epoch < 4; epoch = s.epoch() {
		s.exec(`select pg_terminate_backend(lock_backend_pid) from weft_leader where group_name = 'routed'`)
		testenv.Eventually(t, func() bool { return s.epoch() > epoch }, "the next leader")
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	s.converges("the rows after the moves")
	s.exec(`delete from shop.product where id > 10; update shop.product set region = 'us:%' where id > 5`)
	testenv.Eventually(t, func() bool { return len(s.hits()) == 10 }, "routed deletes")
	if r := weft(t, s.env, "failed", "list"); r.code != 0 || r.out != "no dead letters\n" {
		t.Errorf("got %+v, want no dead letter", r)
	}
	testenv.Eventually(t, func() bool { return weft(t, s.env, "status").code == 0 }, "a status without trouble")
}

// A row with an empty routing can have no document. A rebuild goes on with the others and counts it, whether the row
// was there before or is written meanwhile, and verify tells of it as of other rows without a document.
func TestRebuildBesideRowsOfEmptyRouting(t *testing.T) {
	t.Parallel()
	s := newRoutedShop(t)
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	s.exec("insert into shop.product values ('eu', 100, '', 'nowhere')")
	s.settled()
	if r := s.verified(0); r.Rows != 41 || r.Failed != 1 || r.Differs() != 0 {
		t.Errorf("verify: got %+v, want one row that failed", r)
	}
	write := make(chan error, 1)
	go func() {
		var err error
		for i := range 200 {
			if err == nil {
				_, err = s.pool.Exec(t.Context(), "update shop.product set tenant = case when $1 % 2 = 0 then 't1' else '' end where id = 40", i)
			}
		}
		write <- err
	}()
	done := s.rebuilt(0, "products", "--why", "new shards", "--json")
	if err := <-write; err != nil {
		t.Fatal(err)
	}
	if done.Phase != "done" || done.Filled < 41 || done.Unreadable == 0 || done.Redo != 0 {
		t.Errorf("got %+v, want it done, and the row counted", done)
	}
	s.settled()
	if r := s.verified(0); r.Rows != 41 || r.Failed != 2 || r.Documents != 39 {
		t.Errorf("verify after the rebuild: got %+v, want two rows that failed", r)
	}
}

// People name a place as they read it.
func TestPlacesInCommands(t *testing.T) {
	t.Parallel()
	s := newRoutedShop(t)
	if r := weft(t, s.env, "projection", "check"); r.code != 0 || r.out != "products: nothing stands in the way\n" {
		t.Errorf("check before the first event: %+v", r)
	}
	s.exec(`update shop.product set tenant = 'A' where id = 7`)
	if r := weft(t, s.env, "projection", "check"); r.code != 0 || r.out != "products: nothing stands in the way\n" {
		t.Errorf("check: %+v", r)
	}
	if r := weft(t, s.env, "projection", "render", "products", "--id", "A:eu:7"); r.code != exitBad || !strings.Contains(r.out, "document A:eu:7: version") || !strings.Contains(r.out, "it would be new:\n+ id: 7\n+ name: \"product 7\"\n") {
		t.Errorf("render: %+v", r)
	}
	if r := weft(t, s.env, "projection", "render", "products", "--id", "t0:eu:7"); r.code != 0 || !strings.Contains(r.out, "there is no document, and none would be written") {
		t.Errorf("render of the old place: %+v", r)
	}
	if r := weft(t, s.env, "projection", "render", "products", "--id", "7"); r.code == 0 || !strings.Contains(r.errOut, "id 7 has 1 parts, want 3: tenant:region:id") {
		t.Errorf("render of a part: %+v", r)
	}
	var event string
	if err := s.pool.QueryRow(t.Context(), `update product_outbox_events set status = 'failed', error_reason = 'es_4xx', processed_at = now() where entity_id = 'A:eu:7' returning id::text`).Scan(&event); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"event", event}, {"failed", "list", "--entity", "product:A:eu:7"}} {
		if r := weft(t, s.env, args...); r.code != 0 || !strings.Contains(r.out, "product:A:eu:7") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	s.declareRouted("", "pipeline: none")
	if r := weft(t, s.env, "projection", "check"); r.code != exitBad || !strings.Contains(r.out, "error: index.routing: it is missing, and outbox table product_outbox_events was made with --routing tenant") {
		t.Errorf("check without routing: %+v", r)
	}
	s.declareRouted("      key: [region]\n", "routing: tenant")
	if r := weft(t, s.env, "projection", "check"); r.code != exitBad || !strings.Contains(r.out, "error: source.key: it names region, and outbox table product_outbox_events was made for a key of 2 columns: region, id") || !strings.Contains(r.out, s.file+":10)") {
		t.Errorf("check of the key: %+v", r)
	}
}
