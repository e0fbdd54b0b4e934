package daemon_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const outboxTable = "search_outbox_events"

// rig is a migrated database and an index of one test, and the instances that it
// starts on them, as a role with the least rights.
type rig struct {
	t          testing.TB
	url, index string
	elastic    string
	group      string
	pool       *pgxpool.Pool        // of the owner
	owner      string               // its user
	runner     *url.Userinfo        // of the instances, instead of the owner; nil for the owner
	reload     daemon.Reload        // of the instances that are started from now on
	beside     prometheus.Collector // in their registries, with what they register; nil for none
}

func setup(t testing.TB) *rig {
	t.Helper()
	dsn := testenv.Database(t)
	runner := testenv.Runner(t, dsn) // dropped after the pool is closed
	r := newRig(t, dsn)
	if u, err := url.Parse(dsn); err == nil {
		r.owner, r.runner = u.User.String(), runner
	}
	return r
}

func newRig(t testing.TB, url string) *rig {
	t.Helper()
	return &rig{
		t: t, url: url, index: testenv.Index(t), elastic: testenv.ElasticURL(t),
		group: "t" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12], pool: testenv.Pool(t, url),
	}
}

// logs keeps JSON log lines and lets a test wait for one. A line is parsed when a test asks for it,
// and nothing is copied for the many questions.
type logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *logs) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(line))
	return len(line), nil
}

func (l *logs) written() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines
}

// with returns the lines whose key has the value.
func (l *logs) with(key, value string) (out []map[string]any) {
	plain := !strings.ContainsAny(value, "\"\\<>&\n") // the line has it as it is
	for _, line := range l.written() {
		var m map[string]any
		if (!plain || strings.Contains(line, value)) && json.Unmarshal([]byte(line), &m) == nil && m[key] == value {
			out = append(out, m)
		}
	}
	return out
}

func (l *logs) all() string { return strings.Join(l.written(), "") }

// instance is one running daemon.
type instance struct {
	t    testing.TB
	name string
	logs *logs
	reg  *prometheus.Registry
	stop func() error // graceful; returns what Run returned
	done chan struct{}

	address func() string // waits for it
}

// start runs an instance in this process until the test ends.
func (r *rig) start(name string, env ...string) *instance {
	r.t.Helper()
	return r.run(r.config(name, env...))
}

func (r *rig) run(cfg config.Config) *instance {
	r.t.Helper()
	in := &instance{t: r.t, name: cfg.Instance, logs: &logs{}, done: make(chan struct{})}
	tel, err := telemetry.New(in.logs, telemetry.Options{Level: "debug", Group: r.group, Instance: in.name, Env: "test"})
	if err != nil {
		r.t.Fatal(err)
	}
	in.reg = tel.Registry
	if r.beside != nil {
		in.reg.MustRegister(r.beside)
	}
	in.address = sync.OnceValue(func() (addr string) {
		testenv.Eventually(in.t, func() bool {
			if lines := in.logs.with("msg", "serving"); len(lines) > 0 {
				addr, _ = lines[0]["address"].(string)
			}
			return addr != ""
		}, "the address of "+in.name)
		return addr
	})
	ctx, cancel := context.WithCancel(context.Background())
	var result error
	reload := r.reload
	go func() {
		defer close(in.done)
		result = daemon.Run(ctx, cfg, tel, "test", reload)
	}()
	in.stop = func() error { cancel(); <-in.done; return result }
	r.t.Cleanup(func() {
		err := in.stop()
		if r.t.Failed() {
			r.t.Logf("%s ended with %v, and its log is:\n%s", in.name, err, in.logs.all())
		}
	})
	return in
}

func (r *rig) config(name string, env ...string) config.Config {
	r.t.Helper()
	return r.load(append(r.environ(name), env...))
}

func (r *rig) environ(name string) []string {
	dsn := r.url
	if u, err := url.Parse(dsn); err == nil && r.runner != nil && u.User.String() == r.owner {
		dsn = testenv.As(r.t, dsn, r.runner)
	}
	return []string{
		"DATABASE_URL=" + dsn, "ELASTIC_URL=" + r.elastic, "ELASTIC_INDEX=" + r.index, "WEFT_GROUP=" + r.group,
		"WEFT_INSTANCE=" + name, "OUTBOX_METRICS_PORT=0", "WEFT_LOG_LEVEL=debug", "OUTBOX_BASE_BACKOFF_SECONDS=0.05", "OUTBOX_MAX_BACKOFF_SECONDS=0.5",
		"WEFT_LEADER_TRUST=20s", "WEFT_LEADER_IDLE_SESSION=25s", // so that a machine that stands still for a moment ends no term
	}
}

func (r *rig) load(environ []string) config.Config {
	r.t.Helper()
	cfg, err := config.Load(config.Options{Environ: environ})
	if err != nil {
		r.t.Fatal(err)
	}
	return cfg
}

