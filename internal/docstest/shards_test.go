package docstest

import (
	"fmt"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// TestShards deals entities out as docs/scaling.md says: an application writes to one name, instances
// come and are killed, all shards are led and drained, all documents are found by one name, and each
// shard's index is rebuilt.
func TestShards(t *testing.T) {
	t.Parallel()
	const shards, entities = 4, 1000
	page := document(t, "docs/scaling.md")
	example := page.in("Shards by entity", "sql")
	if len(example) != 1 {
		t.Fatalf("%s: got %d blocks of SQL about shards, want the example", page.name, len(example))
	}
	r := newRestore(t)
	r.run("create schema app")
	base := r.inSchema("app")
	r.pool = testenv.Pool(t, base)
	r.fleet.Env = append(r.fleet.Env, "DATABASE_URL="+base, "ELASTIC_INDEX="+r.index)
	weft := func(args ...string) {
		t.Helper()
		if err := r.fleet.Run(t.Context(), args...); err != nil {
			t.Fatalf("weft %v: %v", args, err)
		}
	}
	weft("shards", "create", fmt.Sprint(shards))
	r.fleet.Env = append(r.fleet.Env, fmt.Sprintf("WEFT_SHARDS=%d", shards), "WEFT_SHARDS_INDEXES=own")
	start := func(name string) *rig.Instance {
		t.Helper()
		i, err := r.fleet.Start(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if err := i.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		return i
	}
	write := func(version int) {
		t.Helper()
		r.run(fmt.Sprintf(`with rows as (
			insert into search_index (entity_type, entity_id, text, event_version)
			select 'book', md5(x::text)::uuid, 'version %[1]d', %[1]d from generate_series(1, %[2]d) x
			on conflict (entity_type, entity_id) do update set text = excluded.text, event_version = excluded.event_version
			returning *)
			insert into search_outbox_events (entity_type, entity_id, op, event_version)
			select entity_type, entity_id, 'upsert', event_version from rows`, version, entities))
	}
	// led waits until the named instances lead all shards, each its share.
	led := func(names ...string) {
		t.Helper()
		share := (shards + len(names) - 1) / len(names)
		testenv.Eventually(t, func() bool {
			of := map[string]int{}
			for n := range shards {
				var leader string
				sql := fmt.Sprintf(`select coalesce((select instance from shard_%[1]d.weft_leader where released_at is null and renewed_at > now() - interval '3 seconds'), '')`, n)
				if err := r.pool.QueryRow(t.Context(), sql).Scan(&leader); err != nil {
					t.Fatal(err)
				}
				of[leader]++
			}
			all := 0
			for _, name := range names {
				if of[name] == 0 || of[name] > share {
					return false
				}
				all += of[name]
			}
			return all == shards
		}, fmt.Sprintf("%v lead %d shards each at most", names, share))
	}
	kill := func(i *rig.Instance) {
		t.Helper()
		if _, err := i.Kill(); err != nil {
			t.Fatal(err)
		}
		<-i.Ended()
	}

	r.run(example[0].text)
	a := start("a")
	led("a")
	write(2)
	b := start("b")
	write(3)
	led("a", "b")
	kill(a)
	write(4)
	led("b")
	start("c")
	write(5)
	led("b", "c")
	kill(b)
	write(6)
	led("c")
	testenv.Eventually(t, func() bool { return r.number(`select count(*) from search_outbox_events where status <> 'done'`) == 0 }, "all shards are drained")
	var found struct{ Count int }
	if err := r.elastic.Do(t.Context(), "POST", "/"+r.index+"/_refresh", nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.elastic.Do(t.Context(), "GET", "/"+r.index+"/_count?q=event_version:6", nil, &found); err != nil || found.Count != entities {
		t.Errorf("got %d documents of version 6 (%v), want %d", found.Count, err, entities)
	}
	// On a busy machine a leader may lose its term, and win the next one.
	for _, args := range [][]string{{"shards", "list"}, {"status"}} {
		testenv.Eventually(t, func() bool { return r.fleet.Run(t.Context(), args...) == nil }, fmt.Sprintf("weft %v ends well", args))
	}
	weft("verify")
	r.run("delete from search_index where entity_id = md5('8')::uuid", "update search_index set text = 'behind the back' where entity_id = md5('9')::uuid")
	if err := r.fleet.Run(t.Context(), "verify"); err == nil {
		t.Error("verify after a row was removed and another changed behind weft's back: got equal")
	}
	weft("verify", "--repair", "--by", "alice", "--why", "a test")
	weft("verify")

	weft("rebuild", "search_index_to_elastic", "--by", "alice", "--why", "a test")
	behind := map[string]any{}
	if err := r.elastic.Do(t.Context(), "GET", "/_alias/"+r.index, nil, &behind); err != nil {
		t.Fatal(err)
	}
	for n := range shards {
		if _, there := behind[fmt.Sprintf("%s-shard-%d-v2", r.index, n)]; !there || len(behind) != shards {
			t.Errorf("index %s leads to %v, want the rebuilt index of each of %d shards", r.index, behind, shards)
			break
		}
	}
	weft("verify")
}

// inSchema is the URL with another search_path.
func (r *restore) inSchema(schema string) string {
	r.t.Helper()
	return searchPath(r.t, r.pool.Config().ConnString(), schema)
}

func searchPath(t *testing.T, address, schema string) string {
	t.Helper()
	in, err := postgres.InSchema(address, schema)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func (r *restore) number(sql string) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), sql).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return n
}
