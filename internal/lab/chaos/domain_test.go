package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/examples/shop"
	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/migrations"
)

func TestShortRunOfTheShopIsClean(t *testing.T) {
	t.Parallel()
	out, result, err := short(t, nil, Options{Domain: Shop, Faults: 3, Only: []string{faults.SIGKILL, faults.Throttle429}, Seed: 16})
	if err != nil || !strings.Contains(out, "PASS (seed 16)") {
		t.Errorf("verdict: got %v, want none", err)
	}
	if result.Domain != Shop || result.Produced == 0 || result.Bulk == 0 || result.Terms < 2 {
		t.Errorf("result: got %+v, want events, items and terms of the shop", result)
	}
}

// A build whose triggers forget the parent that a child has left cannot pass.
func TestShortRunOfTheShopRejectsLostMoves(t *testing.T) {
	t.Parallel()
	variant, err := rig.Replaced(t.Context(), "migrations/sql/outbox_watch.sql", "(values {old_ids}, {new_ids})", "(values {new_ids})")
	if err != nil {
		t.Fatal(err)
	}
	out, result, err := short(t, variant, Options{Domain: Shop, Faults: 1, Only: []string{faults.SIGKILL}, Seed: 17})
	if err == nil || result.Stale == 0 || !strings.Contains(out, "variants is") {
		t.Errorf("verdict: got %v with %+v, want stale documents", err, result)
	}
}

// shelf is the shop with its documents, which no weft has written.
type shelf struct {
	t *testing.T
	*domain
	*rig.Place
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	url := testenv.Database(t)
	s := &shelf{
		t: t, domain: &domain{documents: traffic.ShopDocuments, typ: traffic.ShopProduct, shards: map[string]int{}},
		Place: &rig.Place{Pool: testenv.Pool(t, url), Index: testenv.Index(t)},
	}
	var err error
	if s.Elastic, err = reconcile.NewClient(testenv.ElasticURL(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Elastic.Close)
	schema, err := shop.Files.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	s.exec(string(schema))
	s.exec(traffic.MakeShop)
	spec := migrations.OutboxSpec{Table: "shop.product", Routing: "tenant_id", Children: []migrations.Child{{Table: "shop.variant", Columns: []string{"product_id"}}}}
	if _, err := migrations.CreateOutbox(t.Context(), url, spec, true); err != nil {
		t.Fatal(err)
	}
	made, stop := context.WithCancel(t.Context())
	stop() // nothing after the products
	if err := (&traffic.Shop{Pool: s.Pool, Writers: 1, Rate: 1, Seed: 1, Products: 12, Hot: 1}).Run(made); err != nil {
		t.Fatal(err)
	}
	s.must(http.MethodPut, "/"+s.Index, json.RawMessage(`{"settings": {"number_of_shards": 3}, "mappings": {"dynamic": false}}`))
	rows, err := s.Pool.Query(t.Context(), traffic.ShopDocuments)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var place string
		var version int64
		var fields []byte
		if err := rows.Scan(&place, &version, &fields); err != nil {
			t.Fatal(err)
		}
		s.put(place, version, string(fields))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shelf) exec(sql string) {
	s.t.Helper()
	if _, err := s.Pool.Exec(s.t.Context(), sql); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shelf) must(method, path string, body any) {
	s.t.Helper()
	if err := s.Elastic.Do(s.t.Context(), method, path, body, nil); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shelf) put(place string, version int64, fields string) {
	s.t.Helper()
	routing, id, _ := strings.Cut(place, ":")
	s.must(http.MethodPut, fmt.Sprintf("/%s/_doc/%s?routing=%s&version=%d&version_type=external_gte", s.Index, id, routing, version), json.RawMessage(fields))
}

// place returns where a product is.
func (s *shelf) place(product int) (place string) {
	s.t.Helper()
	if err := s.Pool.QueryRow(s.t.Context(), "select tenant_id || ':' || id from shop.product where id = $1", product).Scan(&place); err != nil {
		s.t.Fatal(err)
	}
	return place
}

// TestShopIsComparedAsAWhole damages one side, and holds that the comparison names the product.
func TestShopIsComparedAsAWhole(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	diverged := func() (found []string) {
		t.Helper()
		end, err := s.end(t.Context(), s.Place)
		if err != nil {
			t.Fatal(err)
		}
		all, _ := history.Diverged(&history.Log{}, end)
		for _, f := range all {
			found = append(found, f.What)
		}
		return found
	}
	if got := diverged(); len(got) > 0 {
		t.Fatalf("before: got %q, want both sides equal", got)
	}
	at := map[int]string{}
	for n := 1; n <= 6; n++ {
		at[n] = s.place(n)
	}
	const unseen = "alter table shop.variant disable trigger user; %s; alter table shop.variant enable trigger user"
	s.exec(fmt.Sprintf(unseen, "update shop.variant set stock = stock + 1 where product_id = 1"))
	s.exec(fmt.Sprintf(unseen, "delete from shop.variant where product_id = 2"))
	s.exec("update shop.product set name = 'a new name' where id = 3") // and nobody carries it
	s.exec("update shop.product set tenant_id = 1 + tenant_id % 5 where id = 4")
	s.exec("update shop.product set deleted_at = now() where id = 5")
	s.exec("delete from shop.product where id = 6")
	s.put("1:999", 1, `{"name": "nobody's"}`)
	got := strings.Join(diverged(), "\n")
	for _, want := range []string{
		"stale product:" + at[1] + ": stock is ", "stale product:" + at[2] + ": stock is ", "; variants is ", "stale product:" + at[3] + ": _version is ",
		"extra product:" + at[4], "missing product:" + s.place(4), "extra product:" + at[5], "extra product:" + at[6], "extra product:1:999",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q among them", got, want)
		}
	}
	if n := strings.Count(got, "\n") + 1; n != 8 {
		t.Errorf("got %d findings, want 8:\n%s", n, got)
	}
}
