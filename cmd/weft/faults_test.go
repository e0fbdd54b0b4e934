package main

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// A role that may not use the schema sees no tables there: they are not missing.
func TestCommandsWithoutTheSchema(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	runner, pool := testenv.Runner(t, url), testenv.Pool(t, url)
	role := pgx.Identifier{runner.Username()}.Sanitize()
	for _, s := range []string{"revoke usage on schema public from public", "revoke usage on schema public from " + role} {
		if _, err := pool.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"DATABASE_URL=" + testenv.As(t, url, runner), "ELASTIC_URL=http://127.0.0.1:1"}
	for _, command := range []string{"status", "failed summary", "failed discard --all --by a --why b", "replay --all --by a --why b", "verify",
		"release block:7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11 --by a --why b", "rebuild status search_index_to_elastic", "prune --older-than 1d", "doctor"} {
		r := weft(t, env, strings.Fields(command)...)
		if want := "lacks usage on schema public: grant usage on schema public to " + role + "; or run `weft migrate grant "; r.code != exitRefused || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: got %+v, want code %d and %q", command, r, exitRefused, want)
		}
	}
}

// A statement that takes too long, as behind a lock, is no fault of weft, and says what to look at.
func TestCommandsOnLockedTables(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.Lock(t, url, "search_outbox_events, weft_leader, weft_rebuild, weft_quarantine, weft_verify")
	env := []string{"DATABASE_URL=" + url, "ELASTIC_URL=http://127.0.0.1:1", "WEFT_DB_TIMEOUT=300ms"}
	for _, command := range []string{"status", "failed summary", "failed list", "failed discard --all --by a --why b", "replay --all --by a --why b", "verify",
		"release block:7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11 --by a --why b", "rebuild status search_index_to_elastic", "prune --older-than 1d", "doctor"} {
		r := weft(t, env, strings.Fields(command)...)
		if r.code != exitUnavailable || !strings.Contains(r.errOut, " in time: ") || !strings.HasSuffix(r.errOut, "; "+postgres.SayBusy+"\n") {
			t.Errorf("%s: got %+v, want code %d and %q", command, r, exitUnavailable, postgres.SayBusy)
		}
		if strings.Contains(r.out+r.errOut, "no dead letters") {
			t.Errorf("%s: got %+v, want nothing said of dead letters that were not counted", command, r)
		}
	}
}
