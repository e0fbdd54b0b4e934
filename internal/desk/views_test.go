package desk

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	deadID    = "00000000-0000-0000-0000-00000000dead"
	waitingID = "00000000-0000-0000-0000-000000000429"
	readyID   = "00000000-0000-0000-0000-000000000001"
)

// fill writes an event of each kind, two ended terms and an entry of the audit.
func (r *rig) fill(t *testing.T) {
	t.Helper()
	r.exec(t, `
		insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, attempts, error_reason, error, next_retry_at, behind)
		values ('`+deadID+`', 'book', gen_random_uuid(), 'upsert', 1, 'failed', 4, 'es_4xx', 'mapper_parsing_exception: Price', null, null),
		       ('`+waitingID+`', 'tag', '00000000-0000-0000-0000-0000000000e1', 'upsert', 2, 'pending', 3, 'es_429', null, now() + interval '1 hour', null),
		       (gen_random_uuid(), 'tag', '00000000-0000-0000-0000-0000000000e1', 'upsert', 3, 'pending', 0, null, null, now() + interval '2 hours', 2),
		       ('`+readyID+`', 'tag', gen_random_uuid(), 'upsert', 4, 'pending', 0, null, null, null, null)`)
	r.exec(t, `insert into weft_lease (batch, table_name, group_name, owner, epoch, leased_at, lease_until, uuids)
		values ('00000000-0000-0000-0000-0000000ba7c4', 'search_outbox_events', 'books', 'a', 3, now(), now() + interval '30 s', '{`+readyID+`}')`)
	r.exec(t, `insert into weft_term values ('books', 1, 'old-one', now() - interval '2 days', now() - interval '1 day', 'trust_expired'),
		('books', 2, 'b', now() - interval '1 day', now() - interval '1 hour', 'resigned'), ('other', 9, 'stranger', now(), null, null)`)
	r.exec(t, `insert into weft_instance values ('books', 'b', 'standby', '1.2.3', 'host-b', 12, '10.0.0.2:9108', now(), now())`)
	r.exec(t, `insert into weft_audit (actor, action, why, projection, count) values ('alice', 'replay', 'mapping fixed', 'search_index_to_elastic', 7)`)
	r.exec(t, `insert into weft_verify (projection, part, entity_type, entity_id, report, began_at, updated_at)
		values ('search_index_to_elastic', 'scrub', 'book', 'b-17', '{"rows":170,"documents":169,"missing":1}', now(), now())`)
}

func TestOverviewOfLeaderAndOfStandby(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fill(t)
	r.lead(t, "a", 3)
	r.health.SetRole(admin.Leader, 3)
	r.health.SetProjection("search_index_to_elastic", admin.Outage, "es_connect: connection refused")
	both := []string{"<bdi>a</bdi></strong> leads since", "epoch 3", "host-b", "could not prove its leadership in time", "asked for a hand-over", "old-one",
		">2</dd>", waitingID, "tag:00000000-0000-0000-0000-0000000000e1", "00000000-0000-0000-0000-0000000ba7c4", "es_429", "170 rows, 169 documents, 1 missing", "book:b-17", `/failed?projection=search_index_to_elastic">1</a>`}
	body := r.page(t, "/")
	has(t, "overview of the leader", body, both...)
	has(t, "overview of the leader", body, "is the leader.", "its destination takes no writes", "es_connect: connection refused", runbooks+"elasticsearch-down.md", "The last hour of this instance")
	if strings.Contains(body, "stranger") {
		t.Error("overview shows a term of another group")
	}

	standby := setup(t, func(o *Options) { o.DB, o.Health = r.pool, admin.NewHealth("books", "b") })
	standby.o.Health.SetRole(admin.Standby, 3)
	body = standby.page(t, "/")
	has(t, "overview of the standby", body, both...)
	has(t, "overview of the standby", body, "does not lead; it is a standby since", "the leader knows", "idle: this instance does not lead")

	var o Overview
	if err := json.Unmarshal([]byte(standby.page(t, "/api/")), &o); err != nil {
		t.Fatal(err)
	}
	if o.Instance.Role != admin.Standby || o.Status.Leader == nil || o.Status.Leader.Instance != "a" || len(o.Terms) != 3 || o.Terms[2].Reason != "trust_expired" ||
		len(o.Projections) != 2 || len(o.Projections[0].Waiting) != 1 || o.Projections[0].Waiting[0].Behind != 1 || o.Projections[0].Batches[0].Events != 1 || o.Projections[0].Blocked != nil {
		t.Errorf("JSON of the standby: got %+v", o)
	}
}

