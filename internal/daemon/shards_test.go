package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

const shardCount = 4

// sharded returns a rig whose tables are dealt out, and whose instances may only what they need on
// each shard: nothing on the tables that deal out.
func sharded(t *testing.T) *rig {
	t.Helper()
	shards := func(dsn string) (spec migrations.ShardsSpec, base string, err error) {
		base, err = postgres.InSchema(dsn, "app")
		spec = migrations.ShardsSpec{By: "test", Why: "test"}
		for n := 0; n < shardCount && err == nil; n++ {
			one := migrations.Shard{Schema: fmt.Sprintf("shard_%d", n)}
			one.URL, err = postgres.InSchema(dsn, one.Schema)
			spec.Shards = append(spec.Shards, one)
		}
		return spec, base, err
	}
	dsn := testenv.DatabaseWith(t, "_shards", func(ctx context.Context, dsn string) error {
		spec, base, err := shards(dsn)
		if err != nil {
			return err
		}
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		if _, err := conn.Exec(ctx, "create schema app"); err != nil {
			return err
		}
		_, err = migrations.CreateShards(ctx, base, spec)
		return err
	})
	spec, base, err := shards(dsn)
	if err != nil {
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

// leads returns how many shards an instance leads, by its health report: to make all the metrics of
// some shards takes long under the race detector.
func (in *instance) leads() (n int) {
	in.t.Helper()
	_, body := in.get("/health/ready")
	var report admin.Report
	if err := json.Unmarshal([]byte(body), &report); err != nil {
		in.t.Fatalf("health report: %v: %s", err, body)
	}
	for _, s := range report.Shards {
		if s.Role == admin.Leader {
			n++
		}
	}
	return n
}

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

// TestShardsWithAnIndexEach has the index of every shard rebuilt while an application writes: those who
// search by the one name find every document, and never one twice.
func TestShardsWithAnIndexEach(t *testing.T) {
	t.Parallel()
	r := sharded(t)
	env := []string{fmt.Sprintf("WEFT_SHARDS=%d", shardCount), "WEFT_SHARDS_INDEXES=own"}
	r.start("a", env...)
	b := r.start("b", env...)
	testenv.Eventually(t, func() bool { return b.leads() == shardCount/2 }, "a share for the second")
	documents := r.found
	keys := newKeys(200)
	write := func(version int64) {
		t.Helper()
		changes := make([]change, len(keys))
		for i, k := range keys {
			changes[i] = change{k, version, "upsert", fmt.Sprintf("version %d", version)}
		}
		r.write(changes...)
	}
	write(1)
	testenv.Eventually(t, func() bool { return r.open() == 0 }, "all events are done")
	if got := documents("*"); got != len(keys) {
		t.Fatalf("got %d documents, want %d", got, len(keys))
	}

	const projection = "search_index_to_elastic"
	var pools []*pgxpool.Pool
	for n := range shardCount {
		in, err := postgres.InSchema(r.url, fmt.Sprintf("shard_%d", n))
		if err != nil {
			t.Fatal(err)
		}
		pools = append(pools, testenv.Pool(t, in))
		if ok, err := outbox.RequestRebuild(t.Context(), pools[n], projection, false, "test", "test", time.Minute); err != nil || !ok {
			t.Fatalf("ask for the rebuild of shard %d: %v, %v", n, ok, err)
		}
	}
	version := int64(1)
	testenv.Eventually(t, func() bool {
		version++
		write(version)
		if got := documents("*"); got != len(keys) {
			t.Fatalf("got %d documents while indexes are rebuilt, want %d at every moment", got, len(keys))
		}
		for n := range shardCount {
			row, err := outbox.ReadRebuild(t.Context(), pools[n], projection, time.Minute)
			if err != nil || row.Phase == outbox.RebuildFailed {
				t.Fatalf("rebuild of shard %d: %s (%s), %v", n, row.Phase, row.Note, err)
			}
			if row.Phase != outbox.RebuildDone {
				return false
			}
		}
		return true
	}, "each index is rebuilt")
	testenv.Eventually(t, func() bool { return r.open() == 0 }, "all events are done")
	if got := documents(fmt.Sprintf("event_version:%d", version)); got != len(keys) {
		t.Errorf("got %d documents of version %d, want %d", got, version, len(keys))
	}
	var behind map[string]any
	r.elasticCall(http.MethodGet, "/_alias/"+r.index, "", &behind)
	var want []string
	for n := range shardCount {
		want = append(want, fmt.Sprintf("%s-shard-%d-v2", r.index, n))
	}
	if got := slices.Sorted(maps.Keys(behind)); !slices.Equal(got, want) {
		t.Errorf("the searched name leads to %v, want %v", got, want)
	}
}

// TestNoShardIsHandedToAnInstanceThatStops has an instance take long to stop: the other one takes what it leaves,
// and hands nothing over to it meanwhile. With a long heartbeat it seldom sees the even shares between.
func TestNoShardIsHandedToAnInstanceThatStops(t *testing.T) {
	t.Parallel()
	r := sharded(t)
	env := []string{fmt.Sprintf("WEFT_SHARDS=%d", shardCount), "OUTBOX_SHUTDOWN_GRACE_SECONDS=9", "WEFT_LEADER_HEARTBEAT=2s", "WEFT_ES_TIMEOUT=1m", "OUTBOX_LEASE_SECONDS=120"}
	link, direct := newLink(t, host(t, r.elastic)), r.elastic
	r.elastic = link.through(direct)
	b := r.start("b", env...)
	r.elastic = direct
	b.awaitReady(200)
	a := r.start("a", env...)
	testenv.Eventually(t, func() bool { return a.leads() == shardCount/2 && b.leads() == shardCount/2 }, "a share for each")
	key := newKey() // of a shard of b, which may yet call itself the leader of one that it has handed over
	for a.metric("weft_leader_is_leader", fmt.Sprintf(`shard="%d"`, r.shardOf(key))) == 1 {
		key = newKey()
	}
	if err := link.HalfOpen(); err != nil {
		t.Fatal(err)
	}
	r.upsert(key, 1, "in flight")
	testenv.Eventually(t, func() bool { return b.metric("outbox_inflight_events") == 1 }, "the event is in flight")
	handed := len(a.logs.with("event", "shards.hand_over"))
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	testenv.Eventually(t, func() bool { return a.leads() == shardCount }, "all shards for the other one")
	if got := a.logs.with("event", "shards.hand_over")[handed:]; len(got) > 0 {
		t.Errorf("handed over while the other one stopped: %v", got)
	}
}

// shardOf returns the number of the shard of an entity.
func (r *rig) shardOf(key outbox.Key) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), "select weft_shard_of($1)", &key.ID).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// found counts documents by the name that searches use.
func (r *rig) found(query string) int {
	r.t.Helper()
	var found struct {
		Count int `json:"count"`
	}
	r.elasticCall(http.MethodPost, "/"+r.index+"/_refresh", "", nil)
	r.elasticCall(http.MethodGet, "/"+r.index+"/_count?q="+query, "", &found)
	return found.Count
}

