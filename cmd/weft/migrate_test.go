package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	url := testenv.Schema(t)
	env := []string{"DATABASE_URL=" + strings.Replace(url, "postgres://", "postgresql+psycopg://", 1)}

	before := weft(t, env, "migrate", "status", "--json")
	if want := fmt.Sprintf("weft: %d pending: run `weft migrate up`\n", migrations.Latest); before.code != exitBad || before.errOut != want {
		t.Fatalf("status before: got code %d and %q, want %d and %q", before.code, before.errOut, exitBad, want)
	}
	var list []migrationState
	if err := json.Unmarshal([]byte(before.out), &list); err != nil || int64(len(list)) != migrations.Latest || list[0].State != "pending" || list[0].AppliedAt != nil {
		t.Errorf("JSON before: got %+v, %v", list, err)
	}

	up := weft(t, env, "migrate", "up")
	if up.code != 0 || strings.Count(up.out, "applied ") != int(migrations.Latest) {
		t.Fatalf("up: got %+v", up)
	}
	if again := weft(t, env, "migrate", "up"); again.code != 0 || again.out != "nothing to do: the schema is up to date\n" {
		t.Errorf("up again: got %+v", again)
	}
	after := weft(t, env, "migrate", "status")
	if after.code != 0 || strings.Contains(after.out, "pending") || !strings.Contains(after.out, "applied") {
		t.Errorf("status after: got %+v", after)
	}

	pool := testenv.Pool(t, url)
	if _, err := pool.Exec(t.Context(), `insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('g', 1, 'a', now(), now())`); err != nil {
		t.Fatal(err)
	}
	if down := weft(t, env, "migrate", "down"); down.code != exitRefused || down.errOut != "weft: instance \"a\" leads group \"g\": stop every `weft run` on this database first, or use --force\n" {
		t.Errorf("down beside a leader: got %+v, want code %d", down, exitRefused)
	}
	if _, err := pool.Exec(t.Context(), `delete from weft_leader`); err != nil {
		t.Fatal(err)
	}
	if down := weft(t, env, "migrate", "down", "--all"); down.code != 0 || strings.Count(down.out, "taken back ") != int(migrations.Latest) {
		t.Errorf("down: got %+v", down)
	}
	if again := weft(t, env, "migrate", "down"); again.code != 0 || again.out != "nothing to do: no migration is applied\n" {
		t.Errorf("down again: got %+v", again)
	}
}

// A build works on the schema of its successor, so there is nothing to do, and it says whose schema that is.
func TestMigrateUpOnNewerSchema(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	if _, err := testenv.Pool(t, url).Exec(t.Context(), "insert into weft_schema_version (version_id, is_applied) values (99, true)"); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("nothing to do: the schema is at version 99, newer than version %d of this build: use the build that has migrated it\n", migrations.Latest)
	if r := weft(t, []string{"DATABASE_URL=" + url}, "migrate", "up"); r.code != 0 || r.out != want || r.errOut != "" {
		t.Errorf("got %+v, want code 0 and %q", r, want)
	}
}

func TestMigrateRefusals(t *testing.T) {
	t.Parallel()
	url := testenv.Schema(t)
	for _, tc := range []struct {
		name, url, env string
		code           int
		want           string
	}{
		{"Away", "postgres://u:hunter2@127.0.0.1:1/d", "", exitUnavailable, "weft: nothing listens at 127.0.0.1:1/d: start Postgres, or correct host and port in DATABASE_URL\n"},
		{"Environment", url, "WORDLOOM_ENV=dev", exitRefused, "weft: WORDLOOM_ENV is dev, but database "},
		{"ReadOnly", url + "&default_transaction_read_only=on", "", exitTryAgain, "weft: Postgres" + at(t, url) + " takes no writes, although it is no standby: default_transaction_read_only is on; "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, verb := range []string{"up", "down"} {
				r := weft(t, []string{"DATABASE_URL=" + tc.url, tc.env}, "migrate", verb)
				if r.code != tc.code || !strings.HasPrefix(r.errOut, tc.want) || strings.Count(r.errOut, "\n") != 1 {
					t.Errorf("%s: got code %d and %q, want %d and %q", verb, r.code, r.errOut, tc.code, tc.want)
				}
			}
		})
	}
}

// TestMigrateRefusesRoleAndTables: none of these is a fault of weft, and a script can tell them from one by the code.
func TestMigrateRefusesRoleAndTables(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code int
		want string
		made func(t *testing.T) string
	}{
		"NoSchema": {exitConfig, "weft: search_path names no schema that exists", func(t *testing.T) string {
			return testenv.Schema(t) + "&search_path=nowhere"
		}},
		"NoRight": {exitRefused, "may not alter table public.", func(t *testing.T) string {
			url := testenv.Database(t)
			return testenv.As(t, url, testenv.Runner(t, url))
		}},
		"OtherTable": {exitRefused, "it is not the table weft expects; nothing was changed", func(t *testing.T) string {
			url := testenv.Schema(t)
			if _, err := testenv.Pool(t, url).Exec(t.Context(), "create table search_outbox_events (note text)"); err != nil {
				t.Fatal(err)
			}
			return url
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := weft(t, []string{"DATABASE_URL=" + tc.made(t)}, "migrate", "up")
			if r.code != tc.code || !strings.Contains(r.errOut, tc.want) || strings.Count(r.errOut, "\n") != 1 {
				t.Errorf("got code %d and %q, want %d and %q", r.code, r.errOut, tc.code, tc.want)
			}
		})
	}
}