// TestOverviewSaysOrMoreOfTheCountsThatEndAtTheLimitAlone: discarded events stay for ever, and make no other count uncertain.
func TestOverviewSaysOrMoreOfTheCountsThatEndAtTheLimitAlone(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *Options) { o.Scope.Most = 3 })
	r.dead(t, 5)
	r.exec(t, "update search_outbox_events set discarded_at = now(), discarded_by = 'alice', discarded_reason = 'test data' where event_version > 1")
	has(t, "overview with many discarded", r.page(t, "/"), "<dt>Lag</dt><dd>0</dd>", "<dt>Ready</dt><dd>0</dd>", `search_index_to_elastic">1</a>`, "<dt>Discarded</dt><dd>3 or more</dd>")
}

// TestOverviewStaysShortWithManyQuarantines: what comes below them is still found, and the page is sent anew every five seconds.
func TestOverviewStaysShortWithManyQuarantines(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.exec(t, "insert into weft_quarantine select 'books', 'search_index_to_elastic', 'book', 'b-' || x, now(), 'alice', 'INC-7' from generate_series(1, 5) x")
	if body := r.page(t, "/"); strings.Count(body, "INC-7") != 5 || strings.Contains(body, "Five of them") {
		t.Errorf("five: got %s", body)
	}
	r.reader.expire()
	r.exec(t, "insert into weft_quarantine select 'books', 'search_index_to_elastic', 'book', 'b-' || x, now(), 'alice', 'INC-7' from generate_series(6, 1000) x")
	body := r.page(t, "/")
	has(t, "overview", body, "1000 entities wait in quarantine. Five of them follow")
	if n := strings.Count(body, "INC-7"); n != 5 {
		t.Errorf("got %d of them, want 5", n)
	}
	if n := strings.Count(r.page(t, "/api/"), "INC-7"); n != 1000 {
		t.Errorf("JSON has %d of them, want 1000", n)
	}
}

func TestOverviewShowsTheMapOfShards(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *Options) {
		o.Shards = func() []Shard {
			return []Shard{{Schema: "shard_0", Group: "books-shard-0", Leader: "a", Here: true}, {Number: 1, Schema: "shard_1", Group: "books-shard-1", Server: "db2:5432/books", Page: "http://127.0.0.1:9110/"}}
		}
	})
	has(t, "overview", r.page(t, "/"), "0, this page", `<a href="http://127.0.0.1:9110/">1</a>`, "<td>nobody</td>", "books-shard-1", "db2:5432/books")
	has(t, "overview as JSON", r.page(t, "/api/"), `"schema": "shard_1"`)
}

func TestOverviewSaysThatNobodyLeads(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.health.SetRole(admin.Standby, 0)
	has(t, "overview", r.page(t, "/"), "Nobody leads.", "nobody, ever", runbooks+"no-leader.md")
}

func TestOverviewWithoutDatabaseSaysWhy(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fill(t)
	has(t, "overview", r.page(t, "/"), "host-b")
	r.pool.Close()
	r.reader.mu.Lock()
	r.reader.triedAt = time.Time{}
	r.reader.mu.Unlock()
	has(t, "overview", r.page(t, "/"), "What follows is older.", "host-b")
	if code, _, _ := r.get(t, "/audit"); code != http.StatusServiceUnavailable {
		t.Errorf("audit: got %d, want 503", code)
	}
}

