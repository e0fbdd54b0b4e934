package daemon_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// The contract's metrics and ours, with their labels besides env and component.
const vocabulary = `
outbox_processed_total op projection
outbox_failed_total op projection reason
outbox_retry_scheduled_total op projection reason
outbox_terminal_failed_total op projection reason
outbox_idempotent_noop_total op projection reason
outbox_owner_mismatch_skips_total projection
outbox_lag_events projection
outbox_lag_seconds projection
outbox_oldest_age_seconds projection
outbox_inflight projection
outbox_inflight_events projection
outbox_stuck_processing_events projection
outbox_last_success_timestamp_seconds projection
outbox_es_bulk_requests_total projection result
outbox_es_bulk_items_total op projection result
outbox_es_bulk_item_failures_total failure_class op projection
outbox_es_bulk_request_duration_seconds projection
projection_rebuild_active projection
projection_rebuild_blocked projection
projection_rebuild_duration_seconds projection
projection_rebuild_last_finished_timestamp_seconds projection
projection_rebuild_last_success projection
projection_rebuild_rows_total projection
weft_batches_total projection result
weft_blocked_entities projection
weft_database_clock_skew_seconds
weft_dead_letters projection
weft_discarded_letters projection
weft_event_latency_seconds projection
weft_fenced_writes_total projection
weft_finished_kept_total projection
weft_finished_swept_total action projection
weft_history_missing_partitions projection
weft_isolated_entities projection
weft_lag_at_least projection
weft_lag_count_age_seconds projection
weft_last_settle_age_seconds projection
weft_last_settle_timestamp_seconds projection
weft_leader_draining
weft_leader_epoch
weft_leader_heartbeat_duration_seconds
weft_leader_is_leader
weft_leader_sessions_ended_total outcome
weft_leader_step_downs_total reason
weft_leader_transitions_total to
weft_log_dropped_total
weft_looks_total found projection
weft_oldest_snapshot_age_seconds
weft_oldest_snapshot_age_transactions
weft_oldest_unquarantined_age_seconds projection
weft_outbox_dead_tuples projection
weft_pipeline_phase phase projection
weft_projection_paused_seconds projection
weft_projection_throttle_events_per_second projection
weft_projection_throttled_seconds projection
weft_quarantine_oldest_seconds projection
weft_quarantined_entities projection
weft_quarantined_events projection
weft_reclaimed_events_total cause projection
weft_shard_away
weft_stage_duration_seconds projection stage
weft_table_readings_total projection result
weft_config_last_reload_success_timestamp_seconds
weft_config_last_reload_successful
weft_trace_spans_total result
weft_upkeep_runs_total result task
weft_verify_documents_total projection result
weft_verify_oldest_seconds projection
weft_version_ahead_total projection
weft_version_conflicts_unexamined_total projection
weft_waiting_events projection
`

// families returns what an instance exports, without what Go and the process say of
// themselves.
func (in *instance) families() map[string]*dto.MetricFamily {
	in.t.Helper()
	all, err := in.reg.Gather()
	if err != nil {
		in.t.Fatal(err)
	}
	out := map[string]*dto.MetricFamily{}
	for _, f := range all {
		if n := f.GetName(); strings.HasPrefix(n, "outbox_") || strings.HasPrefix(n, "projection_") || strings.HasPrefix(n, "weft_") && n != "weft_build_info" {
			out[n] = f
		}
	}
	return out
}

var fqName = regexp.MustCompile(`fqName: "((?:outbox|projection|weft)_\w+)"`)

// registered lists the metrics that are registered, also those without a series.
func (in *instance) registered() (names []string) {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		in.reg.Describe(descs)
	}()
	for d := range descs {
		if m := fqName.FindStringSubmatch(d.String()); m != nil && m[1] != "weft_build_info" {
			names = append(names, m[1])
		}
	}
	return names
}

// series lists every series by name and labels.
func (in *instance) series() (out []string) {
	for name, f := range in.families() {
		for _, m := range f.GetMetric() {
			out = append(out, name+labels(m))
		}
	}
	slices.Sort(out)
	return out
}

func labels(m *dto.Metric) string {
	var ls []string
	for _, l := range m.GetLabel() {
		ls = append(ls, l.GetName()+"="+l.GetValue())
	}
	return "{" + strings.Join(ls, ",") + "}"
}

