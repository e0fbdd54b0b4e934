package projections

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// row inserts a source row of version and returns its key.
func (b *bench) row(version int64, text string) outbox.Key {
	b.tb.Helper()
	k := key()
	b.exec("insert into search_index (entity_type, entity_id, text, snippet, rank_score, event_version) values ($1, $2, $3, 's', 0.5, $4)", k.Type, &k.ID, text, version)
	return k
}

func TestSearchRules(t *testing.T) {
	t.Parallel()
	b := setup(t)
	older, same, newer := b.row(5, "t"), b.row(10, "t"), b.row(15, "t")
	delOlder, delSame, delNewer := b.row(5, "t"), b.row(10, "t"), b.row(15, "t")
	gone, delGone, strange := key(), key(), b.row(10, "t")
	cases := []struct {
		name    string
		event   outbox.Event
		version int64
		del     bool
		want    outbox.Outcome
	}{
		{"UpsertNewerThanRow", event(outbox.Upsert, older, 10), 10, false, outbox.OK()},
		{"UpsertOfRow", event(outbox.Upsert, same, 10), 10, false, outbox.OK()},
		{"UpsertOlderThanRow", event(outbox.Upsert, newer, 10), 15, false, outbox.OK()},
		{"DeleteNewerThanRow", event(outbox.Delete, delOlder, 10), 10, true, outbox.OK()},
		{"DeleteOfSameVersion", event(outbox.Delete, delSame, 10), 10, false, outbox.OK()},
		{"DeleteOlderThanRow", event(outbox.Delete, delNewer, 10), 15, false, outbox.OK()},
		{"UpsertWithoutRow", event(outbox.Upsert, gone, 10), 10, true, outbox.NoOp(outbox.NoopSourceMissing)},
		{"DeleteWithoutRow", event(outbox.Delete, delGone, 10), 10, true, outbox.OK()},
		{"UnknownOp", event("merge", strange, 10), 0, false, outbox.Reject(outbox.ReasonDeterministic, "")},
	}
	var events []outbox.Event
	var want []outbox.Outcome
	for _, c := range cases {
		events = append(events, c.event)
		want = append(want, c.want)
	}
	s := &sink{}
	got, err := b.search(s).Project(leading(t, 1), events)
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, want)
	if !strings.Contains(got[8].Detail, "merge") {
		t.Errorf("detail: got %q, want the op", got[8].Detail)
	}
	for _, c := range cases[:8] {
		if a := s.written(t, c.event.Key); a.Version != c.version || a.Delete != c.del {
			t.Errorf("%s: got version %d delete=%t, want %d, %t", c.name, a.Version, a.Delete, c.version, c.del)
		}
	}
	if len(s.writes) != 1 || len(s.writes[0]) != 8 {
		t.Errorf("writes: got %d, want one of 8 actions", len(s.writes))
	}
}

