package chaos

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

// event is one that is enqueued at a time and done later, in a record of one shard.
func event(log *history.Log, key outbox.Key, version int64, enqueued, done int) {
	id := outbox.UUID(uuid.NewSHA1(uuid.Nil, []byte(fmt.Sprint(key, version))))
	lease := &history.Lease{Owner: "a", Epoch: 1, Events: []outbox.ID{id}, At: at(done - 1), Ended: at(done), EndedBy: "a", By: "a", Settled: 1, Batch: uuid.New()}
	log.Leases = append(log.Leases, lease)
	log.Rows = append(log.Rows, history.Row{Event: id, Status: history.Done})
	change := history.Change{Tx: uint64(enqueued), At: at(enqueued), Event: id, Key: key, Version: version, Op: outbox.Upsert, To: history.Pending}
	log.Changes = append(log.Changes, change)
	change.Tx, change.At, change.From, change.To, change.Owner, change.Epoch = uint64(done), at(done), history.Pending, history.Done, "a", 1
	log.Changes = append(log.Changes, change)
	slices.SortStableFunc(log.Changes, func(a, b history.Change) int { return a.At.Compare(b.At) })
}

// One shard's fault makes the run's, and the finding names the shard.
func TestResultOfShards(t *testing.T) {
	t.Parallel()
	first, second := traffic.Entity(1), traffic.Entity(2)
	home := map[outbox.Key]int{first: 0, second: 1}
	for want, spoil := range map[string]func([]*history.Log, *history.Run){
		"PASS": func([]*history.Log, *history.Run) {},
		"1 events out of order": func(logs []*history.Log, _ *history.Run) {
			event(logs[1], second, 7, 290, 500)
			event(logs[1], second, 8, 300, 400)
		},
		"1 lost events": func(_ []*history.Log, all *history.Run) {
			all.Acknowledged = append(all.Acknowledged, history.Enqueued{Event: outbox.UUID(uuid.New()), Key: second, Version: 9})
		},
		"1 events or rows in another shard than their entity's": func(logs []*history.Log, _ *history.Run) { event(logs[1], first, 9, 300, 400) },
	} {
		logs := []*history.Log{{}, {}}
		for n, log := range logs {
			log.Terms = []history.Term{{Seq: 1, At: at(0), Epoch: 1, Instance: "a"}}
			event(log, []outbox.Key{first, second}[n], 1, 100, 200)
		}
		var all history.Run
		spoil(logs, &all)
		r := clean()
		r.Shards, r.Lost = len(logs), 0
		var shown bytes.Buffer
		screen := &run{screen: rig.NewScreen(&shown, quietPeriod)}
		var parts []judged
		for n, part := range history.Deal(all, logs, home) {
			parts = append(parts, judged{shard: fmt.Sprint(n), Run: part, Verdict: history.Check(part)})
			r.add(&parts[n])
		}
		screen.show(parts)
		var out bytes.Buffer
		r.write(&out)
		if !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "2 shards; ") {
			t.Errorf("got %s, want %q and the number of shards in it", &out, want)
		}
		if (want == "PASS") != (shown.Len() == 0) || want != "PASS" && !strings.Contains(shown.String(), ", shard 1: ") {
			t.Errorf("%s: got %q on the screen, want what was found in shard 1", want, &shown)
		}
	}
}

// A fault meets the shards that its instance leads, one of them, or all.
func TestFaultMeetsShards(t *testing.T) {
	t.Parallel()
	met := []rig.Leadership{{Epoch: 5, Instance: "a"}, {Epoch: 6, Instance: "b"}, {Epoch: 7, Instance: "a"}}
	for kind, want := range map[string]string{
		faults.SIGKILL: "0 2", faults.InstanceAway: "0 2", faults.Resign: "2", faults.TerminateLock: "2", faults.PostgresRestartFast: "0 1 2",
	} {
		i := &injection{Step: Step{Kind: kind, Shard: 2}, Instance: "a", met: met, Injection: faults.New(kind, nil, nil, faults.Params{})}
		i.Leader = true
		var got []string
		for n := range met {
			if i.struck(n) {
				got = append(got, fmt.Sprint(n))
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s at shard 2, whose leader leads shard 0, too: got shards %v, want %s", kind, got, want)
		}
	}
}

func TestShardsGoWithFewFlags(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--domain=shop", "--elastic-nodes=3", "--patroni", "--rebuilds", "--upgrade=v1"} {
		cmd := Command()
		cmd.SetArgs([]string{"--shards", "4", flag})
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		name, _, _ := strings.Cut(flag, "=")
		want := fmt.Sprintf("--shards and %s do not go together: leave one of them out", name)
		if err := cmd.ExecuteContext(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %q", flag, err, want)
		}
	}
}

func TestWhoLeads(t *testing.T) {
	t.Parallel()
	leaders := []rig.Leadership{{Epoch: 5, Instance: "b"}, {Epoch: 6, Instance: "a"}, {Epoch: 7, Instance: "b"}, {Epoch: 8, Instance: "a", Released: true}}
	if got, want := whoLeads(leaders), "a leads 1, b leads 2, nobody leads 1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := whoLeads(leaders[:1]), "b leads (epoch 5)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// emptySchema returns the URL of a database in which a schema without tables comes first.
func emptySchema(t *testing.T) string {
	t.Helper()
	base := testenv.Database(t)
	if _, err := testenv.Pool(t, base).Exec(t.Context(), "create schema app"); err != nil {
		t.Fatal(err)
	}
	in, err := postgres.InSchema(base, "app")
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// Two instances share three shards, and one more comes and goes.
func TestShortRunOfShards(t *testing.T) {
	t.Parallel()
	out, result, err := short(t, nil, Options{
		Shards: 3, Faults: 3, Only: []string{faults.SIGKILL, faults.InstanceAway, faults.InstanceMore}, Seed: 18,
	})
	if err != nil || !strings.Contains(out, "PASS (seed 18)") {
		t.Errorf("verdict: got %v, want none", err)
	}
	if result.Shards != 3 || result.Faults != 3 || result.TakeoverMS[faults.SIGKILL].N+result.TakeoverMS[faults.InstanceAway].N < 2 {
		t.Errorf("result: got %+v, want 3 shards, 3 faults, and a takeover of each shard that was met", result)
	}
}

// Where events come slowly, in several shards, most requests have one document.
func TestShortRunHalvesSmallRequests(t *testing.T) {
	t.Parallel()
	out, result, err := short(t, nil, Options{Shards: 3, Rate: 20, Faults: 2, Only: []string{faults.TooLarge413}, Seed: 19})
	if err != nil || result.Injected[faults.TooLarge413] != 2 || result.Failed != 0 {
		t.Errorf("verdict: got %v with %+v, want two refused requests, and no event in failed", err, result)
	}
	if !strings.Contains(out, "too-large × ") {
		t.Errorf("output: got %s, want how many requests were refused", out)
	}
}
