package main

import (
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// The tables of a shard that has moved are empty: a command that has not been told does not answer from them, nor does
// one that was under way.
func TestCommandsForAShardThatHasMoved(t *testing.T) {
	t.Parallel()
	env := append(sharded(t, "3"), "WEFT_SHARDS=3")
	url, err := postgres.InSchema(strings.TrimPrefix(env[0], "DATABASE_URL="), "shard_1")
	if err != nil {
		t.Fatal(err)
	}
	shard := testenv.Pool(t, url)
	var id string
	if err := shard.QueryRow(t.Context(), "insert into search_outbox_events (entity_type, entity_id, op, event_version) select 'book', md5(x::text)::uuid, 'upsert', 1 from generate_series(1, 9) x where shop.weft_shard_of(md5(x::text)::uuid) = 1 limit 1 returning id").Scan(&id); err != nil {
		t.Fatal(err)
	}
	begin := func(args ...string) chan result {
		ended := make(chan result, 1)
		go func() { ended <- weft(t, env, args...) }()
		return ended
	}
	waiting := begin("wait", id, "--shard", "1", "--timeout", "5m")
	rebuilding := begin("rebuild", "chronicle_events_to_entries", "--why", "a test", "--shard", "1")
	testenv.Eventually(t, func() bool {
		var n int
		err := shard.QueryRow(t.Context(), "select count(*) from weft_rebuild").Scan(&n)
		return err == nil && n == 1
	}, "the rebuild")
	if r := weft(t, env, "shards", "move", "1", "--to", testenv.Database(t), "--by", "alice", "--why", "a test"); r.code != 0 {
		t.Fatalf("move: got %+v", r)
	}
	const want = "the shard of group weft-shard-1 is on "
	if r := <-waiting; r.code != exitInconclusive || r.out != "" || !strings.Contains(r.errOut, want) {
		t.Errorf("wait that was under way: got %+v", r)
	}
	if r := <-rebuilding; r.code != exitBad || r.out != "" || !strings.Contains(r.errOut, want) {
		t.Errorf("rebuild that was under way: got %+v", r)
	}
	if r := weft(t, append(env, "OUTBOX_FINISHED=delete"), "wait", id, "--shard", "1"); r.code != exitInconclusive || r.out != "" || !strings.Contains(r.errOut, want) {
		t.Errorf("wait: got %+v", r)
	}
	for _, command := range []string{"event " + id, "rebuild status chronicle_events_to_entries", "failed summary", "failed list", "audit", "history", "status"} {
		if r := weft(t, env, append(strings.Fields(command), "--shard", "1")...); r.code != exitBad || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: got %+v", command, r)
		}
	}
	if r := weft(t, env, "migrate", "status", "--shard", "1"); r.code != 0 {
		t.Errorf("migrate status: got %+v", r)
	}
}
