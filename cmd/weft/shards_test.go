package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
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
	for _, command := range [][]string{{"status"}, {"verify"}, {"shards", "list"}, {"migrate", "up"}, {"migrate", "status"}, {"migrate", "grant", "r"}, {"migrate", "down"}, {"uninstall", "--yes"}} {
		fewer := weft(t, append(slices.Clone(env), "WEFT_SHARDS=2"), command...)
		if want := "WEFT_SHARDS is 2, and entities are dealt out to 3 shards: set it to 3 for all instances and commands"; fewer.code != exitConfig || !strings.Contains(fewer.errOut, want) {
			t.Errorf("%s with a smaller number: got code %d and %q, want %d and %q", command, fewer.code, fewer.errOut, exitConfig, want)
		}
	}
	for _, command := range [][]string{{"status"}, {"verify"}, {"migrate", "up"}, {"migrate", "status"}, {"doctor"}, {"failed", "list"}, {"pause", "search_index_to_elastic", "--by", "alice", "--why", "x"}} {
		r := weft(t, append(slices.Clone(env), "WEFT_SHARDS=1"), command...)
		if want := "WEFT_SHARDS is 1, and entities are dealt out to 3 shards: set it to 3 for all instances and commands"; r.code != exitConfig || !strings.Contains(r.errOut, want) {
			t.Errorf("%s without a number: got code %d and %q, want %d and %q", command, r.code, r.errOut, exitConfig, want)
		}
	}
	database := testenv.Pool(t, first).Config().ConnConfig.Database
	for _, command := range [][]string{{"status"}, {"migrate", "up"}, {"migrate", "status"}, {"shards", "list"}} {
		r := weft(t, append(slices.Clone(env), "WEFT_SHARDS_PREFIX=other_"), command...)
		if want := "schema other_1 is not in database " + database + ": set WEFT_SHARDS and WEFT_SHARDS_PREFIX to what `weft shards create` was given, correct DATABASE_URL, or run it"; r.code != exitConfig || !strings.Contains(r.errOut, want) {
			t.Errorf("%s with another prefix: got code %d and %q, want %d and %q", command, r.code, r.errOut, exitConfig, want)
		}
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
		{"status --shard one", exitUsage, `--shard "one": want the number of a shard, counted from 0`},
		{"event 7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11", exitUsage, "name the shard with --shard"},
		{"rebuild search_index_to_elastic --why x --shard 0", exitRefused, "other shards write to the same index"},
		{"outbox drop --name x_outbox_events", exitConfig, "are not dealt out to shards"},
	} {
		if r := weft(t, env, strings.Fields(c.args)...); r.code != c.code || !strings.Contains(r.errOut, c.want) {
			t.Errorf("%s: got %+v, want code %d and %q", c.args, r, c.code, c.want)
		}
	}
	if r := weft(t, append(env, "WEFT_SHARDS_INDEXES=own"), "rebuild", "search_index_to_elastic", "--why", "x", "--detach"); r.code != 0 || strings.Count(r.out, "requested") != 3 {
		t.Errorf("rebuild with an index for each shard: got %+v, want three requests", r)
	}
	if r := weft(t, env[:1], "status", "--shard", "0"); r.code != exitUsage || !strings.Contains(r.errOut, "set WEFT_SHARDS to as many as weft shards create has made") {
		t.Errorf("--shard without shards: got %+v", r)
	}
}

// A fault of a shard that is elsewhere names the setting that has its address.
func TestFaultOfAShardElsewhereNamesItsSetting(t *testing.T) {
	t.Parallel()
	env := append(sharded(t, "3"), "WEFT_SHARDS=3", "WEFT_SHARD_SERVERS=1=postgres://a@127.0.0.1:1/d")
	for _, args := range [][]string{{"status"}, {"status", "--shard", "1"}, {"shards", "list"}, {"migrate", "up", "--shard", "1"}} {
		r := weft(t, env, args...)
		if want := "nothing listens at 127.0.0.1:1/d: start Postgres, or correct host and port in WEFT_SHARD_SERVERS"; !strings.Contains(r.errOut, want) || strings.Contains(r.errOut, "DATABASE_URL") {
			t.Errorf("%v: got %s, want %q", args, r.errOut, want)
		}
	}
	if r := weft(t, env, "shards", "list"); r.code != exitUnavailable || !strings.Contains(r.errOut, "weft: shard 1: nothing listens") || !strings.Contains(r.out, "\n1      unknown  0") || !strings.Contains(r.out, "\n2      -") {
		t.Errorf("list: got %+v, want the other shards, too", r)
	}
	if r := weft(t, append(env[:1:1], "WEFT_SHARDS=3", "DATABASE_URL=postgres://a@127.0.0.1:1/d"), "status", "--shard", "1"); !strings.Contains(r.errOut, "in DATABASE_URL") {
		t.Errorf("of one that is on DATABASE_URL: got %s", r.errOut)
	}
}

// interrupter ends a context once something was written.
type interrupter struct {
	bytes.Buffer
	at        string
	interrupt func()
}