// What was never read is not shown as none.
func TestOverviewBeforeTheFirstReadingClaimsNothing(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.pool.Close()
	body := r.page(t, "/")
	has(t, "overview", body, "Nothing was read yet.", "Who leads is not known.", "not known</td>", "Its events were not counted yet.")
	for _, claim := range []string{"Nobody leads", "nobody, ever", "none was seen", "<dt>Lag</dt>", "What follows is older"} {
		if strings.Contains(body, claim) {
			t.Errorf("the overview claims %q", claim)
		}
	}
	for path, claim := range map[string]string{"/failed": "0 dead letters", "/audit": "nothing</td>"} {
		if code, _, body := r.get(t, path); code != http.StatusServiceUnavailable || strings.Contains(body, claim) {
			t.Errorf("%s: got %d, and it claims %q: %v", path, code, claim, strings.Contains(body, claim))
		}
	}
}

func TestEveryPageHasItsJSON(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fill(t)
	for path, want := range map[string]string{"": `"lock_key"`, "failed": `"total": 1`, "event?id=" + deadID: `"place": "failed"`, "audit": `"why": "mapping fixed"`, "settings": `"key": "desk.listen"`} {
		byPath := r.page(t, "/api/"+path)
		_, header, byHeader := r.get(t, "/"+path, func(req *http.Request) { req.Header.Set("Accept", "application/json") })
		if header.Get("Content-Type") != "application/json" || !json.Valid([]byte(byHeader)) || !strings.Contains(byHeader, want) || !strings.Contains(byPath, want) {
			t.Errorf("%s: want %s, got %s: %s", path, want, header.Get("Content-Type"), byHeader)
		}
		if _, header, _ = r.get(t, "/"+path, func(req *http.Request) { req.Header.Set("Accept", "text/html,application/json;q=0.1") }); !strings.HasPrefix(header.Get("Content-Type"), "text/html") {
			t.Errorf("%s for a browser: got %s", path, header.Get("Content-Type"))
		}
	}
}

func TestDeadLettersByFilter(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fill(t)
	for query, want := range map[string]int{
		"": 1, "reason=es_4xx": 1, "reason=es_429": 0, "reason=none": 0, "entity=book": 1, "entity=tag": 0, "since=1h": 1, "until=1h": 0, "text=PRICE": 1, "text=%25": 0, "text=nope": 0,
		"projection=chronicle_events_to_entries": 0, "projection=search_index_to_elastic&reason=es_4xx&entity=book&text=mapper": 1,
	} {
		if got := strings.Count(r.page(t, "/failed?"+query), "/event?id="); got != want {
			t.Errorf("%q: got %d, want %d", query, got, want)
		}
	}
	for query, want := range map[string]string{
		"projection=nope": "this instance has", "reason=nope": "none of the reasons", "entity=book:": "the id is missing", "entity=book:17": "want a uuid here",
		"since=yesterday": "want a duration", "after=x": "no place in a list", "text=" + strings.Repeat("x", 201): "at most 200 bytes",
	} {
		code, _, body := r.get(t, "/failed?"+query)
		if code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%q: got %d, want 400 and %q", query, code, want)
		}
	}
}

func TestEventIsTold(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fill(t)
	r.lead(t, "a", 3)
	has(t, "dead letter", r.page(t, "/event?id="+deadID), "failed: a dead letter since", "mapper_parsing_exception: Price", "weft replay "+deadID)
	has(t, "waiting event", r.page(t, "/event?id="+waitingID), "waits for its retry time", "es_429")
	has(t, "event in flight", r.page(t, "/event?id="+readyID), "in flight: batch 00000000-0000-0000-0000-0000000ba7c4 of a, epoch 3")
	for id, want := range map[string]int{"nonsense": 400, "4711": 400, "00000000-0000-0000-0000-0000000000ff": 404} {
		if code, _, _ := r.get(t, "/event?id="+id); code != want {
			t.Errorf("event %s: got %d, want %d", id, code, want)
		}
	}
}

