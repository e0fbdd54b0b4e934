package runbooks

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/labtest"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	table, group, me   = "search_outbox_events", "g", "me"
	epoch, maxReclaims = 7, 10
)

// TestStateMachine holds that the pictures of an event's life are the ones that the
// statements on the outbox table make. Every statement meets a row in every state; what
// it does to them is read from the table.
func TestStateMachine(t *testing.T) {
	t.Parallel()
	w := watch(t)
	seen, columns := map[edge]bool{}, map[string]string{}
	for name, act := range w.acts() {
		w.fill()
		before := w.rows()
		act()
		changed := map[string]bool{} // in rows that were there before
		for id, after := range w.rows() {
			old, known := before[id]
			if !known {
				seen[edge{"[*]", after.state(), name}] = true
			}
			for column, value := range after {
				if known && string(old[column]) != string(value) {
					seen[edge{old.state(), after.state(), name}] = true
					changed[column] = true
				}
			}
		}
		if len(changed) > 0 {
			columns[name] = strings.Join(slices.Sorted(maps.Keys(changed)), " ")
		}
	}

	drills := document(t, "docs/drills.md")
	got := edges(t, drills, "Exercise 1: draw the state machine")
	if diff := cmp.Diff(lines(seen), lines(got)); diff != "" {
		t.Errorf("docs/drills.md draws another machine than the database shows (-database +picture):\n%s", diff)
	}
	if diff := cmp.Diff(columns, listed(drills)); diff != "" {
		t.Errorf("docs/drills.md names other columns than the database shows (-database +table):\n%s", diff)
	}
	// The picture of the architecture leaves out what does not move an event, and the names.
	coarse := func(all map[edge]bool) map[edge]bool {
		out := map[edge]bool{}
		for e := range all {
			if e.from != e.to && e.to != "[*]" {
				out[edge{e.from, e.to, ""}] = true
			}
		}
		return out
	}
	overview := coarse(edges(t, document(t, "docs/architecture.md"), "The life of one event"))
	if diff := cmp.Diff(lines(coarse(seen)), lines(overview)); diff != "" {
		t.Errorf("docs/architecture.md draws another machine than the database shows (-database +picture):\n%s", diff)
	}
	w.everyStatementWasRun()
}

// edge is one transition: from a state to a state, by what.
type edge struct{ from, to, by string }

func lines(all map[edge]bool) []string {
	var out []string
	for e := range all {
		out = append(out, fmt.Sprintf("%s --> %s: %s", e.from, e.to, e.by))
	}
	slices.Sort(out)
	return out
}

var arrow = regexp.MustCompile(`(?m)^\s*(\S+) --> ([^\s:]+)(?:: (.*))?$`)

// edges reads the picture of a section. An arrow may have several names.
func edges(t *testing.T, p page, section string) map[edge]bool {
	t.Helper()
	pictures := p.in(section, "mermaid")
	if len(pictures) != 1 {
		t.Fatalf("%s: got %d pictures in %q, want 1", p.name, len(pictures), section)
	}
	out := map[edge]bool{}
	for _, m := range arrow.FindAllStringSubmatch(pictures[0].text, -1) {
		for by := range strings.SplitSeq(m[3], ", ") {
			out[edge{m[1], m[2], by}] = true
		}
	}
	return out
}

var tableRow = regexp.MustCompile("(?m)^\\| \\*\\*([a-z ]+)\\*\\* \\|[^|]*\\| (`[^|]*) \\|$")

// listed reads the columns that the page says a transition changes.
func listed(p page) map[string]string {
	out := map[string]string{}
	for _, m := range tableRow.FindAllStringSubmatch(p.text, -1) {
		names := strings.Fields(strings.NewReplacer("`", "", ",", "").Replace(m[2]))
		slices.Sort(names)
		out[m[1]] = strings.Join(names, " ")
	}
	return out
}

func document(t *testing.T, name string) page {
	t.Helper()
	for _, p := range documents(t) {
		if p.name == name {
			return p
		}
	}
	t.Fatalf("there is no %s", name)
	return page{}
}

// row is a row of the outbox table, column by column.
type row map[string]json.RawMessage

func (r row) state() string {
	var status string
	_ = json.Unmarshal(r["status"], &status)
	switch {
	case status != "pending":
		return status
	case string(r["next_retry_at"]) == "null":
		return "ready"
	default:
		return "waiting"
	}
}

// watcher runs statements of package outbox and knows which.
type watcher struct {
	t     *testing.T
	pool  *pgxpool.Pool
	store *outbox.Store
	sent  []string
}

