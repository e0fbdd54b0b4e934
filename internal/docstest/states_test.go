package docstest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
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
	for _, a := range w.acts() {
		name := a.name
		w.fill()
		if a.before != nil {
			a.before()
		}
		before := w.rows()
		a.act()
		changed := map[string]bool{} // in rows that were there before
		now := w.rows()
		for id, after := range now {
			old, known := before[id]
			switch {
			case !known:
				seen[edge{start, after.state, name}] = true
			case old.state != after.state || !maps.EqualFunc(old.columns, after.columns, sameValue):
				seen[edge{old.state, after.state, name}] = true
			}
			for column, value := range after.columns {
				if known && !sameValue(old.columns[column], value) {
					changed[column] = true
				}
			}
		}
		for id, old := range before {
			if _, there := now[id]; !there {
				seen[edge{old.state, start, name}] = true
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
			if e.from != e.to && e.to != start {
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

const start = "[*]" // and the end, in the language of the pictures

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

// row is an event in the outbox table or its history, column by column.
type row struct {
	state   string
	columns map[string]json.RawMessage
}

func sameValue(a, b json.RawMessage) bool { return string(a) == string(b) }

// watcher runs statements of package outbox and knows which.
type watcher struct {
	t     *testing.T
	url   string
	pool  *pgxpool.Pool
	store *outbox.Store

	mu   sync.Mutex
	sent []string
}

// TraceQueryStart and TraceQueryEnd implement [pgx.QueryTracer].
func (w *watcher) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	w.note(data.SQL)
	return ctx
}

func (w *watcher) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart, TraceBatchQuery and TraceBatchEnd implement [pgx.BatchTracer].
func (w *watcher) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		w.note(q.SQL)
	}
	return ctx
}

func (w *watcher) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (w *watcher) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (w *watcher) note(sql string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, sql)
}

