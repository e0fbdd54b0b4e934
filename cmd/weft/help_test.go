package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestHelp(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"help.txt": nil, "run.txt": {"run"}, "status.txt": {"status"}, "resign.txt": {"resign"}, "version.txt": {"version"}, "migrate.txt": {"migrate"},
		"migrate-up.txt": {"migrate", "up"}, "migrate-down.txt": {"migrate", "down"}, "migrate-status.txt": {"migrate", "status"},
		"failed.txt": {"failed"}, "failed-summary.txt": {"failed", "summary"}, "failed-list.txt": {"failed", "list"}, "failed-show.txt": {"failed", "show"},
		"replay.txt": {"replay"}, "audit.txt": {"audit"}, "doctor.txt": {"doctor"}, "event.txt": {"event"}, "prune.txt": {"prune"}, "migrate-grant.txt": {"migrate", "grant"},
		"outbox.txt": {"outbox"}, "outbox-create.txt": {"outbox", "create"}, "outbox-drop.txt": {"outbox", "drop"}, "outbox-list.txt": {"outbox", "list"},
		"load.txt": {"load"}, "projection.txt": {"projection"}, "projection-list.txt": {"projection", "list"}, "projection-check.txt": {"projection", "check"}, "projection-render.txt": {"projection", "render"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := weft(t, nil, append(slices.Clone(args), "--help")...)
			if r.code != 0 || r.errOut != "" {
				t.Fatalf("got code %d and %q on standard error", r.code, r.errOut)
			}
			golden(t, name, r.out)
		})
	}
}

// TestCommands holds that every command explains itself.
func TestCommands(t *testing.T) {
	t.Parallel()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Example == "" || c.Short == "" {
			t.Errorf("%s: example or summary is missing", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk((&app{}).root())
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "weft: a command is missing; see `weft --help`\n"},
		{[]string{"rnu"}, "weft: unknown command \"rnu\"; did you mean \"run\"?; see `weft --help`\n"},
		{[]string{"frobnicate"}, "weft: unknown command \"frobnicate\"; see `weft --help`\n"},
		{[]string{"migrate"}, "weft: a command is missing; see `weft migrate --help`\n"},
		{[]string{"migrate", "pu"}, "weft: unknown command \"pu\"; did you mean \"up\"?; see `weft migrate --help`\n"},
		{[]string{"run", "now"}, "weft: unexpected argument \"now\"; see `weft run --help`\n"},
		{[]string{"run", "--bulk-sise=3"}, "weft: unknown flag: --bulk-sise; see `weft run --help`\n"},
		{[]string{"status", "--config"}, "weft: flag needs an argument: --config; see `weft status --help`\n"},
		{[]string{"migrate", "up", "--wait=long"}, "weft: --wait \"long\": want a duration such as 500ms, 30s or 5m; see `weft migrate up --help`\n"},
		{[]string{"migrate", "up", "--wait=-1s"}, "weft: --wait \"-1s\": want at least 0s; see `weft migrate up --help`\n"},
		{[]string{"audit", "--limit=x"}, "weft: --limit \"x\": want a whole number; see `weft audit --help`\n"},
		{[]string{"status", "--json=maybe"}, "weft: --json \"maybe\": want true or false; see `weft status --help`\n"},
		{[]string{"throttle", "p", "--rate=abc"}, "weft: --rate \"abc\": want a number; see `weft throttle --help`\n"},
		{[]string{"help", "rnu"}, "weft: unknown command \"rnu\"; did you mean \"run\"?; see `weft --help`\n"},
		{[]string{"help", "migrate", "pu"}, "weft: unknown command \"pu\"; did you mean \"up\"?; see `weft migrate --help`\n"},
	} {
		r := weft(t, nil, tc.args...)
		if r.code != exitUsage || r.errOut != tc.want || r.out != "" {
			t.Errorf("%v: got code %d, %q and output %q, want %d and %q", tc.args, r.code, r.errOut, r.out, exitUsage, tc.want)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	r := weft(t, nil, "version")
	if r.code != 0 || !strings.HasPrefix(r.out, "weft ") || !strings.Contains(r.out, "commit ") {
		t.Errorf("got %+v", r)
	}
	if flagged := weft(t, nil, "--version"); flagged != r {
		t.Errorf("--version: got %+v, want %+v", flagged, r)
	}
	var b build
	if err := json.Unmarshal([]byte(weft(t, nil, "version", "--json").out), &b); err != nil || b != readBuild() {
		t.Errorf("--json: got %+v (%v), want %+v", b, err, readBuild())
	}
}

func TestConfigurationErrors(t *testing.T) {
	t.Parallel()
	env := []string{"OUTBOX_BULK_SIZE=lots", "WEFT_GRUOP=x"}
	want := "weft: configuration: outbox.bulk_size: value \"lots\": want a whole number from 1 to 10000 (env OUTBOX_BULK_SIZE)\n" +
		"weft: configuration: unknown setting WEFT_GRUOP; did you mean \"WEFT_GROUP\"? (env WEFT_GRUOP)\n" +
		"weft: configuration: database.url: is required: set DATABASE_URL, or database.url in the configuration file\n"
	for _, args := range [][]string{{"run"}, {"run", "--check-config"}, {"status"}, {"resign", "--why=x"}, {"failed", "list"}, {"audit"}, {"event", "7"}, {"prune", "--older-than=30d"}, {"doctor"}, {"replay", "--all", "--dry-run"}, {"migrate", "up"}, {"migrate", "down"}, {"migrate", "status"}, {"migrate", "grant", "x"},
		{"outbox", "create", "--table", "x"}, {"outbox", "drop", "--name", "x"}, {"outbox", "list"}} {
		if r := weft(t, env, args...); r.code != exitConfig || r.errOut != want || r.out != "" {
			t.Errorf("%v: got code %d, output %q and\n%s\nwant %d and\n%s", args, r.code, r.out, r.errOut, exitConfig, want)
		}
	}
}

func TestCheckConfig(t *testing.T) {
	t.Parallel()
	r := weft(t, []string{"DATABASE_URL=postgresql+psycopg://u:hunter2@db/wordloom", "ELASTIC_URL=https://es:9200",
		"ELASTIC_API_KEY=hunter2", "WEFT_INSTANCE=a", "WORDLOOM_ENV=development", "OUTBOX_LEASE_SECONDS=4", "OUTBOX_LEASE_SECOND=4"},
		"run", "--check-config", "--bulk-size=10")
	if r.code != 0 {
		t.Fatalf("got code %d: %s", r.code, r.errOut)
	}
	if want := "weft: warning: environment name OUTBOX_LEASE_SECOND is not known and has no effect; did you mean OUTBOX_LEASE_SECONDS?\n"; r.errOut != want {
		t.Errorf("standard error: got %q, want %q", r.errOut, want)
	}
	golden(t, "check-config.txt", r.out)
}

func TestCheckConfigReadsURL(t *testing.T) {
	t.Parallel()
	r := weft(t, []string{"DATABASE_URL=postgres://u:hunter2@db/wordloom?sslmode=maybe"}, "run", "--check-config")
	want := "weft: configuration: database.url: value \"postgres://u:*****@db/wordloom?sslmode=maybe\": sslmode must be one of disable, allow, prefer, require, verify-ca, verify-full (env DATABASE_URL)\n"
	if r.code != exitConfig || r.errOut != want {
		t.Errorf("got code %d and %q, want %d and %q", r.code, r.errOut, exitConfig, want)
	}
}