func watch(t *testing.T) *watcher {
	t.Helper()
	w := &watcher{t: t, pool: labtest.Pool(t, labtest.Database(t))}
	var err error
	if w.store, err = outbox.NewStore(w, outbox.StoreConfig{Table: table, Projection: "p", Group: group, Owner: me, Lease: time.Minute}); err != nil {
		t.Fatal(err)
	}
	w.must(w.pool.Exec(t.Context(), `insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ($1, $2, $3, now(), now())`, group, epoch, me))
	return w
}

func (w *watcher) must(_ any, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// fill leaves a row in each state, and in each way to be in it. No column is empty that
// need not be, and all rows bear our name and epoch unless it matters: what protects a row
// is to be what the code says.
func (w *watcher) fill() {
	w.t.Helper()
	w.must(w.pool.Exec(w.t.Context(), `truncate `+table))
	w.must(w.pool.Exec(w.t.Context(), `
insert into `+table+` (id, entity_type, entity_id, op, event_version, created_at, updated_at, traceparent, tracestate,
  status, owner, epoch, lease_until, processing_started_at, processed_at, attempts, reclaims, next_retry_at,
  error_reason, error, replay_count, last_replayed_at, last_replayed_by, last_replayed_reason)
select gen_random_uuid(), 'book', gen_random_uuid(), 'upsert', n, past, past, 't', 't',
  status, owner, epoch, lease, past, past, 3, reclaims, retry, 'es_5xx', 'before', 1, past, 'bob', 'before'
from (select now() - interval '1 hour' as past, now() + interval '1 hour' as future) times, lateral (values
  (1, 'pending', 'other', 5, past, 2, null),
  (2, 'pending', 'me', 7, past, 2, past),
  (3, 'pending', 'other', 5, past, 2, future),
  (4, 'processing', 'me', 7, future, 2, null),
  (5, 'processing', 'me', 7, future, 2, past),
  (6, 'processing', 'other', 5, future, 2, null),
  (7, 'processing', 'other', 5, future, 2, past),
  (8, 'processing', 'other', 5, future, 9, null),
  (9, 'processing', 'other', null, past, 2, null),
  (10, 'done', 'me', 7, future, 2, null),
  (11, 'done', 'other', 5, past, 2, past),
  (12, 'failed', 'me', 7, future, 2, null),
  (13, 'failed', 'other', 5, past, 9, past)
) rows (n, status, owner, epoch, lease, reclaims, retry)`))
}

func (w *watcher) rows() map[string]row {
	w.t.Helper()
	out := map[string]row{}
	rows, err := w.pool.Query(w.t.Context(), `select id::text, to_jsonb(o) from `+table+` o`)
	if err != nil {
		w.t.Fatal(err)
	}
	var (
		id   string
		text []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &text}, func() error {
		r := row{}
		out[id] = r
		return json.Unmarshal(text, &r)
	})
	if err != nil || len(out) == 0 {
		w.t.Fatalf("rows: got %d, %v", len(out), err)
	}
	return out
}

