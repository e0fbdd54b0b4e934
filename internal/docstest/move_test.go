package docstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// TestMovingAShard follows docs/scaling.md with a PostgreSQL of its own as the other server: an
// application writes while a shard moves, learns from a refusal where it is, and goes on there.
func TestMovingAShard(t *testing.T) {
	t.Parallel()
	const shards, entities, moved = 4, 200, 3
	page := document(t, "docs/scaling.md")
	steps := page.in("Moving a shard", "sh")
	if len(steps) != 3 {
		t.Fatalf("%s: got %d blocks of commands about a move, want to move, to tell, and to look", page.name, len(steps))
	}
	servers, err := stack.Start(t.Context(), stack.Options{Progress: io.Discard, Quick: true, ElasticURL: testenv.ElasticURL(t), Versions: stack.Versions{PostgresMajor: testenv.PostgresMajor(t)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := servers.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	r := newRestore(t)
	r.run("create schema app")
	base, other := r.inSchema("app"), searchPath(t, servers.DatabaseURL(), "app")
	r.pool = testenv.Pool(t, base)
	there := testenv.Pool(t, other)
	if _, err := there.Exec(t.Context(), "create role weft"); err != nil {
		t.Fatal(err)
	}
	r.fleet.Env = append(r.fleet.Env, "DATABASE_URL="+base, "ELASTIC_INDEX="+r.index, fmt.Sprintf("WEFT_SHARDS=%d", shards), "DB2="+other)
	r.command(fmt.Sprintf("weft shards create %d", shards), 0)
	for _, name := range []string{"a", "b"} {
		r.instance(name)
	}

	app := newMover(t, r.pool, there, shards, entities)
	app.start()
	app.wrote(3)
	before := app.writes(moved)
	r.command(steps[0].text, 0)
	r.command("weft shards list", 1) // its settings are the old ones
	r.command(fmt.Sprintf("weft status --shard %d", moved), 1)
	app.wrote(app.version() + 3)
	r.fleet.Env = append(r.fleet.Env, "WEFT_SHARD_SERVERS="+fmt.Sprintf("%d=%s", moved, other))
	r.command(steps[1].text, 0)
	if err := r.fleet.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"c", "d"} {
		r.instance(name)
	}
	app.wrote(app.version() + 3)
	app.stop()
	if app.refused != 1 || app.writes(moved) <= before {
		t.Errorf("the application was refused %d times and then wrote %d times, want to learn the new home at once", app.refused, app.writes(moved)-before)
	}

	open := func(pool *pgxpool.Pool) (n int) {
		if err := pool.QueryRow(t.Context(), "select count(*) from search_outbox_events where status <> 'done'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	testenv.Eventually(t, func() bool { return open(r.pool)+open(there) == 0 }, "both servers are drained")
	var events int
	for _, pool := range []*pgxpool.Pool{r.pool, there} {
		n := 0
		if err := pool.QueryRow(t.Context(), "select count(distinct id) from search_outbox_events").Scan(&n); err != nil {
			t.Fatal(err)
		}
		events += n
	}
	if want := app.version() * entities; events != want {
		t.Errorf("got %d events in both servers, want the %d that were written, each once", events, want)
	}
	if err := r.elastic.Do(t.Context(), "POST", "/"+r.index+"/_refresh", nil, nil); err != nil {
		t.Fatal(err)
	}
	var found struct{ Count int }
	if err := r.elastic.Do(t.Context(), "GET", fmt.Sprintf("/%s/_count?q=event_version:%d", r.index, app.version()), nil, &found); err != nil || found.Count != entities {
		t.Errorf("got %d documents of version %d (%v), want %d", found.Count, app.version(), err, entities)
	}
	led := func() {
		t.Helper()
		testenv.Eventually(t, func() bool { return r.fleet.Run(t.Context(), "shards", "list") == nil }, "all shards are led")
	}
	led()
	r.command(steps[2].text, 0)
	r.command("weft verify", 0)
	led()
	var rows []struct {
		Shard  int
		Server string
		Home   string
	}
	out, err := r.fleet.Output(t.Context(), "shards", "list", "--json")
	if err == nil {
		err = json.Unmarshal(out, &rows)
	}
	if err != nil || len(rows) != shards || rows[moved].Server != app.address(1) || rows[0].Server != app.address(0) || rows[moved].Home != "" {
		t.Errorf("weft shards list --json: got %+v, %v", rows, err)
	}
}

// instance starts one and waits until it is ready.
func (r *restore) instance(name string) {
	r.t.Helper()
	i, err := r.fleet.Start(r.t.Context(), name)
	if err == nil {
		err = i.Ready(r.t.Context())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// mover is an application that knows two servers, and which shards are on which.
type mover struct {
	t     *testing.T
	pools []*pgxpool.Pool
	of    [][]string // the entities of each shard
	done  sync.WaitGroup

	mu      sync.Mutex
	home    []int // the server of each shard
	at      []int // the version that each shard has
	refused int
	final   int // the version that all end with; 0 while they go on
}

func newMover(t *testing.T, here, there *pgxpool.Pool, shards, entities int) *mover {
	t.Helper()
	m := &mover{t: t, pools: []*pgxpool.Pool{here, there}, of: make([][]string, shards), home: make([]int, shards), at: make([]int, shards)}
	rows, err := here.Query(t.Context(), "select weft_shard_of(md5(x::text)::uuid), md5(x::text)::uuid::text from generate_series(1, $1) x", entities)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		var id string
		if err := rows.Scan(&n, &id); err != nil {
			t.Fatal(err)
		}
		m.of[n] = append(m.of[n], id)
	}
	return m
}

func (m *mover) address(server int) string {
	return postgres.Address(&m.pools[server].Config().ConnConfig.Config)
}

// start writes all entities of each shard, version after version, a goroutine for each shard. They
// end with the test at the latest, before its pools are closed.
func (m *mover) start() {
	ctx, cancel := context.WithCancel(context.Background())
	m.t.Cleanup(func() {
		cancel()
		m.done.Wait()
	})
	for n := range m.of {
		m.done.Go(func() {
			for range testenv.Every(ctx, 50*time.Millisecond) {
				if !m.goesOn(n) {
					return
				}
				if err := m.write(ctx, n); err != nil && ctx.Err() == nil {
					m.t.Errorf("shard %d: %v", n, err)
					return
				}
			}
		})
	}
}

func (m *mover) goesOn(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.final == 0 || m.at[n] < m.final
}

func (m *mover) lowest() int {
	low := m.at[0]
	for _, v := range m.at {
		low = min(low, v)
	}
	return low
}

func (m *mover) highest() int {
	high := 0
	for _, v := range m.at {
		high = max(high, v)
	}
	return high
}

// write gives the entities of a shard their next version where the shard was last, or else where the
// refusal says that it is.
func (m *mover) write(ctx context.Context, n int) error {
	m.mu.Lock()
	server, version := m.home[n], m.at[n]+1
	m.mu.Unlock()
	_, err := m.pools[server].Exec(ctx, `with rows as (
			insert into search_index (entity_type, entity_id, text, event_version) select 'book', id::uuid, 'version ' || $2::int, $2 from unnest($1::text[]) id
			on conflict (entity_type, entity_id) do update set text = excluded.text, event_version = excluded.event_version returning *)
		insert into search_outbox_events (entity_type, entity_id, op, event_version) select entity_type, entity_id, 'upsert', event_version from rows`, m.of[n], version)
	m.mu.Lock()
	defer m.mu.Unlock()
	if away, ok := errors.AsType[*pgconn.PgError](err); ok && away.Code == "WF005" && away.Detail == m.address(1-server) && strings.HasSuffix(away.Message, ": write there") {
		m.home[n], m.refused = 1-server, m.refused+1
		return nil
	}
	if err == nil {
		m.at[n] = version
	}
	return err
}

// wrote waits until every shard has a version.
func (m *mover) wrote(version int) {
	m.t.Helper()
	testenv.Eventually(m.t, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.lowest() >= version }, fmt.Sprintf("all shards have version %d", version))
}

// stop brings all shards to one version, which none of them has begun yet, and ends.
func (m *mover) stop() {
	m.mu.Lock()
	m.final = m.highest() + 2
	m.mu.Unlock()
	m.done.Wait()
}

func (m *mover) version() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.highest()
}

func (m *mover) writes(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at[n]
}