// TestNoRebuildOfAShardThatIsAway: its tables are empty at the old home, so a new index of them would be,
// too, and would take the place of all its documents.
func TestNoRebuildOfAShardThatIsAway(t *testing.T) {
	t.Parallel()
	r := sharded(t)
	r.start("a", fmt.Sprintf("WEFT_SHARDS=%d", shardCount), "WEFT_SHARDS_INDEXES=own")
	keys := newKeys(100)
	for _, k := range keys {
		r.write(change{k, 1, "upsert", "text"})
	}
	testenv.Eventually(t, func() bool { return r.open() == 0 && r.found("*") == len(keys) }, "all documents")
	r.exec("truncate shard_1.search_index, shard_1.search_outbox_events")
	r.exec(migrations.AwaySQL("shard_1", 1))
	r.exec("insert into shard_1.weft_shard_away (server, since, arriving, move) values ('db2:5432/shop', now(), false, gen_random_uuid())")
	in, err := postgres.InSchema(r.url, "shard_1")
	if err != nil {
		t.Fatal(err)
	}
	const projection = "search_index_to_elastic"
	pool := testenv.Pool(t, in)
	if ok, err := outbox.RequestRebuild(t.Context(), pool, projection, false, "test", "test", time.Minute); err != nil || !ok {
		t.Fatalf("ask for the rebuild: %v, %v", ok, err)
	}
	var row outbox.Rebuild
	testenv.Eventually(t, func() bool {
		row, err = outbox.ReadRebuild(t.Context(), pool, projection, time.Minute)
		return err == nil && row.Phase.Ended()
	}, "the rebuild ends")
	if row.Phase != outbox.RebuildFailed || !strings.Contains(row.Note, "the shard is on db2:5432/shop since") || r.found("*") != len(keys) {
		t.Errorf("got %s (%s) and %d documents, want a refusal and all %d", row.Phase, row.Note, r.found("*"), len(keys))
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
