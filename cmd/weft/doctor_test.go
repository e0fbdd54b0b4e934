package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/internal/lab/legacy"
	"github.com/samuelhu324-dev/weft/migrations"
)

func TestDoctor(t *testing.T) {
	t.Parallel()
	url := labtest.Schema(t)
	pool := labtest.Pool(t, url)
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
	for _, f := range found {
		if strings.HasPrefix(f.Index, "weft_") {
			t.Errorf("%s is weft's own", f.Index)
		}
		if f.Table == "search_outbox_events" {
			onSearch++
		}
	}
	var want int
	err := pool.QueryRow(t.Context(), `select count(*) from pg_indexes where schemaname = current_schema() and tablename = 'search_outbox_events'
		and indexname not like 'weft%' and indexname not like '%pkey'`).Scan(&want)
	if err != nil || onSearch != want || want < 11 {
		t.Errorf("%d indexes on search_outbox_events, want the %d of the application (%v):\n%s", onSearch, want, err, got.out)
	}

	// Its own advice leaves nothing to say.
	text := weft(t, env, "doctor").out
	for _, line := range strings.Split(text, "\n") {
		if drop, ok := strings.CutPrefix(line, "  drop index"); ok {
			if _, err := pool.Exec(t.Context(), "drop index"+drop); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
	}
	if got := weft(t, env, "doctor"); got.out != "nothing: the outbox tables have no index but the primary key and weft's own\n" {
		t.Errorf("after the advice: %q\nadvice: %s", got.out, text)
	}
}