func TestAuditPages(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.exec(t, `insert into weft_audit (actor, action, why, count) select 'bob', 'reclaim', 'because ' || n, n from generate_series(1, 120) n`)
	seen, path := 0, "/api/audit?by=bob"
	for pages := 0; ; pages++ {
		var a auditView
		if err := json.Unmarshal([]byte(r.page(t, path)), &a); err != nil || pages > 3 {
			t.Fatal(pages, err)
		}
		if seen += len(a.Entries); a.Next == 0 {
			break
		}
		path = "/api/audit?by=bob&before=" + strconv.FormatInt(a.Next, 10)
	}
	if seen != 120 {
		t.Errorf("got %d entries, want 120", seen)
	}
	if got := strings.Count(r.page(t, "/audit?action=prune"), "because"); got != 0 {
		t.Errorf("another action: got %d entries", got)
	}
}

func TestNoAnswerHoldsASecret(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fill(t)
	has(t, "settings", r.page(t, "/settings"), "database.url", "elastic.api_key", "env DATABASE_URL")
	for _, path := range paths {
		if _, _, body := r.get(t, path); strings.Contains(body, secret) {
			t.Errorf("%s holds a secret", path)
		}
	}
}

func TestTextsFromTheDatabaseAreInert(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const hostile = `<script>alert(1)</script><img src=x onerror=alert(2)>" onmouseover="x`
	text := hostile + "\u202egnp.exe\u2066 \x1b[31mred\x1b[0m \u200b\u061c"
	if _, err := r.pool.Exec(t.Context(), `insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, error_reason, error, last_replayed_by, replay_count)
		values ('`+deadID+`', '<b>'||chr(8238), gen_random_uuid(), 'upsert', 1, 'failed', left($1, 80), $1, $1, 1), (gen_random_uuid(), $2, gen_random_uuid(), 'upsert', 2, 'pending', $2, null, null, 0)`,
		text, "\u202e<i>"); err != nil {
		t.Fatal(err)
	}
	r.exec(t, `update search_outbox_events set next_retry_at = now() + interval '1 hour' where status = 'pending'`)
	for _, sql := range []string{`insert into weft_audit (actor, action, why, count) values (left($1, 100), 'replay', $1, 1)`,
		`insert into weft_instance values ('books', left($1, 100), 'standby', $1, $1, 1, $1, now(), now())`,
		`insert into weft_term values ('books', 1, left($1, 100), now(), now(), left($1, 70))`} {
		if _, err := r.pool.Exec(t.Context(), sql, text); err != nil {
			t.Fatal(err)
		}
	}
	r.health.SetProjection("search_index_to_elastic", admin.Paused, text)
	o := r.reader.overview(t.Context(), r.samples)
	streamed, err := r.parts(o)
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]string{}
	for _, p := range streamed {
		bodies["stream: "+p.ID] = p.HTML
	}
	for _, path := range []string{"/", "/failed", "/event?id=" + deadID, "/audit", "/failed?text=" + url.QueryEscape(text)} {
		_, _, bodies[path] = r.get(t, path)
	}
	for what, body := range bodies {
		for _, bad := range []string{"<script>alert", "<img", `" onmouseover`, "<b>", "<i>", "\u202e", "\u2066", "\x1b", "\u200b", "\u061c"} {
			if strings.Contains(strings.ReplaceAll(body, "<b>none</b>", ""), bad) {
				t.Errorf("%s holds %q", what, bad)
			}
		}
	}
	for _, path := range []string{"/", "/failed", "/event?id=" + deadID, "/audit"} {
		if _, _, body := r.get(t, "/api"+path); !json.Valid([]byte(body)) || strings.ContainsAny(body, "\x1b\u202e\u2066\u200b") {
			t.Errorf("/api%s is no inert JSON: %q", path, body)
		}
	}
	has(t, "dead letters", bodies["/failed"], "&lt;script&gt;alert(1)", `\u{202e}gnp.exe`, `\u{1b}[31mred`)
	has(t, "stream", bodies["stream: state-search_index_to_elastic"], "&lt;script&gt;")
}

