package daemon_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

// TestAnotherNumberOfShards: an instance that leads the first two of four would leave the others alone.
func TestAnotherNumberOfShards(t *testing.T) {
	t.Parallel()
	r := sharded(t)
	for _, n := range []int{1, 2, shardCount + 1} {
		a := r.start("a", fmt.Sprintf("WEFT_SHARDS=%d", n))
		<-a.done
		err := a.stop()
		if other, ok := errors.AsType[*migrations.ShardsError](daemon.Cause(err)); !ok || *other != (migrations.ShardsError{Set: n, There: shardCount}) {
			t.Errorf("%d shards: got %v, want an error about the number of shards", n, err)
		}
	}
}

// TestShardThatIsWrongLeavesTheOthers starts an instance while three of four shards have what only a person
// can fix: it leads the fourth one, says of each of the others what is wrong, and leads it once that is fixed.
func TestShardThatIsWrongLeavesTheOthers(t *testing.T) {
	t.Parallel()
	r := sharded(t)
	r.exec("insert into shard_1.environment_sentinel (id, env) values (1, 'dev')")
	for _, n := range []int{0, 2, 3} {
		r.exec(fmt.Sprintf("insert into shard_%d.environment_sentinel (id, env) values (1, 'test')", n))
	}
	r.exec("revoke insert on shard_2.weft_lease from " + r.runner.Username())
	r.exec("alter table shard_3.weft_leader rename to mislaid") // the election finds it out
	a := r.start("a", fmt.Sprintf("WEFT_SHARDS=%d", shardCount), "WORDLOOM_ENV=test")
	a.awaitReady(503, `"role": "leader"`, `"shard 1: postgres"`, "WORDLOOM_ENV is test", `"shard 2: postgres"`, "lacks insert on weft_lease",
		`"shard 3: postgres"`, "weft's tables are missing from this database")
	key := newKey()
	for r.shardOf(key) != 0 {
		key = newKey()
	}
	r.upsert(key, 1, "text")
	testenv.Eventually(t, func() bool { return r.open() == 0 }, "the event of the shard that is right")
	if got := a.metric("weft_leader_is_leader", `shard="0"`); got != 1 || a.leads() != 1 {
		t.Errorf("got %d shards led, want shard 0 alone", a.leads())
	}
	for n, want := range []int{0, 1, 1, 1} {
		var told []map[string]any
		for _, line := range a.logs.with("event", "shards.refused") {
			if line["shard"] == float64(n) {
				told = append(told, line)
			}
		}
		if len(told) != want {
			t.Errorf("shard %d: got the lines %v, want %d", n, told, want)
		}
	}
	r.exec("update shard_1.environment_sentinel set env = 'test'")
	r.exec("grant insert on shard_2.weft_lease to " + r.runner.Username())
	r.exec("alter table shard_3.mislaid rename to weft_leader")
	a.awaitReady(200)
	if got := a.leads(); got != shardCount {
		t.Errorf("got %d shards led, want all", got)
	}
	if err := a.stop(); err != nil {
		t.Error(err)
	}
}

// TestShardThatIsWrongForOneInstance has an instance that cannot lead shard 0 get its share of the others: those
// that lead all of them see it in the shards where it is.
func TestShardThatIsWrongForOneInstance(t *testing.T) {
	t.Parallel()
	r := sharded(t)
	for n, env := range []string{"dev", "test", "test", "test"} {
		r.exec(fmt.Sprintf("insert into shard_%d.environment_sentinel (id, env) values (1, $1)", n), env)
	}
	a := r.start("a", fmt.Sprintf("WEFT_SHARDS=%d", shardCount))
	testenv.Eventually(t, func() bool { return a.leads() == shardCount }, "all shards are led")
	b := r.start("b", fmt.Sprintf("WEFT_SHARDS=%d", shardCount), "WORDLOOM_ENV=test")
	testenv.Eventually(t, func() bool { return b.leads() == shardCount/2 && a.leads() == shardCount/2 }, "a share for the second")
}
