package main

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/legacy"
	"github.com/samuelhu324-dev/weft/migrations"
)

// examined runs `weft doctor` for the chronicle alone, which needs no Elasticsearch.
func examined(t *testing.T, url string) (found []doctorFinding, code int) {
	t.Helper()
	got := weft(t, []string{"DATABASE_URL=" + url, "WEFT_PROJECTIONS=chronicle_events_to_entries"}, "doctor", "--json")
	if err := json.Unmarshal([]byte(got.out), &found); err != nil {
		t.Fatalf("got %+v, %v", got, err)
	}
	return found, got.code
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	url := testenv.Schema(t)
	pool := testenv.Pool(t, url)
	env := []string{"DATABASE_URL=" + url, "WEFT_PROJECTIONS=chronicle_events_to_entries"}

	if got := weft(t, env, "doctor"); got.code != exitTryAgain || !strings.Contains(got.errOut, "run `weft migrate up`") {
		t.Errorf("without tables: got %+v, want code %d", got, exitTryAgain)
	}
	if err := legacy.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	steps := []func(context.Context, string, ...migrations.Option) ([]migrations.Step, error){
		migrations.Up, migrations.Down, migrations.Down, migrations.Down, migrations.Up, // a build before leases may have worked at version 4
	}
	for _, step := range steps {
		if _, err := step(t.Context(), url); err != nil {
			t.Fatal(err)
		}
	}
	found, code := examined(t, url)
	if code != 0 {
		t.Errorf("code %d, want 0: notes are no fault", code)
	}
	onSearch := 0
	var older, drops []string
	for _, f := range found {
		switch {
		case f.Severity != "note" || !strings.HasPrefix(f.Check, "index."):
			t.Errorf("got %+v, want notes about indexes", f)
		case f.ForOlderBuilds:
			older = append(older, f.Index)
		case strings.HasPrefix(f.Index, "weft_"):
			t.Errorf("%s is weft's own", f.Index)
		case f.Table == "search_outbox_events":
			onSearch++
		}
		drops = append(drops, f.Remedy)
	}
	slices.Sort(older)
	if want := []string{"weft_chronicle_outbox_due", "weft_chronicle_outbox_ready", "weft_search_outbox_due", "weft_search_outbox_ready"}; !slices.Equal(older, want) {
		t.Errorf("for builds before leases: got %v, want %v", older, want)
	}
	var want int
	err := pool.QueryRow(t.Context(), `select count(*) from pg_indexes where schemaname = current_schema() and tablename = 'search_outbox_events'
		and indexname not like 'weft%' and indexname not like '%pkey'`).Scan(&want)
	if err != nil || onSearch != want || want < 11 {
		t.Errorf("%d indexes on search_outbox_events, want the %d of the application (%v):\n%+v", onSearch, want, err, found)
	}

	// Its own advice leaves nothing to say.
	for _, drop := range drops {
		if _, err := pool.Exec(t.Context(), drop); err != nil {
			t.Fatalf("%s: %v", drop, err)
		}
	}
	if got := weft(t, env, "doctor"); got.code != 0 || got.out != "errors: 0, warnings: 0, notes: 0\n" {
		t.Errorf("after the advice: %+v", got)
	}
}

// An error is named in words, with its remedy, and makes the exit code.
func TestDoctorExitsBad(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	if _, err := testenv.Pool(t, url).Exec(t.Context(), "drop index weft_chronicle_outbox_failed"); err != nil {
		t.Fatal(err)
	}
	got := weft(t, []string{"DATABASE_URL=" + url, "WEFT_PROJECTIONS=chronicle_events_to_entries"}, "doctor")
	for _, want := range []string{"error    index.missing  chronicle_outbox_events.weft_chronicle_outbox_failed\n", "fix: create index concurrently \"weft_chronicle_outbox_failed\"", "errors: 1, warnings: 0"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("got %s, want %q", got.out, want)
		}
	}
	if got.code != exitBad {
		t.Errorf("code %d, want %d", got.code, exitBad)
	}
}

// A name of an outbox table that is misspelt is named as that, with what to do.
func TestDoctorNamesAMissingOutbox(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.redeclare("product_outbox_events", "prodct_outbox_events")
	got := weft(t, s.env, "doctor")
	const want = "error    schema.outbox  prodct_outbox_events\n         the table of products does not exist\n         fix: run `weft migrate up`, or `weft outbox create` for a table of your own"
	if !strings.Contains(got.out, want) || strings.Contains(got.out, "could not be examined") || got.code != exitBad {
		t.Errorf("got %+v, want %q", got, want)
	}
}

// What stands in the way of a declared projection is an error, what may surprise a note.
func TestDoctorChecksDeclaredProjections(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec("drop trigger product_outbox_insert on shop.product; create table shop.tenant (id bigint primary key, name text)")
	s.declare(strings.Replace(shopQuery, "p.name", "(select t.name from shop.tenant t where t.id = p.id) as name", 1), shopMapping)
	got := weft(t, s.env, "doctor")
	for _, want := range []string{
		"error    projection  projections.products.outbox.table\n         shop.product has no trigger for insert: such changes write no event\n         fix: drop the outbox with `weft outbox drop`, make it again, then `weft load` and `weft verify --repair`",
		"note     projection  projections.products.source.query\n         changes of shop.tenant write no event",
	} {
		if !strings.Contains(got.out, want) || got.code != exitBad {
			t.Errorf("got %+v, want %q", got, want)
		}
	}
}