// events are all rows, as if each had been claimed as it stands there.
func (w *watcher) events() []outbox.Event {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), `select id, processing_started_at from `+table)
	if err != nil {
		w.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (e outbox.Event, err error) {
		err = r.Scan((*[16]byte)(&e.ID), &e.ClaimedAt)
		return e, err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// acts is all that weft does to rows of the outbox, by the names that the documents use.
func (w *watcher) acts() map[string]func() {
	ctx, t := w.t.Context(), w.t
	settle := func(s outbox.Settlement) func() {
		return func() {
			t.Helper()
			events := w.events()
			all := make([]outbox.Settlement, len(events))
			for i := range events {
				all[i] = s
				all[i].Event = &events[i]
			}
			w.must(w.store.Settle(ctx, epoch, all))
		}
	}
	// over settles each row as if all others were older events of its entity.
	over := func(s outbox.Settlement) func() {
		return func() {
			t.Helper()
			for _, e := range w.events() {
				s.Older = append(s.Older, outbox.Listed{ID: e.ID})
			}
			settle(s)()
		}
	}
	return map[string]func(){
		"enqueue": func() {
			w.must(nil, outbox.Enqueue(ctx, w, table, outbox.NewEvent{Key: outbox.Key{Type: "book", ID: uuid.New()}, Op: outbox.Delete, Version: 99}))
		},
		"claim": func() {
			w.must(w.store.Claim(ctx, outbox.ClaimRequest{Epoch: epoch, Limit: 100}))
			w.must(w.store.Claim(ctx, outbox.ClaimRequest{Epoch: epoch, Limit: 100})) // finds nothing, and looks with care
		},
		"superseded unclaimed": over(outbox.Settlement{Verdict: outbox.Done}),
		"put off":              over(outbox.Settlement{Verdict: outbox.Retry, Reason: outbox.ReasonES429, Detail: "now", Delay: time.Second}),
		"renew":                func() { w.must(w.store.Renew(ctx, epoch, w.events())) },
		"done":                 settle(outbox.Settlement{Verdict: outbox.Done}),
		"superseded":           settle(outbox.Settlement{Verdict: outbox.Superseded}),
		"retry":                settle(outbox.Settlement{Verdict: outbox.Retry, Reason: outbox.ReasonES429, Detail: "now", Delay: time.Second}),
		"wait":                 settle(outbox.Settlement{Verdict: outbox.Waiting, NotBefore: time.Now().Add(time.Minute)}),
		"fail":                 settle(outbox.Settlement{Verdict: outbox.Failed, Reason: outbox.ReasonES4xx, Detail: "now"}),
		"give back":            settle(outbox.Settlement{Verdict: outbox.GivenBack}),
		"give back unknown": func() {
			stranger, err := w.pool.Begin(ctx)
			w.must(nil, err)
			w.must(stranger.Exec(ctx, "select from "+table+" where status = 'processing' and epoch = $1 limit 1 for update", epoch))
			w.must(w.store.GiveBackUnknown(ctx, epoch, nil)) // passes over that one
			w.must(nil, stranger.Rollback(ctx))
			w.must(w.store.GiveBackUnknown(ctx, epoch, nil))
		},
		"reclaim": func() {
			w.must(w.store.Reclaim(ctx, outbox.ReclaimRequest{Epoch: epoch, Limit: 100, MaxProcessing: time.Minute, MaxReclaims: maxReclaims}))
		},
		"wake": func() { w.must(w.store.Wake(ctx, epoch, outbox.Reasons())) },
		"replay": func() {
			d, err := outbox.OpenDeadLetters(w, table, "p", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			r, err := d.BeginReplay(ctx, outbox.ReplayOrder{By: "alice", Why: "now"}, 1)
			if err != nil {
				t.Fatal(err)
			}
			var ids []uuid.UUID
			for _, e := range w.events() {
				ids = append(ids, e.ID)
			}
			w.must(r.Send(ctx, ids))
		},
	}
}

// Exec, Query, QueryRow and SendBatch make the watcher an outbox.DB and an outbox.Tx.

func (w *watcher) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	w.sent = append(w.sent, sql)
	return w.pool.Exec(ctx, sql, args...)
}

func (w *watcher) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	w.sent = append(w.sent, sql)
	return w.pool.Query(ctx, sql, args...)
}

func (w *watcher) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	w.sent = append(w.sent, sql)
	return w.pool.QueryRow(ctx, sql, args...)
}

func (w *watcher) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		w.sent = append(w.sent, q.SQL)
	}
	return w.pool.SendBatch(ctx, b)
}

var (
	writes = regexp.MustCompile(`(?:update|insert into|delete from) \{table\}`)
	gap    = regexp.MustCompile(`\{[a-z]+\}`)
)

// everyStatementWasRun compares what was sent with the source: a statement that writes to
// the table and that no act has sent would be missing from the picture.
func (w *watcher) everyStatementWasRun() {
	w.t.Helper()
	texts := constants(w.t, filepath.Join(tree, "outbox"))
	n := 0
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if !writes.MatchString(texts[name]) {
			continue
		}
		n++
		var pieces []string
		for _, piece := range gap.Split(texts[name], -1) {
			pieces = append(pieces, regexp.QuoteMeta(piece))
		}
		like := regexp.MustCompile("(?s)" + strings.Join(pieces, ".*"))
		if !slices.ContainsFunc(w.sent, like.MatchString) {
			w.t.Errorf("the statement %s of package outbox was never sent: give it an act", name)
		}
	}
	if n < 9 {
		w.t.Errorf("got %d writing statements in package outbox, want all of them", n)
	}
}

// constants returns the string constants of a package, those that are put together from
// others included.
func constants(t *testing.T, dir string) map[string]string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]ast.Expr{}
	for _, file := range found {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == len(spec.Names) {
				for i, name := range spec.Names {
					parts[name.Name] = spec.Values[i]
				}
			}
			return true
		})
	}
	var value func(e ast.Expr) string
	value = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			s, _ := strconv.Unquote(e.Value)
			return s
		case *ast.Ident:
			return value(parts[e.Name])
		case *ast.BinaryExpr:
			return value(e.X) + value(e.Y)
		default:
			return ""
		}
	}
	out := map[string]string{}
	for name, e := range parts {
		out[name] = value(e)
	}
	return out
}