func TestMetricsOfTheContract(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.exec(`create table projection_status (projection_name varchar(100) primary key, last_rebuild_finished_at timestamptz,
		last_rebuild_duration_seconds float8, last_rebuild_success boolean)`)
	r.exec("grant select on projection_status to public")
	r.exec("insert into projection_status values ('search_index_to_elastic', now(), 12.5, true)")
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	testenv.Eventually(t, func() bool {
		return a.metric("projection_rebuild_duration_seconds", "search_index") == 12.5 && a.metric("projection_rebuild_last_success") == 1 &&
			a.metric("projection_rebuild_last_finished_timestamp_seconds") > 1e9
	}, "the last rebuild, as the application wrote it down")
	got := map[string]string{}
	for name, f := range a.families() {
		names := map[string]bool{}
		for _, m := range f.GetMetric() {
			values := map[string]string{}
			for _, l := range m.GetLabel() {
				names[l.GetName()], values[l.GetName()] = true, l.GetValue()
			}
			if values["env"] != "test" || values["component"] != "worker" {
				t.Errorf("%s%s: want env=test and component=worker", name, labels(m))
			}
			if h := m.GetHistogram(); f.GetType() == dto.MetricType_HISTOGRAM && (len(h.GetBucket()) == 0 || h.Schema == nil) {
				t.Errorf("%s%s: want classic and native buckets", name, labels(m))
			}
		}
		delete(names, "env")
		delete(names, "component")
		got[name] = strings.Join(slices.Sorted(maps.Keys(names)), " ")
	}
	for _, name := range a.registered() {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is registered and shows nothing: it must exist at zero from the start, with each value of its labels", name)
		}
	}
	want := map[string]string{}
	for line := range strings.Lines(strings.TrimSpace(vocabulary)) {
		name, labels, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[name] = labels
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the metrics are others than those of the vocabulary in this file (-want +got):\n%s", diff)
	}
}

// A standby shows how far things are behind, so that this does not vanish when nobody
// leads; and it stays when the table cannot be read.
func TestStandbyExportsLag(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	r.upsert(newKey(), 1, "x")
	r.await(map[string]int{"done": 1})
	r.exec("insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, lease_until, processing_started_at, created_at) values ($1, 'block', $2, 'upsert', 1, 'processing', now() + interval '1 h', now(), now() - interval '1 h')",
		[16]byte(uuid.New()), [16]byte(uuid.New()))
	p := newLink(t, host(t, r.url))
	direct := r.url
	r.url = p.through(direct)
	b := r.start("b")
	b.awaitReady(200, `"role": "standby"`)
	search := `projection="search_index_to_elastic"`
	testenv.Eventually(t, func() bool { return b.metric("outbox_lag_events", search) == 1 }, "a lag of one on the standby")
	testenv.Eventually(t, func() bool { return b.metric("weft_last_settle_timestamp_seconds", search) > 1e9 }, "the time of the last settle on the standby")
	for _, name := range []string{"outbox_oldest_age_seconds", "outbox_lag_seconds"} {
		if got := b.metric(name, search); got < 3600 {
			t.Errorf("%s is %v on the standby, want an hour at least", name, got)
		}
	}
	if got := b.metric("weft_leader_is_leader"); got != 0 {
		t.Errorf("weft_leader_is_leader is %v on the standby", got)
	}
	p.cut()
	before := b.metric("outbox_oldest_age_seconds", search)
	testenv.Eventually(t, func() bool { // a reading that took long comes seldom
		return b.metric("weft_table_readings_total", search, `result="failed"`) > 0 && b.metric("outbox_oldest_age_seconds", search) > before
	}, "an age that grows while the table cannot be read")
	if got := b.metric("outbox_lag_events", search); got != 1 {
		t.Errorf("the lag became %v when the table could not be read", got)
	}
	p.heal()
}

// The age that the objective of freshness compares is that of the oldest event that is not in quarantine.
func TestQuarantinedEventsAreNotStale(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const name = "search_index_to_elastic"
	held, other := newKey(), newKey()
	for _, o := range []outbox.HoldOrder{{Kind: outbox.Pause}, {Kind: outbox.Quarantine, Entity: held}} {
		o.Group, o.Projection, o.By, o.Why = r.group, name, "alice", "a test"
		if _, _, err := outbox.BeginHold(t.Context(), r.pool, o, testenv.Limit); err != nil {
			t.Fatal(err)
		}
	}
	r.upsert(held, 1, "x")
	r.upsert(other, 2, "x")
	r.exec("update search_outbox_events set created_at = now() - case event_version when 1 then interval '1 h' else interval '5 min' end")
	a := r.start("a", "WEFT_PROJECTIONS="+name)
	testenv.Eventually(t, func() bool { return a.metric("outbox_oldest_age_seconds") >= 3600 }, "the age of the event in quarantine")
	if age := a.metric("weft_oldest_unquarantined_age_seconds"); age < 300 || age > 3000 {
		t.Errorf("the oldest event that is not in quarantine is %v s old, want five minutes", age)
	}
}