func TestDoctorNamesARenamedSchema(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	if _, err := testenv.Pool(t, url).Exec(t.Context(), "alter schema public rename to renamed"); err != nil {
		t.Fatal(err)
	}
	renamed, err := postgres.InSchema(url, "renamed")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"DATABASE_URL=" + renamed, "WEFT_PROJECTIONS=chronicle_events_to_entries"}
	const want = "schema renamed has been renamed, and the functions and triggers in it lead to public, so that writes to tables with an outbox fail: alter schema renamed rename to public"
	if got := weft(t, env, "doctor"); got.code != exitBad || !strings.Contains(got.out, "error    schema.version  ") || !strings.Contains(got.out, want) {
		t.Errorf("doctor: got %+v, want %q", got, want)
	}
	if got := weft(t, env, "verify"); got.code != exitRefused || !strings.Contains(got.errOut, want) {
		t.Errorf("verify: got %+v, want %q", got, want)
	}
}

// An index that was made anew has what has changed since, and nothing else; the command that the doctor names fills it.
func TestDoctorFindsAnIndexThatWasMadeAnew(t *testing.T) {
	t.Parallel()
	s := filled(t, 60)
	const finding = "warning  elastic.documents  products\n         searches miss documents: 19 of the first 20 rows have none\n"
	if got := weft(t, s.env, "doctor"); strings.Contains(got.out, "elastic.documents") {
		t.Errorf("got %s of an index with all documents", got.out)
	}
	callElastic(t, http.MethodDelete, "/"+s.index+"-v1", "")
	if got := weft(t, s.env, "doctor"); !strings.Contains(got.out, "warning  elastic.alias") || !strings.Contains(got.out, "warnings: 1,") {
		t.Errorf("got %s of an index that is gone, want a warning about the alias alone", got.out)
	}
	callElastic(t, http.MethodPut, "/"+s.index+"-v2", `{"mappings":`+shopMapping+`,"aliases":{"`+s.index+`":{"is_write_index":true}}}`)
	s.exec("update shop.product set name = 'lamp' where id in (7, 60)")
	s.settled()
	got := weft(t, s.env, "doctor")
	if !strings.Contains(got.out, finding) || !strings.Contains(got.out, "to fill it: `weft rebuild products --by YOU") || got.code != exitBad {
		t.Errorf("got %+v, want %q and the rebuild", got, finding)
	}
	s.rebuilt(0, "products", "--by", "test", "--why", "made anew", "--json")
	if got := weft(t, s.env, "doctor"); strings.Contains(got.out, "elastic.documents") {
		t.Errorf("got %s after the rebuild", got.out)
	}
}

// A sequence of versions that was not carried over to another server gives out versions below those of the documents, which
// refuse them. What the doctor names makes good what was refused, and keeps it from going on.
func TestDoctorFindsASequenceThatWasSetBack(t *testing.T) {
	t.Parallel()
	s := filled(t, 60)
	const check = "error    schema.versions  product_outbox_version\n"
	if got := weft(t, s.env, "doctor"); strings.Contains(got.out, check) {
		t.Errorf("got %s of a sequence as it should be", got.out)
	}
	s.exec("select setval('product_outbox_version', 1000)")
	s.exec("update shop.product set name = 'lamp' where id < 10")
	s.settled()
	got := weft(t, s.env, "doctor")
	_, remedy, _ := strings.Cut(got.out, "select setval(")
	remedy, repair, _ := strings.Cut("select setval("+remedy, "; then, for changes since: `weft ")
	if got.code != exitBad || !strings.Contains(got.out, check) || !strings.HasPrefix(repair, "verify products --repair") {
		t.Fatalf("got %+v, want %q and what to do", got, check)
	}
	s.exec(remedy)
	if got := weft(t, s.env, "doctor"); strings.Contains(got.out, check) {
		t.Errorf("got %s after %s", got.out, remedy)
	}
	s.verified(exitOK, "--repair", "--by", "a", "--why", "b")
	if s.document("9")["name"] != "lamp" {
		t.Errorf("document after the repair: %v", s.document("9"))
	}
	s.exec("update shop.product set name = 'desk' where id < 60")
	s.settled()
	s.verified(exitOK)
}

// A build before leases reads its indexes on a schema of its own: they are not named there.
func TestDoctorBeforeLeases(t *testing.T) {
	t.Parallel()
	url := testenv.Schema(t)
	if _, err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	for range 3 { // to version 4
		if _, err := migrations.Down(t.Context(), url); err != nil {
			t.Fatal(err)
		}
	}
	found, _ := examined(t, url)
	if slices.ContainsFunc(found, func(f doctorFinding) bool { return f.Index != "" }) {
		t.Errorf("got %+v, want no index to drop", found)
	}
}
