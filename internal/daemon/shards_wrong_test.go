package daemon_test

import (
	"errors"
	"fmt"
	"slices"
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
	testenv.Eventually(t, func() bool { return a.leads() == shardCount }, "all shards are led")
	if err := a.stop(); err != nil {
		t.Error(err)
	}
}

// TestFaultOfAShardIsToldOnce has a server go away and come back while it is not fixed.
func TestFaultOfAShardIsToldOnce(t *testing.T) {
	t.Parallel()
	r := sharded(t)
	for n, env := range []string{"dev", "test", "test", "test"} {
		r.exec(fmt.Sprintf("insert into shard_%d.environment_sentinel (id, env) values (1, $1)", n), env)
	}
	way := newLink(t, host(t, r.url))
	a := r.start("a", fmt.Sprintf("WEFT_SHARDS=%d", shardCount), "WORDLOOM_ENV=test", "WEFT_SHARD_SERVERS=0="+way.through(testenv.As(t, r.url, r.runner)))
	for range 2 {
		a.awaitReady(503, `"shard 0: postgres"`, "WORDLOOM_ENV is test")
		way.cut()
		a.awaitReady(503, `"shard 0: postgres"`, way.Addr())
		way.heal()
	}
	a.awaitReady(503, `"shard 0: postgres"`, "WORDLOOM_ENV is test")
	if lines := a.logs.with("event", "shards.refused"); len(lines) != 1 {
		t.Errorf("got the lines %v, want one", lines)
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

// TestFaultOfAShardIsTakenBack: an instance ends once each of its shards has a fault that only a person can fix. A
// fault that somebody has fixed counts no more, whoever leads the shard then.
func TestFaultOfAShardIsTakenBack(t *testing.T) {
	t.Parallel()
	for name, taken := range map[string]bool{"LedAgain": false, "TakenByAnother": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := sharded(t)
			for n, env := range []string{"dev", "dev", "dev", "test"} {
				r.exec(fmt.Sprintf("insert into shard_%d.environment_sentinel (id, env) values (1, $1)", n), env)
			}
			r.exec("alter table shard_3.weft_leader rename to mislaid") // the election finds it out
			first, last, own := newLink(t, host(t, r.url)), newLink(t, host(t, r.url)), testenv.As(t, r.url, r.runner)
			first.cut() // a fault that may pass
			a := r.start("a", fmt.Sprintf("WEFT_SHARDS=%d", shardCount), "WORDLOOM_ENV=test", "WEFT_SHARD_SERVERS=0="+first.through(own)+",3="+last.through(own))
			refused := func(n int) bool {
				return slices.ContainsFunc(a.logs.with("event", "shards.refused"), func(line map[string]any) bool { return line["shard"] == float64(n) })
			}
			testenv.Eventually(t, func() bool { return refused(1) && refused(2) && refused(3) }, "the faults of three shards")
			if taken {
				last.cut()
			}
			r.exec("alter table shard_3.mislaid rename to weft_leader")
			role := "leader"
			if taken {
				b := r.start("b", fmt.Sprintf("WEFT_SHARDS=%d", shardCount))
				testenv.Eventually(t, func() bool { return b.leads() == shardCount }, "all shards are led by the other")
				last.heal()
				role = "standby"
			}
			a.awaitReady(503, `"role": "`+role+`"`, "WORDLOOM_ENV is test")
			first.heal() // and the fault of this shard is one that only a person can fix
			testenv.Eventually(t, func() bool {
				select {
				case <-a.done:
					return true
				default:
					return refused(0)
				}
			}, "the fault of the first shard")
			if !refused(0) {
				t.Fatalf("the instance has ended with %v, want it to stay for the shard that is right", a.stop())
			}
			for n := range shardCount - 1 {
				r.exec(fmt.Sprintf("update shard_%d.environment_sentinel set env = 'test'", n))
			}
			a.awaitReady(200)
		})
	}
}