// TestAllAssetsAndTheLargestPageAreSmall holds the size of everything that a viewer loads.
func TestAllAssetsAndTheLargestPageAreSmall(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fill(t)
	done := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "outbox_processed_total", Help: "Events."}, []string{"projection", "op"})
	lag := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "outbox_lag_events", Help: "Lag."}, []string{"projection"})
	r.reg.MustRegister(done, lag)
	now := time.Now()
	for i := range sampleCount + 10 {
		for _, tab := range r.o.Scope.Tables {
			done.WithLabelValues(tab.Projection, "upsert").Add(float64(i * 7919 % 104729))
			lag.WithLabelValues(tab.Projection).Set(float64(i * 7919 % 104729))
		}
		r.samples.take(now.Add(time.Duration(i-sampleCount-10) * sampleEvery))
	}
	page := r.page(t, "/")
	has(t, "overview", page, "Lag, last hour, now: not finished", "Throughput, last hour", `<path class="line line-0" d="M`)
	size := len(page)
	err := fs.WalkDir(assets, "static", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(assets, path)
		size += len(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if const150 := 150_000; size > const150 {
		t.Errorf("got %d bytes, want at most %d", size, const150)
	}
}

// planned runs each query a second time under EXPLAIN ANALYZE and keeps the largest number of
// rows that one node of a plan has returned.
type planned struct {
	outbox.DB
	t    *testing.T
	rows float64
}

func (p *planned) explain(ctx context.Context, sql string, args []any) {
	rows, err := p.DB.Query(ctx, "explain (analyze, costs off, timing off, summary off) "+sql, args...)
	if err != nil {
		p.t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		p.t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`actual rows=([0-9.]+)`).FindAllStringSubmatch(strings.Join(lines, "\n"), -1) {
		n, _ := strconv.ParseFloat(m[1], 64)
		p.rows = max(p.rows, n)
	}
}

func (p *planned) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	p.explain(ctx, sql, args)
	return p.DB.Query(ctx, sql, args...)
}

func (p *planned) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	p.explain(ctx, sql, args)
	return p.DB.QueryRow(ctx, sql, args...)
}

func TestHundredThousandDeadLettersArePagedByIndex(t *testing.T) {
	t.Parallel()
	p := &planned{t: t}
	r := setup(t, func(o *Options) { p.DB, o.DB = o.DB, p })
	r.exec(t, `insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, error_reason, error, updated_at)
		select gen_random_uuid(), 'book', gen_random_uuid(), 'upsert', n, 'failed', 'es_4xx', 'no', now() - (n / 7) * interval '1 second' from generate_series(1, 100000) n`)
	r.exec(t, "analyze search_outbox_events")
	seen, path, last := map[string]bool{}, "/api/failed", time.Now().Add(time.Hour)
	for range 20 {
		var l lettersView
		if err := json.Unmarshal([]byte(r.page(t, path)), &l); err != nil {
			t.Fatal(err)
		}
		if l.Total != countMost || !l.AtLeast || len(l.Listed) != pageSize {
			t.Fatalf("%s: got %d listed of %d", path, len(l.Listed), l.Total)
		}
		for _, d := range l.Listed {
			if seen[d.ID] || d.FailedAt.After(last) {
				t.Fatalf("%s: %s at %s is out of order or there twice", path, d.ID, d.FailedAt)
			}
			seen[d.ID], last = true, *d.FailedAt
		}
		path = "/api/failed?after=" + url.QueryEscape(l.Next)
	}
	if len(seen) != 20*pageSize {
		t.Errorf("got %d dead letters, want %d", len(seen), 20*pageSize)
	}
	if p.rows == 0 || p.rows > countMost {
		t.Errorf("a step of a query returned %v rows, want at most %d", p.rows, countMost)
	}
	has(t, "dead letters", r.page(t, "/failed"), fmt.Sprintf("%d or more dead letters", countMost), "Next page")
}
