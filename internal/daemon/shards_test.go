package daemon_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

const shardCount = 4

// sharded returns a rig whose tables are dealt out, and whose instances may only what they need on
// each shard: nothing on the tables that deal out.
func sharded(t *testing.T) *rig {
	t.Helper()
	dsn := testenv.Database(t)
	owner := testenv.Pool(t, dsn)
	if _, err := owner.Exec(t.Context(), "create schema app"); err != nil {
		t.Fatal(err)
	}
	base, err := postgres.InSchema(dsn, "app")
	if err != nil {
		t.Fatal(err)
	}
	spec := migrations.ShardsSpec{By: "test", Why: "test"}
	for n := range shardCount {
		schema := fmt.Sprintf("shard_%d", n)
		one, err := postgres.InSchema(dsn, schema)
		if err != nil {
			t.Fatal(err)
		}
		spec.Shards = append(spec.Shards, migrations.Shard{Schema: schema, URL: one})
	}
	if _, err := migrations.CreateShards(t.Context(), base, spec); err != nil {
		t.Fatal(err)
	}
	runner := testenv.Runner(t, spec.Shards[0].URL)
	for _, s := range spec.Shards[1:] {
		if err := migrations.Grant(t.Context(), s.URL, runner.Username()); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t, base)
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	r.owner, r.runner = u.User.String(), runner
	return r
}

// leads returns how many shards an instance leads, by its metrics.
func (in *instance) leads() int { return int(in.metric("weft_leader_is_leader")) }

// open returns the events of all shards that are not done.
func (r *rig) open() (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), "select count(*) from search_outbox_events where status <> 'done'").Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// TestShardsAreShared has instances come and go while an application writes: each leads its share,
// every event is carried, and no version comes back.
func TestShardsAreShared(t *testing.T) {
	t.Parallel()
	r := sharded(t)
	var keys []change
	write := func(version int64) {
		t.Helper()
		if keys == nil {
			for range 200 {
				keys = append(keys, change{key: newKey(), op: "upsert"})
			}
		}
		for i := range keys {
			keys[i].version, keys[i].text = version, fmt.Sprintf("version %d", version)
		}
		r.write(keys...)
	}
	shares := func(want map[*instance]int) {
		t.Helper()
		testenv.Eventually(t, func() bool {
			for in, n := range want {
				if in.leads() != n {
					return false
				}
			}
			return true
		}, fmt.Sprintf("shares of %d instances", len(want)))
	}
	env := fmt.Sprintf("WEFT_SHARDS=%d", shardCount)
	a := r.start("a", env)
	shares(map[*instance]int{a: 4})
	a.awaitReady(200, `"role": "leader"`, `"group": "`+r.group+`-shard-3"`)
	write(1)
	b := r.start("b", env)
	write(2)
	shares(map[*instance]int{a: 2, b: 2})
	write(3)
	c := r.start("c", env)
	testenv.Eventually(t, func() bool {
		// Two may hand one over at once.
		led := []int{a.leads(), b.leads(), c.leads()}
		return led[0]+led[1]+led[2] == shardCount && slices.Min(led) == 1 && slices.Max(led) == 2
	}, "a share for the third")
	write(4)
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	shares(map[*instance]int{b: 2, c: 2})
	write(5)
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	shares(map[*instance]int{b: 4})
	write(6)
	testenv.Eventually(t, func() bool { return r.open() == 0 }, "all shards are drained")
	for _, k := range keys {
		if found, version, _ := r.document(k.key); !found || version != 6 {
			t.Errorf("%s: got found %v, version %d; want version 6", k.key, found, version)
		}
	}
	for n := range shardCount {
		label := fmt.Sprintf(`shard="%d"`, n)
		if got := b.metric("weft_leader_is_leader", label); got != 1 {
			t.Errorf("metric of shard %d: got %v, want that b leads", n, got)
		}
		var ends string
		if err := r.pool.QueryRow(t.Context(), fmt.Sprintf("select coalesce(string_agg(distinct end_reason, ' '), '') from shard_%d.weft_term where ended_at is not null", n)).Scan(&ends); err != nil {
			t.Fatal(err)
		}
		if ends = strings.Trim(strings.ReplaceAll(strings.ReplaceAll(ends, "resigned", ""), "stopped", ""), " "); ends != "" {
			t.Errorf("terms of shard %d ended by %q, want hand-overs and stops alone", n, ends)
		}
	}
	if err := b.stop(); err != nil {
		t.Error(err)
	}
}

// TestShardAwayIsTold has an instance whose settings lead to an old home of shard 1 say so, and stop
// saying so when the shard is back.
func TestShardAwayIsTold(t *testing.T) {
	t.Parallel()
	r := sharded(t)
	a := r.start("a", fmt.Sprintf("WEFT_SHARDS=%d", shardCount))
	a.awaitReady(200, `"role": "leader"`)
	if got := a.metric("weft_shard_away"); got != 0 {
		t.Errorf("metric of shards that are at home: got %v, want 0", got)
	}
	r.exec(migrations.AwaySQL("shard_1", 1))
	r.exec("insert into shard_1.weft_shard_away (server, since, arriving, move) values ('db2:5432/shop', '2026-01-02 03:04:05+00', false, gen_random_uuid())")
	a.awaitReady(503, `"shard 1: home"`, "the shard is on db2:5432/shop since 2026-01-02T03:04:05Z: its tables here are empty and refuse writes; "+
		"give its address in WEFT_SHARD_SERVERS to every command and instance, and restart one instance after the other")
	for n := range shardCount {
		want := 0.0
		if n == 1 {
			want = 1
		}
		if got := a.metric("weft_shard_away", fmt.Sprintf(`shard="%d"`, n)); got != want {
			t.Errorf("metric of shard %d: got %v, want %v", n, got, want)
		}
	}
	r.exec("delete from shard_1.weft_shard_away")
	a.awaitReady(200, `"role": "leader"`)
	if err := a.stop(); err != nil {
		t.Error(err)
	}
}