func (i *interrupter) Write(p []byte) (int, error) {
	n, err := i.Buffer.Write(p)
	if strings.Contains(i.String(), i.at) {
		i.interrupt()
	}
	return n, err
}

// A command that is interrupted between two shards, or at the end of one, has not done the others.
func TestInterruptedBeforeTheLastShard(t *testing.T) {
	t.Parallel()
	env := append(sharded(t, "3"), "WEFT_SHARDS=3")
	ctx, interrupt := context.WithCancel(t.Context())
	var errOut bytes.Buffer
	out := &interrupter{at: "nothing to do: the schema is up to date\nshard 1", interrupt: interrupt}
	a := &app{environ: env, stdout: out, stderr: &errOut}
	if code := a.execute(ctx, []string{"migrate", "up"}); code != exitTryAgain || strings.Contains(out.String(), "shard 2") {
		t.Errorf("got code %d, %s and %s; want %d, and not shard 2", code, out, &errOut, exitTryAgain)
	}
	ctx, interrupt = context.WithCancel(t.Context())
	out, errOut = &interrupter{at: "outbox tables of the application\n", interrupt: interrupt}, bytes.Buffer{}
	a = &app{environ: env, stdout: out, stderr: &errOut}
	if code := a.execute(ctx, []string{"migrate", "status"}); code != exitTryAgain || errOut.String() != "weft: interrupted: shards 1 to 2 are left; repeat the command, with --shard for one of them\n" {
		t.Errorf("got code %d and %s, want %d", code, &errOut, exitTryAgain)
	}
}

// A command that is interrupted while it waits for the server of a shard says which shards it has not done.
func TestInterruptedAtAShardElsewhere(t *testing.T) {
	t.Parallel()
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	env := append(sharded(t, "3"), "WEFT_SHARDS=3", "WEFT_SHARD_SERVERS=1=postgres://a@"+silent.Addr().String()+"/d")
	ctx, interrupt := context.WithCancel(t.Context())
	var asked sync.WaitGroup
	asked.Go(func() {
		conn, err := silent.Accept()
		interrupt()
		if err == nil {
			_, _ = io.Copy(io.Discard, conn) // until the command has given up
			_ = conn.Close()
		}
	})
	var out, errOut bytes.Buffer
	a := &app{environ: env, stdout: &out, stderr: &errOut}
	code := a.execute(ctx, []string{"status"})
	_ = silent.Close()
	asked.Wait()
	if want := "weft: interrupted: shards 1 to 2 are left; repeat the command, with --shard for one of them\n"; code != exitTryAgain || !strings.HasSuffix(errOut.String(), want) {
		t.Errorf("got code %d, %s and %s; want %d and %s", code, &out, &errOut, exitTryAgain, want)
	}
}

// TestSupportBundleOfAShard holds that a bundle is of one shard, as its file is.
func TestSupportBundleOfAShard(t *testing.T) {
	t.Parallel()
	env := append(sharded(t, "3"), "WEFT_SHARDS=3")
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	if r := weft(t, env, "support-bundle", "--out", path); r.code != exitUsage || !strings.Contains(r.errOut, "name the shard with --shard") {
		t.Errorf("without a shard: got %+v, want code %d", r, exitUsage)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("without a shard: there is a file, want none")
	}
	if r := weft(t, env, "support-bundle", "--shard", "1", "--out", path); r.code != 0 {
		t.Fatalf("of one shard: got %+v", r)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := unpacked(t, raw)["manifest.json"]; !strings.Contains(got, `"group": "weft-shard-1"`) {
		t.Errorf("got the manifest %.300s, want that of shard 1", got)
	}
}

// TestCommandsOfShards holds that the commands which treat shards in a way of their own exist, and
// that their help says so.
func TestCommandsOfShards(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		names []string
		want  string
	}{
		{ofOneShard, "required where WEFT_SHARDS says that there are several"},
		{notOfShards, "has no outbox that weft outbox create makes"},
	} {
		for _, name := range tc.names {
			found := 0
			var walk func(cmd *cobra.Command)
			walk = func(cmd *cobra.Command) {
				if f := cmd.Flags().Lookup(shardFlag); f != nil && belongs(cmd, []string{name}) {
					found++
					if !strings.Contains(f.Usage, tc.want) {
						t.Errorf("%s --shard: got %q, want %q in it", cmd.CommandPath(), f.Usage, tc.want)
					}
				}
				for _, sub := range cmd.Commands() {
					walk(sub)
				}
			}
			walk((&app{}).root())
			if found == 0 {
				t.Errorf("no command with --shard has the name %s", name)
			}
		}
	}
}