func watch(t *testing.T) *watcher {
	t.Helper()
	w := &watcher{t: t, url: testenv.Database(t)}
	cfg, err := pgxpool.ParseConfig(w.url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.Tracer = w
	if w.pool, err = pgxpool.NewWithConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	w.exec(`insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ($1, $2, $3, now(), now())`, group, epoch, me)
	w.exec(`select weft_history_attach($1, (now() at time zone 'UTC')::date + n) from generate_series(0, 1) n`, table)
	// What the database refuses for good, in the settle of one event.
	w.exec(`alter table ` + table + ` add check (error is distinct from 'refused')`)
	w.store = w.keeping(outbox.Keep)
	return w
}

// keeping is a store that does this with finished events.
func (w *watcher) keeping(f outbox.Finished) *outbox.Store {
	w.t.Helper()
	s, err := outbox.OpenStore(w.t.Context(), w.pool, outbox.StoreConfig{
		Table: table, Projection: "p", Group: group, Owner: me, Lease: time.Minute, Finished: f,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *watcher) must(_ any, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *watcher) exec(sql string, args ...any) {
	w.t.Helper()
	w.must(w.pool.Exec(w.t.Context(), sql, args...))
}

// rowOf fills a row: no column is empty that need not be, and all but those of others bear
// our name and epoch. What protects a row is to be what the statements say.
const rowOf = `
insert into ` + table + ` (id, entity_type, entity_id, op, event_version, created_at, updated_at, traceparent, tracestate,
  status, owner, epoch, lease_until, processing_started_at, processed_at, attempts, reclaims, next_retry_at, behind,
  error_reason, error, replay_count, last_replayed_at, last_replayed_by, last_replayed_reason)
select md5('event ' || n)::uuid, 'book', md5('entity ' || entity)::uuid, 'upsert', n, past, past, 't', 't',
  status, 'me', epoch, lease, past, past, 3, reclaims, retry, behind, 'es_5xx', 'before', 1, past, 'bob', 'before'
from (select now() - interval '1 hour' as past, now() + interval '1 hour' as future) times, lateral (values
  (1, 1, 'pending', 7, past, 2, null, null),          -- ready
  (2, 2, 'pending', 7, past, 2, past, null),          -- due
  (3, 3, 'pending', 7, past, 2, future, null),        -- waiting, and in the way of two others
  (4, 3, 'pending', 7, past, 2, null, null),
  (5, 3, 'pending', 7, past, 2, past, null),
  (6, 6, 'pending', 7, past, 2, future, 1::bigint),   -- put off, with nothing before it
  (7, 7, 'pending', 7, past, 2, past, null),          -- due, with a ready one and one that is put off behind it
  (8, 7, 'pending', 7, past, 2, null, null),
  (9, 7, 'pending', 7, past, 2, future, 7),
  (10, 10, 'processing', 5, future, 2, null, null),   -- an older build's
  (11, 11, 'processing', 5, future, 9, past, null),
  (12, 12, 'processing', null, future, 2, null, null), -- another worker's
  (13, 13, 'processing', null, past, 2, past, null),
  (14, 14, 'processing', null, past, 9, null, null),
  (15, 15, 'processing', null, null, 2, null, null),
  (16, 16, 'done', 7, past, 2, null, null),
  (17, 17, 'done', 5, past, 2, past, null),
  (18, 18, 'failed', 7, past, 2, null, null),
  (19, 19, 'failed', 5, past, 9, past, null),
  (20, 20, 'pending', 5, past, 2, null, null),        -- of a lease of the term before
  (21, 21, 'pending', 5, past, 2, past, null),
  (22, 22, 'pending', 5, past, 9, past, null),
  (23, 23, 'pending', 5, past, 2, future, 1)
) rows (n, entity, status, epoch, lease, reclaims, retry, behind)`

// fill leaves a row in each state, and in each way to be in it.
func (w *watcher) fill() {
	w.t.Helper()
	w.exec(`truncate ` + table + `, weft_lease, ` + outbox.HistoryTable(table))
	w.exec(rowOf)
	w.exec(`insert into weft_lease (batch, table_name, group_name, owner, epoch, leased_at, lease_until, uuids)
		select gen_random_uuid(), $1, $2, 'other', 5, now() - interval '1 minute', now() + interval '1 minute',
		       array_agg(md5('event ' || n)::uuid) from generate_series(20, 23) n`, table, group)
}

// rows reads the table and its history. In flight is what a lease names and is pending.
func (w *watcher) rows() map[string]row {
	w.t.Helper()
	out := map[string]row{}
	rows, err := w.pool.Query(w.t.Context(), `
select o.id::text, to_jsonb(o),
       case when o.status = 'pending' and exists (select from weft_lease l where o.id = any (l.uuids)) then 'in_flight'
            when o.status = 'processing' then 'claimed'
            when o.status <> 'pending' then o.status
            when o.behind is not null then 'put_off'
            when o.next_retry_at is null then 'ready' else 'waiting' end
from `+table+` o
union all
select h.id::text, to_jsonb(h), 'archived' from `+outbox.HistoryTable(table)+` h`)
	if err != nil {
		w.t.Fatal(err)
	}
	var (
		id, state string
		text      []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &text, &state}, func() error {
		r := row{state: state}
		err := json.Unmarshal(text, &r.columns)
		out[id] = r
		return err
	})
	if err != nil || len(out) == 0 {
		w.t.Fatalf("rows: got %d, %v", len(out), err)
	}
	return out
}

// batch is a lease of ours on all that may go.
type batch struct {
	id     uuid.UUID
	events [][]outbox.Event
}

func (w *watcher) lease() batch {
	w.t.Helper()
	ctx := w.t.Context()
	b := batch{id: uuid.New()}
	list, err := w.store.List(ctx, outbox.ListRequest{Ready: 100, Due: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	free, waiting, _, err := w.store.PutOffEntities(ctx, 100, outbox.ID{})
	if err != nil {
		w.t.Fatal(err)
	}
	keys := slices.Concat(free, waiting)
	groups := map[outbox.Key]*outbox.Group{}
	var order []outbox.Key
	add := func(rows []outbox.Row) {
		for _, r := range rows {
			if r.Version >= 20 && r.Version < 100 { // in flight under the other lease
				continue
			}
			g := groups[r.Key]
			if g == nil {
				g = &outbox.Group{Key: r.Key, Check: true}
				groups[r.Key] = g
				order = append(order, r.Key)
			}
			if !slices.ContainsFunc(g.Rows, func(x outbox.Row) bool { return x.ID == r.ID }) {
				g.Rows = append(g.Rows, r)
			}
		}
	}
	add(list.Ready)
	add(list.Due)
	for i := range keys {
		own, err := w.store.List(ctx, outbox.ListRequest{Entity: &keys[i], Ready: 100})
		if err != nil {
			w.t.Fatal(err)
		}
		add(own.Ready)
		add(own.Due)
	}
	in := make([]outbox.Group, len(order))
	for i, key := range order {
		slices.SortFunc(groups[key].Rows, func(a, b outbox.Row) int { return a.Compare(b) })
		in[i] = *groups[key]
	}
	got, err := w.store.Lease(ctx, epoch, b.id, in)
	if err != nil {
		w.t.Fatal(err)
	}
	b.events = got.Events
	return b
}

// tamper lets somebody else change rows of the batch: what a settle may not touch.
func (w *watcher) tamper() {
	w.t.Helper()
	w.exec(`insert into ` + table + ` (id, entity_type, entity_id, op, event_version, status)
		select md5('event ' || n)::uuid, 'book', md5('entity ' || n)::uuid, 'upsert', n, 'pending' from generate_series(101, 103) n`)
}

func (w *watcher) changeTampered() {
	w.t.Helper()
	w.exec(`update ` + table + ` set status = (array['processing', 'done', 'failed'])[event_version - 100] where event_version > 100`)
}

// act is one thing that weft does to rows of the outbox, by the name that the documents use.
type act struct {
	name   string
	before func() // not looked at
	act    func()
}

func (w *watcher) acts() []act {
	ctx, t := w.t.Context(), w.t
	var leased batch
	lease := func() {
		w.tamper()
		leased = w.lease()
		w.changeTampered()
	}
	// A retry is about the earliest event of an entity, a failure about the newest. What of a
	// batch is not settled stays as it is.
	verdicts := func(st outbox.Settlement) (in []outbox.Settlement) {
		for _, events := range leased.events {
			for i := range events {
				switch {
				case st.Verdict == outbox.Retry && i > 0, st.Verdict == outbox.Failed && i < len(events)-1:
					continue
				}
				st := st
				st.Event = &events[i]
				in = append(in, st)
			}
		}
		return in
	}
	settle := func(s *outbox.Store, st outbox.Settlement) func() {
		return func() {
			t.Helper()
			out, err := s.Settle(ctx, epoch, leased.id, verdicts(st))
			w.must(nil, err)
			w.must(nil, out.Kept)
		}
	}
	finished, err := outbox.OpenFinishedEvents(ctx, w.pool, table, time.Minute)
	w.must(nil, err)
	reclaim := outbox.ReclaimRequest{Epoch: epoch, Limit: 100, MaxProcessing: time.Minute, MaxReclaims: maxReclaims}
	done, retry := outbox.Settlement{Verdict: outbox.Done}, outbox.Settlement{Verdict: outbox.Retry, Reason: outbox.ReasonES429, Detail: "now", Delay: time.Second}
	refused := retry
	refused.Detail = "refused"
	return []act{
		{"enqueue", nil, func() {
			w.must(nil, outbox.Enqueue(ctx, w.pool, table, outbox.NewEvent{Key: outbox.Key{Type: "book", ID: outbox.UUID(uuid.New())}, Op: outbox.Delete, Version: 99}))
		}},
		{"lease", nil, func() { w.lease() }},
		{"done", lease, settle(w.store, done)},
		{"superseded", lease, settle(w.store, outbox.Settlement{Verdict: outbox.Superseded})},
		{"archive", lease, settle(w.keeping(outbox.Archive), done)},
		{"delete", lease, settle(w.keeping(outbox.Discard), done)},
		{"retry", lease, settle(w.store, retry)},
		{"fail", lease, settle(w.store, outbox.Settlement{Verdict: outbox.Failed, Reason: outbox.ReasonES4xx, Detail: "now"})},
		{"left", lease, func() {
			if _, err := w.store.Settle(ctx, epoch, leased.id, verdicts(refused)); !outbox.Refused(err) {
				t.Errorf("settle that the database refuses: %v", err)
			}
			halves, _ := outbox.Halve(verdicts(refused))
			w.must(nil, w.store.Split(ctx, epoch, leased.id, halves))
			for _, h := range halves {
				w.must(w.store.Settle(ctx, epoch, h.Batch, nil))
			}
		}},
		{"left", lease, func() { // the answer of such a settle was lost
			out, settled, err := w.store.Resolve(ctx, epoch, uuid.New(), verdicts(done))
			w.must(nil, err)
			if !settled || len(out.Left) == 0 {
				t.Errorf("fate of an interrupted settle: got %v with %d entities left, want it over and all of them", settled, len(out.Left))
			}
		}},
		{"release", lease, func() { w.must(w.store.Settle(ctx, epoch, leased.id, nil)) }},
		{"abandon", lease, func() { w.must(w.store.Abandon(ctx, epoch, []uuid.UUID{leased.id})) }},
		{"put off", nil, func() {
			for key, version := range map[string]int64{"entity 3": 3, "entity 12": 0, "entity 16": 0, "entity 18": 0} {
				id := outbox.UUID(w.uuid(key))
				w.must(w.store.PutOff(ctx, epoch, outbox.Key{Type: "book", ID: id}, outbox.Position{Version: version}, 100))
			}
		}},
		{"wake", nil, func() { w.must(w.store.Wake(ctx, epoch, outbox.Reasons(), 100)) }},
		{"reclaim lease", nil, func() {
			for {
				got, err := w.store.ReclaimLeases(ctx, reclaim)
				w.must(nil, err)
				if len(got) == 0 {
					return
				}
			}
		}},
		{"reclaim row", nil, func() { w.must(w.store.ReclaimRows(ctx, reclaim)) }},
		{"move", nil, func() { w.must(finished.Sweep(ctx, outbox.Sweep{Move: true})) }},
		{"prune", nil, func() { w.must(finished.Sweep(ctx, outbox.Sweep{Older: time.Minute})) }},
		{"replay", nil, func() {
			d, err := outbox.OpenDeadLetters(ctx, w.pool, table, "p", time.Minute)
			w.must(nil, err)
			r, err := d.BeginReplay(ctx, outbox.LetterOrder{By: "alice", Why: "now"}, 1)
			w.must(nil, err)
			var ids []outbox.ID
			for n := range 24 {
				ids = append(ids, outbox.UUID(w.uuid(fmt.Sprintf("event %d", n))))
			}
			w.must(r.Send(ctx, ids))
		}},
		{"discard", nil, func() {
			d, err := outbox.OpenDeadLetters(ctx, w.pool, table, "p", time.Minute)
			w.must(nil, err)
			w.must(d.Discard(ctx, outbox.LetterOrder{By: "alice", Why: "now"}))
		}},
	}
}

// uuid is the id that rowOf makes of a name.
func (w *watcher) uuid(name string) (id uuid.UUID) {
	w.t.Helper()
	w.must(nil, w.pool.QueryRow(w.t.Context(), `select md5($1)::uuid`, name).Scan((*[16]byte)(&id)))
	return id
}

var (
	writes = regexp.MustCompile(`(?:update|insert into|delete from) (?:\{table\}|\{history\}|weft_lease)`)
	gap    = regexp.MustCompile(`\{[a-z]+\}`)
	remark = regexp.MustCompile(`(?m)^--.*\n`)
)

// everyStatementWasRun compares what was sent with the source: a statement that writes to
// the table, its history or the leases and that no act has sent would be missing from the
// picture.
func (w *watcher) everyStatementWasRun() {
	w.t.Helper()
	found, err := filepath.Glob(filepath.Join(tree, "outbox", "sql", "*.sql"))
	if err != nil {
		w.t.Fatal(err)
	}
	n := 0
	for _, file := range found {
		text, err := os.ReadFile(file)
		if err != nil {
			w.t.Fatal(err)
		}
		sql := strings.TrimSpace(remark.ReplaceAllString(string(text), ""))
		if !writes.MatchString(sql) {
			continue
		}
		n++
		var pieces []string
		for _, piece := range gap.Split(sql, -1) {
			pieces = append(pieces, regexp.QuoteMeta(piece))
		}
		like := regexp.MustCompile("(?s)" + strings.Join(pieces, ".*"))
		if !slices.ContainsFunc(w.sent, like.MatchString) {
			w.t.Errorf("the statement %s was never sent: give it an act", filepath.Base(file))
		}
	}
	if n < 14 {
		w.t.Errorf("got %d writing statements in outbox/sql, want all of them", n)
	}
}
