package main

import (
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// sharded returns a schema whose tables are dealt out to n shards, and the environment of a command.
func sharded(t *testing.T, n string) (env []string) {
	t.Helper()
	dsn := testenv.Database(t)
	if _, err := testenv.Pool(t, dsn).Exec(t.Context(), "create schema shop"); err != nil {
		t.Fatal(err)
	}
	url, err := postgres.InSchema(dsn, "shop")
	if err != nil {
		t.Fatal(err)
	}
	env = []string{"DATABASE_URL=" + url, "ELASTIC_URL=http://127.0.0.1:1"}
	if r := weft(t, env, "shards", "create", n, "--by", "alice"); r.code != 0 || r.out != "created "+n+" shards, shard_0 to shard_2; set WEFT_SHARDS="+n+"\n" {
		t.Fatalf("create: got %+v", r)
	}
	return env
}

func TestShards(t *testing.T) {
	t.Parallel()
	env := sharded(t, "3")
	if r := weft(t, env, "shards", "create", "3"); r.code != 0 || r.out != "nothing to do: the 3 shards are there\n" {
		t.Errorf("create again: got %+v", r)
	}
	if r := weft(t, env, "shards", "create", "4"); r.code != exitRefused || !strings.Contains(r.errOut, "shop.search_outbox_events is dealt out to 3 shards already (shard_0, shard_1, shard_2): set WEFT_SHARDS=3") {
		t.Errorf("create with another number: got %+v, want code %d", r, exitRefused)
	}
	env = append(env, "WEFT_SHARDS=3")
	first, err := postgres.InSchema(strings.TrimPrefix(env[0], "DATABASE_URL="), "shard_0")
	if err != nil {
		t.Fatal(err)
	}
	role := testenv.Runner(t, first).Username()
	if r := weft(t, env, "migrate", "grant", role); r.code != 0 || strings.Count(r.out, "granted to "+role) != 3 {
		t.Errorf("grant: got %+v, want three grants", r)
	}
	all := weft(t, env, "status")
	for _, want := range []string{"shard 0: schema shard_0, group weft-shard-0\n", "shard 2: schema shard_2, group weft-shard-2\n"} {
		if !strings.Contains(all.out, want) {
			t.Errorf("status: got %q, want %q in it", all.out, want)
		}
	}
	if want := "weft: shard 1: nobody leads group weft-shard-1"; all.code != exitBad || strings.Count(all.errOut, "nobody leads group") != 3 || !strings.Contains(all.errOut, want) {
		t.Errorf("status: got code %d and %q, want code %d and %q", all.code, all.errOut, exitBad, want)
	}
	if one := weft(t, env, "status", "--shard", "1", "--json"); one.code != exitBad || !strings.Contains(one.out, `"group": "weft-shard-1"`) || strings.Contains(one.out, "weft-shard-0") {
		t.Errorf("status of one shard: got %+v", one)
	}
	if r := weft(t, env, "prune", "--older-than", "1d"); r.code != 0 || strings.Count(r.out, "0 done events deleted from search_outbox_events") != 3 {
		t.Errorf("prune: got %+v, want each shard", r)
	}
	if r := weft(t, env, "shards", "list"); r.code != exitBad || !strings.Contains(r.out, "\n2      -       0      shard_2  weft-shard-2  127.0.0.1:") || r.errOut != "weft: nobody leads 3 of 3 shards\n" {
		t.Errorf("list: got %+v", r)
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"status --shard 3", exitUsage, "--shard 3: want 0 to 2"},
		{"event 7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11", exitUsage, "name the shard with --shard"},
		{"rebuild search_index_to_elastic --why x --shard 0", exitRefused, "other shards write to the same index"},
		{"outbox drop --name x_outbox_events", exitConfig, "are not dealt out to shards"},
	} {
		if r := weft(t, env, strings.Fields(c.args)...); r.code != c.code || !strings.Contains(r.errOut, c.want) {
			t.Errorf("%s: got %+v, want code %d and %q", c.args, r, c.code, c.want)
		}
	}
	if r := weft(t, env[:1], "status", "--shard", "0"); r.code != exitUsage || !strings.Contains(r.errOut, "set WEFT_SHARDS to their number") {
		t.Errorf("--shard without shards: got %+v", r)
	}
}