func TestShardsMove(t *testing.T) {
	t.Parallel()
	env := append(sharded(t, "3"), "WEFT_SHARDS=3")
	other := testenv.Database(t)
	from, to := strings.TrimPrefix(env[0], "DATABASE_URL="), other
	if _, err := testenv.Pool(t, from).Exec(t.Context(), `insert into search_index (entity_type, entity_id, text) select 'book', md5(x::text)::uuid, 'text' from generate_series(1, 90) x`); err != nil {
		t.Fatal(err)
	}
	password := config.Passwords(other)
	file := filepath.Join(t.TempDir(), "other.url")
	if err := os.WriteFile(file, []byte(to+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"move"}, exitUsage, "want the number of the shard, counted from 0"},
		{[]string{"move", "3", "--to", to}, exitUsage, `"3": want the number of a shard, 0 to 2`},
		{[]string{"move", "1"}, exitUsage, "want --to or --to-file"},
		{[]string{"move", "1", "--to", "mysql://a:hidden@h/d"}, exitUsage, "not a valid Postgres URL"},
		{[]string{"move", "1", "--to-file", file + ".none"}, exitUsage, "no such file"},
		{[]string{"move", "1", "--to", "postgres://127.0.0.1:1/d"}, exitUnavailable, "127.0.0.1:1/d"},
		{[]string{"move", "1", "--to", from}, exitRefused, "where it is to go: give the address of another database"},
	} {
		if r := weft(t, env, append([]string{"shards"}, c.args...)...); r.code != c.code || !strings.Contains(r.errOut, c.want) || strings.Contains(r.errOut, "hidden") {
			t.Errorf("%v: got %+v, want code %d and %q", c.args, r, c.code, c.want)
		}
	}
	if r := weft(t, env[:2], "shards", "move", "1", "--to", to); r.code != exitUsage || !strings.Contains(r.errOut, "there is one shard: set WEFT_SHARDS") {
		t.Errorf("without shards: got %+v", r)
	}
	if r := weft(t, env, "shards", "move", "1", "--to-file", file, "--dry-run"); r.code != 0 || !strings.Contains(r.out, "the 3 schemas and the tables that deal out are made there first\n") || !strings.HasSuffix(r.out, "nothing was changed\n") {
		t.Errorf("dry run: got %+v", r)
	}
	r := weft(t, env, "shards", "move", "1", "--to", to, "--by", "alice", "--why", "a test", "--json")
	var row movedShard
	if err := json.Unmarshal([]byte(r.out), &row); err != nil || r.code != 0 || row.State != "moved" || row.Shard != 1 || row.Rows < 20 || row.Epoch == 0 || len(row.Tables) < 15 {
		t.Fatalf("move: got %+v, %v", r, err)
	}
	if r := weft(t, env, "shards", "move", "1", "--to", to); r.code != 0 || !strings.Contains(r.out, "nothing to do: it is there since 20") {
		t.Errorf("move again: got %+v", r)
	}
	if r := weft(t, env, "shards", "list"); r.code != exitBad || !strings.Contains(r.errOut, "shard 1 is on "+row.To.Server+" since 20") || !strings.Contains(r.errOut, "give its address in WEFT_SHARD_SERVERS") {
		t.Errorf("list with the old settings: got %+v", r)
	}
	env = append(env, "WEFT_SHARD_SERVERS=1="+to)
	if r := weft(t, env, "shards", "list"); r.errOut != "weft: nobody leads 3 of 3 shards\n" || !strings.Contains(r.out, row.To.Server) {
		t.Errorf("list: got %+v", r)
	}
	if r := weft(t, env, "shards", "move", "1", "--to", to); r.code != exitRefused || !strings.Contains(r.errOut, "shard 1 is in "+row.To.Server) {
		t.Errorf("move to where it is: got %+v", r)
	}
	back := weft(t, env, "shards", "move", "1", "--to", from)
	if back.code != 0 || !strings.Contains(back.out, "moved shard 1 to "+row.From.Server+": ") || !strings.Contains(back.out, "WEFT_SHARD_SERVERS='1=") || !strings.Contains(back.out, "weft migrate grant ROLE --shard 1") {
		t.Errorf("move back: got %+v", back)
	}
	for _, p := range password {
		if strings.Contains(back.out+back.errOut, p) {
			t.Errorf("the output has a password: %s", back.out)
		}
	}
	if r := weft(t, env[:3], "shards", "list"); r.errOut != "weft: nobody leads 3 of 3 shards\n" {
		t.Errorf("list after the way back: got %+v", r)
	}
}

// A move that is interrupted while it looks at a server that says nothing is no fault of weft.
func TestMoveIsInterruptedBeforeItBegins(t *testing.T) {
	t.Parallel()
	env := append(sharded(t, "3"), "WEFT_SHARDS=3")
	silent, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		if c, err := silent.Accept(); err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
		interrupt()
	}()
	var out, errOut buffer
	a := &app{environ: env, stdin: strings.NewReader(""), stdout: &out, stderr: &errOut, signals: notify}
	code := a.execute(ctx, []string{"shards", "move", "1", "--to", "postgres://" + silent.Addr().String() + "/d?sslmode=disable"})
	if code != exitTryAgain || !strings.Contains(errOut.String(), "weft: interrupted") {
		t.Errorf("got code %d and %s, want %d", code, errOut.String(), exitTryAgain)
	}
}