// get returns the status and the body of an endpoint.
func (in *instance) get(path string) (int, string) {
	in.t.Helper()
	req, err := http.NewRequestWithContext(in.t.Context(), http.MethodGet, "http://"+in.address()+path, nil)
	if err != nil {
		in.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	resp, err := client.Do(req)
	if err != nil {
		in.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		in.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (in *instance) awaitReady(want int, contains ...string) {
	in.t.Helper()
	testenv.Eventually(in.t, func() bool {
		status, body := in.get("/health/ready")
		for _, c := range contains {
			if !strings.Contains(body, c) {
				return false
			}
		}
		return status == want
	}, fmt.Sprintf("readiness %d of %s with %q", want, in.name, contains))
}

// metric returns the sum of the series of name whose labels contain all of match.
func (in *instance) metric(name string, match ...string) (sum float64) {
	in.t.Helper()
	_, body := in.get("/metrics")
	sc := bufio.NewScanner(strings.NewReader(body))
	sc.Buffer(nil, 1<<20)
lines:
	for sc.Scan() {
		line := sc.Text()
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		for _, m := range match {
			if !strings.Contains(line, m) {
				continue lines
			}
		}
		var v float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v); err == nil {
			sum += v
		}
	}
	return sum
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(context.Background(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// change is what an application does to one entity: its row and the event in one
// transaction.
type change struct {
	key     outbox.Key
	version int64
	op      outbox.Op
	text    string
}

// upsert writes a document.
func (r *rig) upsert(key outbox.Key, version int64, text string) {
	r.t.Helper()
	r.write(change{key, version, outbox.Upsert, text})
}

func (r *rig) remove(key outbox.Key, version int64) {
	r.t.Helper()
	r.write(change{key, version, outbox.Delete, ""})
}

// write commits all changes in one transaction.
func (r *rig) write(changes ...change) {
	r.t.Helper()
	if err := r.tryWrite(context.Background(), changes...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) tryWrite(ctx context.Context, changes ...change) error {
	var rows pgx.Batch
	events := make([]outbox.NewEvent, len(changes))
	for i, c := range changes {
		if c.op == outbox.Delete {
			rows.Queue("delete from search_index where entity_type = $1 and entity_id = $2", c.key.Type, &c.key.ID)
		} else {
			rows.Queue(`insert into search_index (entity_type, entity_id, text, snippet, rank_score, event_version)
				values ($1, $2, $3, left($3, 200), 1, $4)
				on conflict (entity_type, entity_id) do update set text = excluded.text, snippet = excluded.snippet, event_version = excluded.event_version`,
				c.key.Type, &c.key.ID, c.text, c.version)
		}
		events[i] = outbox.NewEvent{Key: c.key, Op: c.op, Version: c.version}
	}
	return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		if err := tx.SendBatch(ctx, &rows).Close(); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, outboxTable, events...)
	})
}

// counts returns how many events have which status, with those in flight as processing.
func (r *rig) counts() map[string]int {
	r.t.Helper()
	rows, err := r.pool.Query(context.Background(), "select status, count(*) from search_outbox_events_live group by 1")
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	out := map[string]int{}
	for rows.Next() {
		var s string
		var n int
		if err := rows.Scan(&s, &n); err != nil {
			r.t.Fatal(err)
		}
		out[s] = n
	}
	return out
}

func (r *rig) await(want map[string]int) {
	r.t.Helper()
	testenv.Eventually(r.t, func() bool { return maps.Equal(r.counts(), want) }, fmt.Sprintf("counts %v", want))
}

// document returns what Elasticsearch holds of a key: found, its version, its body.
func (r *rig) document(key outbox.Key) (found bool, version int64, source map[string]any) {
	r.t.Helper()
	var doc struct {
		Found   bool           `json:"found"`
		Version int64          `json:"_version"`
		Source  map[string]any `json:"_source"`
	}
	r.elasticCall(http.MethodGet, "/"+r.index+"/_doc/"+url.PathEscape(key.String()), "", &doc)
	return doc.Found, doc.Version, doc.Source
}

func (r *rig) elasticCall(method, path, body string, into any) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, r.elastic+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if into == nil {
		if resp.StatusCode >= 300 {
			text, _ := io.ReadAll(resp.Body)
			r.t.Fatalf("%s %s: %s: %s", method, path, resp.Status, text)
		}
		return
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		r.t.Fatal(err)
	}
}

// link is a way to a server that can be cut.
type link struct {
	*proxy.Link
	t testing.TB
}

func newLink(t testing.TB, upstream string) *link {
	t.Helper()
	l, err := proxy.NewLink(upstream)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &link{l, t}
}

// through returns raw with its host replaced by the link's.
func (l *link) through(raw string) string {
	l.t.Helper()
	return replaceHost(l.t, raw, l.Addr())
}

// cut ends all connections and refuses new ones.
func (l *link) cut() {
	l.t.Helper()
	if err := l.Cut(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *link) heal() {
	l.t.Helper()
	if err := l.Heal(); err != nil {
		l.t.Error(err)
	}
}

func replaceHost(t testing.TB, raw, host string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = host
	return u.String()
}

func host(t testing.TB, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func newKey() outbox.Key { return outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())} }
