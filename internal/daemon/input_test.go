package daemon_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/legacy"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

// fate is where an event ended.
type fate struct {
	Status, Reason, Error string
}

func (r *rig) fate(key outbox.Key) (out []fate) {
	r.t.Helper()
	rows, err := r.pool.Query(context.Background(), `select status, coalesce(error_reason, ''), coalesce(error, '')
		from search_outbox_events where entity_id = $1 order by event_version, created_at`, &key.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var f fate
		if err := rows.Scan(&f.Status, &f.Reason, &f.Error); err != nil {
			r.t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// Every kind of bad input ends where the design says, names what is wrong, and
// holds up nothing else.
func TestBadInputAmongGood(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var good []outbox.Key
	for i := range 100 {
		k := newKey()
		good = append(good, k)
		r.upsert(k, int64(i+1), "good")
	}
	raw := func(key outbox.Key, op string, version int64) {
		r.exec("insert into search_outbox_events (entity_type, entity_id, op, event_version) values ($1, $2, $3, $4)",
			key.Type, &key.ID, op, version)
	}
	document := func(key outbox.Key, version int64, text string, rank any) {
		r.exec("insert into search_index (entity_type, entity_id, text, rank_score, event_version) values ($1, $2, $3, $4::text::float8, $5)",
			key.Type, &key.ID, text, rank, version)
		raw(key, "upsert", version)
	}

	unknownOp, unknownEntity, huge, twice := newKey(), newKey(), newKey(), newKey()
	outOfRange, notANumber, negative, wide := newKey(), newKey(), newKey(), outbox.Key{Type: strings.Repeat("界", 50), ID: outbox.UUID(uuid.New())}
	raw(unknownOp, "merge", 10)
	raw(unknownEntity, "upsert", 10)
	document(huge, 10, strings.Repeat("0123456789 abcdefghi ", 1_000_000), "1")
	document(twice, 10, "same version", "1")
	raw(twice, "upsert", 10)
	document(outOfRange, 10, "the mapping rejects this one", "1e300")
	document(notANumber, 10, "not a number", "NaN")
	raw(negative, "upsert", -5)
	document(wide, 10, "a long id", "1")

	a := r.start("a", patient()...) // the huge one takes a busy server long
	r.await(map[string]int{"done": 100 + 1 + 1 + 2 + 1, "failed": 4})
	for _, k := range good {
		if found, _, _ := r.document(k); !found {
			t.Fatalf("good document %v is missing", k)
		}
	}
	for _, tt := range []struct {
		name  string
		key   outbox.Key
		want  fate
		found bool
	}{
		{"UnknownOp", unknownOp, fate{"failed", "deterministic_exception", "merge"}, false},
		{"UnknownEntity", unknownEntity, fate{"done", "", ""}, false},
		{"TwentyMegabytes", huge, fate{"done", "", ""}, true},
		{"SameVersionTwice", twice, fate{"done", "", ""}, true},
		{"MappingRejects", outOfRange, fate{"failed", "es_4xx", "rank_score"}, false},
		{"NotANumber", notANumber, fate{"failed", "deterministic_exception", "rank_score"}, false},
		{"NegativeVersion", negative, fate{"failed", "deterministic_exception", "version"}, false},
		{"WideEntityType", wide, fate{"done", "", ""}, true},
	} {
		for _, got := range r.fate(tt.key) {
			if got.Status != tt.want.Status || got.Reason != tt.want.Reason || !strings.Contains(got.Error, tt.want.Error) {
				t.Errorf("%s ended as %+v, want %+v", tt.name, got, tt.want)
			}
			if len(got.Error) > 1000 || strings.Contains(got.Error, "the mapping rejects this one") {
				t.Errorf("%s: the error is long or holds the body: %q", tt.name, got.Error)
			}
		}
		if found, _, _ := r.document(tt.key); found != tt.found {
			t.Errorf("%s: document found %v, want %v", tt.name, found, tt.found)
		}
	}
	testenv.Eventually(t, func() bool {
		return a.metric("outbox_failed_total") == 4 && a.metric("outbox_idempotent_noop_total", `reason="source_missing"`) == 1
	}, "four failures and a no-op for a missing source to be counted")
	// The id of a dead letter is in the log, and nowhere in the metrics.
	if lines := a.logs.with("entity_id", unknownOp.ID.String()); len(lines) == 0 || lines[0]["reason"] != "deterministic_exception" {
		t.Errorf("log lines for the unknown op: %v", lines)
	}
	if _, body := a.get("/metrics"); strings.Contains(body, unknownOp.ID.String()) {
		t.Error("an entity id is in the metrics")
	}
}

// A null byte cannot enter a table: the producer hears of it, and its transaction
// takes nothing along.
func TestNullByteIsRefusedAtTheProducer(t *testing.T) {
	t.Parallel()
	r := setup(t)
	key := newKey()
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), "insert into search_index (entity_type, entity_id, text) values ('block', $1, $2)", &key.ID, "a\x00b")
	if err == nil || !strings.Contains(err.Error(), "22021") {
		t.Errorf("text with a null byte: %v, want Postgres's refusal", err)
	}
	_ = tx.Rollback(t.Context())
	err = outbox.Enqueue(t.Context(), r.pool, outboxTable, outbox.NewEvent{Key: outbox.Key{Type: "a\x00b", ID: key.ID}, Op: outbox.Upsert, Version: 1})
	if err == nil || !strings.Contains(err.Error(), "null byte") {
		t.Errorf("entity type with a null byte: %v, want a refusal that names it", err)
	}
	if got := r.counts(); len(got) != 0 {
		t.Errorf("counts %v, want nothing written", got)
	}
}

// A bad release of the mapping pauses the projection instead of filling the dead
// letter, and readiness says so.
func TestBreakerIsVisible(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.elasticCall("PUT", "/"+r.index, `{"mappings":{"dynamic":"strict","properties":{"text":{"type":"text"}}}}`, nil)
	a := r.start("a", "WEFT_BREAKER_THRESHOLD=5")
	for i := range 100 {
		r.upsert(newKey(), int64(i+1), "x")
	}
	a.awaitReady(200, `"activity": "paused"`)
	testenv.Eventually(t, func() bool { return r.counts()["failed"] == 5 }, "the settle of the batch that opened the breaker") // it is shown before
	if got := r.counts(); got["failed"] != 5 || got["done"] != 0 {
		t.Errorf("counts %v, want 5 dead letters and the rest waiting", got)
	}
	r.elasticCall("PUT", "/"+r.index+"/_mapping", `{"dynamic":true}`, nil)
	r.await(map[string]int{"failed": 5, "done": 95})
	a.awaitReady(200, `"activity": "running"`)
}

// An existing Wordloom database with everything a Python worker leaves behind is
// migrated under its writers, and everything pending ends done.
func TestAdoptsALiveDatabase(t *testing.T) {
	t.Parallel()
	n := testenv.Volume(20_000, 200_000)
	url := testenv.Schema(t)
	pool := testenv.Pool(t, url)
	if err := legacy.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	filled, err := legacy.Fill(t.Context(), pool, n)
	if err != nil {
		t.Fatal(err)
	}
	writing, stop := context.WithCancel(t.Context())
	defer stop()
	var writers errgroup.Group
	for range 2 {
		writers.Go(func() error {
			for range testenv.Every(writing, 5*time.Millisecond) {
				if err := legacy.Produce(t.Context(), pool); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if _, err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, url)
	a := r.start("a", "OUTBOX_RECLAIM_INTERVAL_SECONDS=0.5")
	a.awaitReady(200, `"role": "leader"`)
	stop()
	if err := writers.Wait(); err != nil {
		t.Fatalf("a writer failed during the migration: %v", err)
	}
	for table, before := range map[string]legacy.Counts{"search_outbox_events": filled.Search, "chronicle_outbox_events": filled.Chronicle} {
		count := func() map[string]int {
			rows, err := pool.Query(context.Background(), "select status, count(*) from "+table+" group by 1")
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			out := map[string]int{}
			for rows.Next() {
				var s string
				var c int
				if err := rows.Scan(&s, &c); err != nil {
					t.Fatal(err)
				}
				out[s] = c
			}
			return out
		}
		testenv.Eventually(t, func() bool {
			got := count()
			return got["pending"] == 0 && got["processing"] == 0
		}, table+" to be drained")
		got := count()
		if got["failed"] != before.Failed || got["done"] < before.Total()-before.Failed {
			t.Errorf("%s ended as %v, want the %d that had failed before and all others of %d done", table, got, before.Failed, before.Total())
		}
	}
}