func TestSearchDocument(t *testing.T) {
	t.Parallel()
	b := setup(t)
	type document struct {
		EntityType   string    `json:"entity_type"`
		EntityID     string    `json:"entity_id"`
		LibraryID    *string   `json:"library_id"`
		Text         string    `json:"text"`
		Snippet      *string   `json:"snippet"`
		RankScore    *float64  `json:"rank_score"`
		EventVersion int64     `json:"event_version"`
		CreatedAt    time.Time `json:"created_at"`
		UpdatedAt    time.Time `json:"updated_at"`
	}
	full, sparse := outbox.Key{Type: `bl"ock` + "\n", ID: outbox.UUID(uuid.New())}, key()
	library, text := uuid.New().String(), "a\"b\\c\n\t\u2028 日本 \x01"
	snippet, rank := "sn", 0.1
	created, updated := time.Date(1969, 12, 31, 23, 59, 59, 999999000, time.UTC), time.Date(2026, 3, 4, 5, 6, 7, 120000000, time.UTC)
	const insert = `insert into search_index (entity_type, entity_id, library_id, text, snippet, rank_score, event_version, created_at, updated_at)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	b.exec(insert, full.Type, &full.ID, library, text, snippet, rank, int64(1)<<62, created, updated)
	b.exec(insert, sparse.Type, &sparse.ID, nil, "", nil, nil, 0, updated, updated)
	s := &sink{}
	if _, err := b.search(s).Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, full, 1), event(outbox.Upsert, sparse, 1)}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []document{
		{full.Type, full.ID.String(), &library, text, &snippet, &rank, 1 << 62, created, updated},
		{EntityType: sparse.Type, EntityID: sparse.ID.String(), CreatedAt: updated, UpdatedAt: updated},
	} {
		k := outbox.Key{Type: want.EntityType, ID: outbox.UUID(uuid.MustParse(want.EntityID))}
		body := s.written(t, k).Body
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.DisallowUnknownFields()
		var got document
		if err := dec.Decode(&got); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("document (-want +got):\n%s", d)
		}
		var fields map[string]any
		if err := json.Unmarshal(body, &fields); err != nil || len(fields) != 9 {
			t.Errorf("fields: got %v (%v), want 9", fields, err)
		}
	}
}

func TestSearchValuesWithoutForm(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var events []outbox.Event
	names := []string{"rank_score", "rank_score", "rank_score", "created_at", "updated_at", "updated_at"}
	for i, set := range []string{"rank_score = 'NaN'", "rank_score = 'Infinity'", "rank_score = '-Infinity'", "created_at = 'infinity'", "updated_at = '-infinity'", "updated_at = '20000-01-01'"} {
		k := b.row(1, "t")
		b.exec("update search_index set "+set+" where entity_id = $1", &k.ID)
		events = append(events, event(outbox.Upsert, k, int64(i)))
	}
	good := b.row(1, "t")
	// The row does not matter to a delete that is newer.
	deleted := b.row(1, "t")
	b.exec("update search_index set rank_score = 'NaN' where entity_id = $1", &deleted.ID)
	events = append(events, event(outbox.Upsert, good, 1), event(outbox.Delete, deleted, 9))
	s := &sink{}
	got, err := b.search(s).Project(leading(t, 1), events)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		if got[i].Verdict != outbox.Failed || got[i].Reason != outbox.ReasonDeterministic || !strings.Contains(got[i].Detail, name) {
			t.Errorf("%d: got %+v, want failed naming %s", i, got[i], name)
		}
	}
	wantOutcomes(t, got[len(names):], []outbox.Outcome{outbox.OK(), outbox.OK()})
}

// What does not fit into memory at once is read in several rounds.
func TestSearchReadsWithinABudget(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := strings.Repeat("0123456789abcdef", 20<<20/16)
	var events []outbox.Event
	for range 3 {
		events = append(events, event(outbox.Upsert, b.row(1, text), 1))
	}
	missing := event(outbox.Upsert, key(), 1)
	events = append(events[:1], append([]outbox.Event{missing}, events[1:]...)...)
	s := &sink{}
	got, err := b.search(s).Project(leading(t, 1), events)
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, []outbox.Outcome{outbox.OK(), outbox.NoOp(outbox.NoopSourceMissing), outbox.OK(), outbox.OK()})
	if len(s.writes) < 3 {
		t.Errorf("writes: got %d, want one per document", len(s.writes))
	}
	for _, e := range events {
		if a := s.written(t, e.Key); e.Key != missing.Key && !bytes.Contains(a.Body, []byte(text)) {
			t.Errorf("%s: text is not whole", e.Key)
		}
	}
}

func TestSearchFaultsOfTheSink(t *testing.T) {
	t.Parallel()
	b := setup(t)
	events := []outbox.Event{event("odd", key(), 1), event(outbox.Upsert, b.row(1, "t"), 1), event(outbox.Upsert, b.row(1, "t"), 1)}
	outage := &outbox.Fault{Reason: outbox.ReasonESConnect, Shared: true, Err: errors.New("refused")}
	retry := outbox.Reject(outbox.ReasonESConnect, "")
	lost := errors.New("lease lost")
	cases := []struct {
		name    string
		answers []outbox.Outcome
		err     error
		want    []outbox.Outcome
	}{
		{"NothingKnown", nil, outage, nil},
		{"PartKnown", []outbox.Outcome{outbox.OK(), retry}, outage, []outbox.Outcome{outbox.Reject(outbox.ReasonDeterministic, ""), outbox.OK(), retry}},
		{"AuthorityLost", nil, lost, nil},
	}
	for _, c := range cases {
		s := &sink{answer: func([]elastic.Action) ([]outbox.Outcome, error) { return c.answers, c.err }}
		got, err := b.search(s).Project(leading(t, 1), events)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: got error %v, want %v", c.name, err, c.err)
		}
		wantOutcomes(t, got, c.want)
	}
	short := &sink{answer: func([]elastic.Action) ([]outbox.Outcome, error) { return []outbox.Outcome{outbox.OK()}, nil }}
	if got, err := b.search(short).Project(leading(t, 1), events); got != nil || err == nil {
		t.Errorf("one outcome for two: got %v, %v", got, err)
	}
}

func TestSearchWithoutDatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.search(&sink{})
	b.exec("alter table search_index rename to hidden")
	_, err := p.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, key(), 1)})
	if f, ok := errors.AsType[*outbox.Fault](err); !ok || f.Reason != outbox.ReasonUnknown || !f.Shared {
		t.Errorf("missing table: got %v", err)
	}
	b.pool.Close()
	_, err = p.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, key(), 1)})
	if f, ok := errors.AsType[*outbox.Fault](err); !ok || f.Reason != outbox.ReasonDBUnavailable || !f.Shared {
		t.Errorf("closed pool: got %v", err)
	}
}

// The statements must stay a lookup per key however many rows there are.
func TestSearchLooksKeysUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`insert into search_index (entity_type, entity_id, text, event_version)
		select 'block', gen_random_uuid(), repeat('x', 200), 1 from generate_series(1, 20000)`)
	b.exec("analyze search_index")
	var events []outbox.Event
	for range 1000 {
		events = append(events, event(outbox.Upsert, key(), 1))
	}
	index := b.search(&sink{})
	shape, err := index.source.(*declaredSource).known(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, len(events))
	for i := range events {
		ids[i] = events[i].Key.ID.String()
	}
	for sql, of := range map[string]any{shape.sql: entities(events), shape.key.present("search_outbox"): ids} {
		rows, err := b.pool.Query(t.Context(), "explain (costs off) "+sql, types(events), of)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if plan := strings.Join(lines, "\n"); strings.Contains(plan, "Seq Scan") || !strings.Contains(plan, "Index") || sql == shape.sql && strings.Contains(plan, "Sort") {
			t.Errorf("plan:\n%s", plan)
		}
	}
	there := key()
	b.exec("insert into search_index (entity_type, entity_id, text, event_version) values ($1, $2, 'x', 1)", there.Type, &there.ID)
	other := there
	other.Type = "book"
	if known, err := index.Known(t.Context(), []outbox.Key{other, there, key()}); err != nil || !slices.Equal(known, []bool{false, true, false}) {
		t.Errorf("known: got %v, %v, want the second alone", known, err)
	}
}

// The whole way: real rows into a real index.
func TestSearchIntoElasticsearch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	index := testenv.Index(t)
	cfg := elasticsearch(t)
	cfg.Index = index
	sink, err := elastic.New(cfg, zap.NewNop(), prometheus.NewRegistry(), SearchIndexToElastic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	p := b.search(sink)
	if err := p.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	good, big := b.row(10, "good"), b.row(10, strings.Repeat("long words ", 20<<20/11))
	overflow := b.row(10, "rank")
	b.exec("update search_index set rank_score = 1e300 where entity_id = $1", &overflow.ID)
	got, err := p.Project(leading(t, 1), []outbox.Event{
		event(outbox.Upsert, good, 10), event(outbox.Upsert, overflow, 10), event(outbox.Upsert, big, 10),
		event(outbox.Delete, key(), 3), event(outbox.Upsert, key(), 3),
	})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes(t, got, []outbox.Outcome{outbox.OK(), outbox.Reject(outbox.ReasonES4xx, ""), outbox.OK(), outbox.NoOp(outbox.NoopES404), outbox.NoOp(outbox.NoopSourceMissing)})

	// Deleted, and then an older event of it comes late.
	b.exec("delete from search_index where entity_id = $1", &good.ID)
	for _, step := range []struct {
		event outbox.Event
		want  outbox.Outcome
	}{
		{event(outbox.Delete, good, 20), outbox.OK()},
		{event(outbox.Delete, good, 20), outbox.NoOp(outbox.NoopES404)},
		{event(outbox.Upsert, good, 15), outbox.NoOp(outbox.NoopAlreadyApplied)},
	} {
		got, err := p.Project(leading(t, 1), []outbox.Event{step.event})
		if err != nil {
			t.Fatal(err)
		}
		wantOutcomes(t, got, []outbox.Outcome{step.want})
	}
	if got := found(t, index, good.String()); got {
		t.Errorf("deleted document is back")
	}
	if got := found(t, index, big.String()); !got {
		t.Errorf("document of 20 MB is missing")
	}
}

func found(t *testing.T, index, id string) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodHead, fmt.Sprintf("%s/%s/_doc/%s", testenv.ElasticURL(t), index, id), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}