// What a producer writes and what a server answers makes no series: those that there are
// exist from the start, at zero.
func TestNoSeriesAppears(t *testing.T) {
	t.Parallel()
	const kinds = 50
	entities := testenv.Volume(10_000, 100_000)
	r := setup(t)
	f := newFront(t, r.elastic)
	r.elastic = f.URL
	a := r.start("a", "WEFT_BREAKER_THRESHOLD=100000", "WEFT_PROJECTIONS=search_index_to_elastic", "OUTBOX_MAX_ATTEMPTS=2")
	r.elastic = f.upstream
	a.awaitReady(200, `"role": "leader"`)
	before := a.series()
	zeroAtStart(t, a)

	// Thousands of types and ops of a producer that keeps to nothing.
	r.exec(fmt.Sprintf(`with e as materialized (
			select i, 'type' || i %% 1000 as entity_type, gen_random_uuid() as entity_id from generate_series(1, %d) i
		), s as (
			insert into search_index (entity_type, entity_id, text, event_version) select entity_type, entity_id, 'text ' || i, 1 from e
		)
		insert into search_outbox_events (id, entity_type, entity_id, op, event_version)
		select gen_random_uuid(), entity_type, entity_id, case when i %% 500 = 0 then 'op' || i when i %% 10 = 0 then 'delete' else 'upsert' end, 1 from e`, entities))
	f.set(f.manyErrors(kinds))
	testenv.Eventually(t, func() bool {
		n := r.counts()
		return n["done"]+n["failed"] == entities
	}, "an end for every event")
	if diff := cmp.Diff(before, a.series()); diff != "" {
		t.Errorf("series have come or gone (-before +after):\n%s", diff)
	}
	for _, reason := range []outbox.Reason{outbox.ReasonES4xx, outbox.ReasonDeterministic, outbox.ReasonESOther} {
		if a.metric("outbox_failed_total", fmt.Sprintf(`reason="%s"`, reason)) == 0 {
			t.Errorf("no event failed with %s; the answers were not those that were meant", reason)
		}
	}
	if a.metric("outbox_retry_scheduled_total") == 0 {
		t.Error("no event was retried; the answers were not those that were meant")
	}
}

// manyErrors lets bulk requests pass and puts an error in the place of every twentieth
// answer: kinds of them, each with a text that no other has.
func (f *front) manyErrors(kinds int) rule {
	statuses := []int{400, 404, 409, 413, 418, 422, 429, 500, 502, 503}
	var n atomic.Int64
	return func(w http.ResponseWriter, req *http.Request, body []byte) bool {
		if !isBulk(req) {
			return false
		}
		honest := httptest.NewRecorder()
		f.pass(honest, req, body)
		var answer struct {
			Items []map[string]map[string]any `json:"items"`
		}
		if err := json.Unmarshal(honest.Body.Bytes(), &answer); err != nil {
			panic(http.ErrAbortHandler)
		}
		for _, item := range answer.Items {
			for _, it := range item {
				i := int(n.Add(1))
				if i%20 != 0 {
					continue
				}
				kind := i / 20 % kinds
				it["status"] = statuses[kind%len(statuses)]
				it["error"] = map[string]any{"type": fmt.Sprintf("kind_%d_exception", kind), "reason": "no. " + uuid.NewString()}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		_ = json.NewEncoder(w).Encode(answer)
		return true
	}
}

// zeroAtStart holds that what counts has counted nothing yet.
func zeroAtStart(t *testing.T, in *instance) {
	t.Helper()
	for name, f := range in.families() {
		for _, m := range f.GetMetric() {
			if c := m.GetCounter(); c.GetValue() != 0 && strings.HasPrefix(name, "outbox_") {
				t.Errorf("%s%s is %v before the first event", name, labels(m), c.GetValue())
			}
		}
	}
}
