package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/legacy"
	"github.com/samuelhu324-dev/weft/migrations"
)

func TestDoctor(t *testing.T) {
	t.Parallel()
	url := testenv.Schema(t)
	pool := testenv.Pool(t, url)
	env := []string{"DATABASE_URL=" + url}

	if got := weft(t, env, "doctor"); got.code != exitTryAgain || !strings.Contains(got.errOut, "run `weft migrate up`") {
		t.Errorf("without tables: got %+v, want code %d", got, exitTryAgain)
	}
	if err := legacy.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	got := weft(t, env, "doctor", "--json")
	var found []doctorIndex
	if err := json.Unmarshal([]byte(got.out), &found); err != nil || got.code != 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
	onSearch := 0
	var older []string
	for _, f := range found {
		switch {
		case f.ForOlderBuilds:
			older = append(older, f.Index)
		case strings.HasPrefix(f.Index, "weft_"):
			t.Errorf("%s is weft's own", f.Index)
		case f.Table == "search_outbox_events":
			onSearch++
		}
	}
	slices.Sort(older)
	if want := []string{"weft_chronicle_outbox_due", "weft_chronicle_outbox_ready", "weft_search_outbox_due", "weft_search_outbox_ready"}; !slices.Equal(older, want) {
		t.Errorf("for builds before leases: got %v, want %v", older, want)
	}
	var want int
	err := pool.QueryRow(t.Context(), `select count(*) from pg_indexes where schemaname = current_schema() and tablename = 'search_outbox_events'
		and indexname not like 'weft%' and indexname not like '%pkey'`).Scan(&want)
	if err != nil || onSearch != want || want < 11 {
		t.Errorf("%d indexes on search_outbox_events, want the %d of the application (%v):\n%s", onSearch, want, err, got.out)
	}

	// Its own advice leaves nothing to say.
	text := weft(t, env, "doctor").out
	if !strings.Contains(text, "only for builds before leases; drop them once no such build runs") {
		t.Errorf("the older indexes have no advice of their own:\n%s", text)
	}
	for _, line := range strings.Split(text, "\n") {
		if drop, ok := strings.CutPrefix(line, "  drop index"); ok {
			if _, err := pool.Exec(t.Context(), "drop index"+drop); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
	}
	if got := weft(t, env, "doctor"); got.out != "no index to drop: the outbox tables have their primary key and the indexes that weft reads\n" {
		t.Errorf("after the advice: %q\nadvice: %s", got.out, text)
	}
}

// A build before leases reads its indexes on a schema of its own: they are not named there.
func TestDoctorBeforeLeases(t *testing.T) {
	t.Parallel()
	url := testenv.Schema(t)
	if _, err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	for range 2 { // to version 4
		if _, err := migrations.Down(t.Context(), url); err != nil {
			t.Fatal(err)
		}
	}
	if got := weft(t, []string{"DATABASE_URL=" + url}, "doctor"); got.code != 0 || !strings.HasPrefix(got.out, "no index to drop:") {
		t.Errorf("got %+v, want no index to drop", got)
	}
}
