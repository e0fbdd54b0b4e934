package docstest

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// TestShards deals entities out as docs/scaling.md says: each shard has a leader, all
// documents are in one index, and the loss of one leader holds up no other shard.
func TestShards(t *testing.T) {
	t.Parallel()
	const shards, entities = 2, 1000
	page := document(t, "docs/scaling.md")
	function := page.in("Shards by entity", "sql")
	if len(function) != 1 {
		t.Fatalf("%s: got %d blocks of SQL about shards, want the function", page.name, len(function))
	}
	r := newRestore(t)
	r.run(function[0].text)

	start := func(name string, n int) *rig.Instance {
		t.Helper()
		i, err := r.fleet.Start(t.Context(), name, "ELASTIC_INDEX="+r.index, fmt.Sprintf("WEFT_GROUP=shard-%d", n), "DATABASE_URL="+r.inSchema(n))
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	first := make([]*rig.Instance, shards)
	for n := range shards {
		r.run(fmt.Sprintf("create schema shard_%d", n))
		cmd := exec.CommandContext(t.Context(), r.fleet.Binary, "migrate", "up")
		cmd.Env = rig.Environment(os.Environ(), true, "DATABASE_URL="+r.inSchema(n))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("migrate shard %d: %v\n%s", n, err, out)
		}
		first[n] = start(fmt.Sprintf("a%d", n), n)
		if err := first[n].Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	write := func(n, version int) {
		t.Helper()
		r.run(fmt.Sprintf(`with rows as (
			insert into shard_%[1]d.search_index (entity_type, entity_id, text, event_version)
			select 'book', e, 'version %[2]d', %[2]d from generate_series(1, %[3]d) x, lateral (select md5(x::text)::uuid) y(e)
			where shard_of('book', e, %[4]d) = %[1]d
			on conflict (entity_type, entity_id) do update set text = excluded.text, event_version = excluded.event_version
			returning *)
			insert into shard_%[1]d.search_outbox_events (entity_type, entity_id, op, event_version)
			select entity_type, entity_id, 'upsert', event_version from rows`, n, version, entities, shards))
	}
	carried := func(n, version int) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() bool {
			return r.number(fmt.Sprintf(`select count(*) from shard_%d.search_outbox_events where status <> 'done'`, n)) == 0
		}, fmt.Sprintf("shard %d is drained", n))
		if got := r.number(fmt.Sprintf(`select count(*) from shard_%d.search_outbox_events where event_version = %d`, n, version)); got < entities/shards-100 {
			t.Errorf("shard %d has %d of %d entities", n, got, entities)
		}
	}
	for n := range shards {
		write(n, 1)
	}
	for n := range shards {
		carried(n, 1)
		if got := r.number(fmt.Sprintf(`select epoch from shard_%d.weft_leader where group_name = 'shard-%d' and released_at is null`, n, n)); got != 1 {
			t.Errorf("shard %d is in epoch %d, want its first leader", n, got)
		}
	}

	if _, err := first[0].Kill(); err != nil {
		t.Fatal(err)
	}
	<-first[0].Ended()
	for n := range shards {
		write(n, 2)
	}
	carried(1, 2)
	start("b0", 0)
	carried(0, 2)
	for n, want := range []int{2, 1} {
		if got := r.number(fmt.Sprintf(`select epoch from shard_%d.weft_leader`, n)); got != want {
			t.Errorf("shard %d is in epoch %d, want %d", n, got, want)
		}
	}
	var found struct{ Count int }
	if err := r.elastic.Do(t.Context(), "POST", "/"+r.index+"/_refresh", nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.elastic.Do(t.Context(), "GET", "/"+r.index+"/_count?q=event_version:2", nil, &found); err != nil || found.Count != entities {
		t.Errorf("got %d documents of version 2 (%v), want %d", found.Count, err, entities)
	}
}

// inSchema is the URL with a schema of its own, as the page writes it.
func (r *restore) inSchema(n int) string {
	r.t.Helper()
	u, err := url.Parse(r.pool.Config().ConnString())
	if err != nil {
		r.t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", fmt.Sprintf("shard_%d", n))
	u.RawQuery = q.Encode()
	return u.String()
}

func (r *restore) number(sql string) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), sql).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return n
}
