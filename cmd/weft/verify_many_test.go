package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/verify"
)

// damage collects bulk actions that write past weft.
type damage struct {
	versions map[string]int64
	body     strings.Builder
}

// document names the entity of a number, and its routing.
func (*damage) document(i int) (id, routing string) {
	return fmt.Sprint("eu:", i), fmt.Sprint("t", i%7)
}

func (d *damage) add(op, id, routing string, version int64, document string) {
	fmt.Fprintf(&d.body, `{%q: {"_id": %q, "routing": %q, "version": %d, "version_type": "external_gte"}}`+"\n", op, id, routing, version)
	if document != "" {
		d.body.WriteString(document + "\n")
	}
}

// send writes what was collected, all of which must be taken.
func (d *damage) send(s *shop) {
	s.t.Helper()
	res, err := http.Post(testenv.ElasticURL(s.t)+"/"+s.index+"/_bulk?refresh=true&filter_path=errors", "application/x-ndjson", strings.NewReader(d.body.String()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		Errors bool `json:"errors"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.Errors {
		s.t.Fatalf("damage: %s, errors %v, %v", res.Status, answer.Errors, err)
	}
}

// rename changes products that are not damaged until the function that it returns is called. One whose events are not
// settled yet has to wait, as in write.
func (s *shop) rename() (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var g sync.WaitGroup
	g.Go(func() {
		for i := range testenv.Every(ctx, 5*time.Millisecond) {
			_, err := s.pool.Exec(ctx, `update shop.product p set name = 'changed ' || $1::int where id = 1 + $1::int % 40
				and not exists (select from product_outbox_events where entity_id = p.tenant || ':' || p.region || ':' || p.id and status = 'pending')`, i)
			if err != nil && ctx.Err() == nil {
				s.t.Errorf("write: %v", err)
				return
			}
		}
	})
	return func() { cancel(); g.Wait() }
}

// All six kinds of damage at once are found among many documents, exactly, while the pair works;
// the repair fixes these, and a second look finds nothing.
func TestVerifyManyDamagedDocuments(t *testing.T) {
	t.Parallel()
	n, rows := testenv.Volume(50, 1700), testenv.Volume(2500, 1_000_000)
	s := newRoutedShop(t)
	s.exec(fmt.Sprintf("insert into shop.product select 'eu', i, 't' || i %% 7, 'product ' || i from generate_series(41, %d) i", rows))
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	s.settled()
	stop := s.rename()
	defer stop()

	d := &damage{versions: map[string]int64{}}
	found, err := s.pool.Query(t.Context(), "select entity_id, version from product_outbox_versions where split_part(entity_id, ':', 2)::int between 101 and $1", 100+3*n)
	if err != nil {
		t.Fatal(err)
	}
	for found.Next() {
		var id string
		var version int64
		if err := found.Scan(&id, &version); err != nil {
			t.Fatal(err)
		}
		d.versions[id] = version
	}
	if len(d.versions) != 3*n {
		t.Fatalf("%d versions, want %d: %v", len(d.versions), 3*n, found.Err())
	}
	other := ""
	for i := range 50 {
		if other = fmt.Sprint("other", i); s.shard(other) != s.shard("t0") {
			break
		}
	}
	const far = 8_000_000_000_000_000_000
	for j := range n {
		id, routing := d.document(101 + j)
		d.add("delete", id, routing, d.versions[id], "") // missing
		d.add("index", fmt.Sprint("eu:", 9_000_000+j), "t1", 5, `{"name": "ghost"}`)
		id, routing = d.document(101 + n + j)
		d.add("index", id, routing, far, `{"name": "ahead"}`)
		id, routing = d.document(101 + 2*n + j)
		d.add("index", id, routing, d.versions[id], `{"name": "corrupt"}`)
	}
	for j := range n { // each seventh entity has the routing t0
		id, _ := d.document((101+3*n)/7*7 + 7 + 7*j)
		d.add("index", id, other, far, `{"name": "left behind"}`)
	}
	d.send(s)
	s.exec(fmt.Sprintf("update product_outbox_versions set version = version + 1 where split_part(entity_id, ':', 2)::int between %d and %d", rows-n+1, rows)) // stale

	got := s.verified(1)
	got.Examples, got.Documents = nil, 0
	want := verify.Report{Projection: "products", Rows: int64(rows), Equal: int64(rows - 4*n), Missing: int64(n), Extra: int64(n), Stale: int64(n), Ahead: int64(n), Corrupt: int64(n), Misplaced: int64(n)}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("report: got %+v\nwant %+v", got, want)
	}
	if got := s.verified(0, "--repair", "--by", "alice", "--why", "a test"); got.Repaired != int64(6*n) {
		t.Errorf("repair: got %+v, want %d repaired", got, 6*n)
	}
	if got := s.verified(0); got.Differs() != 0 || got.Documents != int64(rows) {
		t.Errorf("after the repair: got %+v", got)
	}
}

// A comparison that leaves entities out says so: its exit code is that of equal sides.
func TestVerifySaysWhatItDidNotJudge(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	reports := []verify.Report{{Projection: "products", Rows: 10, Documents: 9, Equal: 9, Failed: 1}, {Projection: "other", Rows: 2, Documents: 2, Equal: 2}}
	if err := writeReports(&out, reports); err != nil || verdictOf(reports, false) != nil {
		t.Fatal(err)
	}
	if want := "products: not judged: 1 entity that differs and has an event in failed"; strings.Count(out.String(), "not judged") != 1 || !strings.Contains(out.String(), want) {
		t.Errorf("got %s, want %q", &out, want)
	}
}

// A query of which no page ends before the deadline of a statement is loaded and compared in smaller ones.
func TestRowsOfASlowQueryAreLoadedAndCompared(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec("insert into shop.product select i, 'product ' || i from generate_series(101, 400) i")
	s.exec("create function shop.slow(ids bigint[]) returns boolean language plpgsql as 'begin perform pg_sleep(60) where cardinality(ids) > 200; return true; end'")
	s.declare(strings.Replace(shopQuery, "where p.id = any($1)", "where p.id = any($1) and shop.slow($1)", 1), shopMapping)
	s.env = append(s.env, "WEFT_DB_TIMEOUT=5s")
	s.running()
	if r := weft(t, s.env, "load", "products"); r.code != 0 {
		t.Fatalf("load: %+v", r)
	}
	if r := s.verified(0); r.Rows != 350 || r.Equal != 350 {
		t.Errorf("got %+v, want all 350 rows equal to their documents", r)
	}
}
