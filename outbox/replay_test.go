package outbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

func (b *bench) letters(db outbox.DB) *outbox.DeadLetters {
	b.t.Helper()
	d, err := outbox.OpenDeadLetters(b.t.Context(), db, table, "search_index_to_elastic", time.Minute)
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// fail makes an event of a new entity and ends it in failed.
func (b *bench) fail(typ string, version int64, reason, ago string) outbox.ID {
	b.t.Helper()
	id := outbox.UUID(uuid.New())
	b.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, attempts, error_reason, error, updated_at)
		values ($1, $2, gen_random_uuid(), 'upsert', $3, 'failed', 4, nullif($4, ''), $4 || ' said no', now() - $5::interval)`,
		&id, typ, version, reason, ago)
	return id
}

func (b *bench) beginReplay(s outbox.Selector) *outbox.Replay {
	b.t.Helper()
	r, err := b.letters(b.pool).BeginReplay(b.t.Context(), outbox.LetterOrder{By: "alice", Why: "fixed", Selector: s}, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bench) send(r *outbox.Replay, ids ...outbox.ID) []outbox.ID {
	b.t.Helper()
	sent, err := r.Send(b.t.Context(), ids)
	if err != nil {
		b.t.Fatal(err)
	}
	return sent
}

func (b *bench) audited(id int64) (count int, detail map[string]any) {
	b.t.Helper()
	var text []byte
	if err := b.pool.QueryRow(b.t.Context(), "select count, detail from weft_audit where id = $1", id).Scan(&count, &text); err != nil {
		b.t.Fatal(err)
	}
	if err := json.Unmarshal(text, &detail); err != nil {
		b.t.Fatal(err)
	}
	return count, detail
}

func TestDeadLettersAreFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.fail("book", 1, "es_4xx", "3 h")
	bare := b.fail("book", 2, "", "2 h")
	fresh := b.fail("tag", 3, "es_4xx", "1 min")
	b.enqueue(4)
	b.exec("update search_outbox_events set created_at = '-infinity', replay_count = 2, last_replayed_by = 'bob' where id = $1", &old)
	d := b.letters(b.pool)
	var entity outbox.ID
	if err := b.pool.QueryRow(t.Context(), "select entity_id from search_outbox_events where id = $1", &fresh).Scan(&entity); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		s    outbox.Selector
		want []outbox.ID // newest failure first
	}{
		"All":       {outbox.Selector{}, []outbox.ID{fresh, bare, old}},
		"ID":        {outbox.Selector{IDs: []outbox.ID{bare, outbox.UUID(uuid.New())}}, []outbox.ID{bare}},
		"Type":      {outbox.Selector{EntityType: "book"}, []outbox.ID{bare, old}},
		"Entity":    {outbox.Selector{EntityType: "tag", EntityID: entity}, []outbox.ID{fresh}},
		"OtherType": {outbox.Selector{EntityType: "book", EntityID: entity}, nil},
		"Reason":    {outbox.Selector{Reason: "es_4xx"}, []outbox.ID{fresh, old}},
		"NoReason":  {outbox.Selector{Reason: outbox.NoReason}, []outbox.ID{bare}},
		"Since":     {outbox.Selector{Since: b.now().Add(-150 * time.Minute)}, []outbox.ID{fresh, bare}},
		"Until":     {outbox.Selector{Until: b.now().Add(-150 * time.Minute)}, []outbox.ID{old}},
		"Together":  {outbox.Selector{EntityType: "book", Reason: "es_4xx", Since: b.now().Add(-4 * time.Hour)}, []outbox.ID{old}},
	} {
		found, err := d.List(t.Context(), tt.s, 10)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []outbox.ID
		for _, l := range found {
			got = append(got, l.ID)
		}
		n, err := d.Count(t.Context(), tt.s, 0)
		if err != nil || int(n) != len(tt.want) || !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v and a count of %d (%v), want %v", name, got, n, err, tt.want)
		}
		var events, groups int64
		sum, err := d.Summary(t.Context(), tt.s)
		for _, g := range sum {
			groups++
			events += g.Rows
		}
		if err != nil || events != n {
			t.Errorf("%s: %d rows in %d groups (%v), want %d", name, events, groups, err, n)
		}
		if tt.s.All() != (name == "All") {
			t.Errorf("%s: All is %v", name, tt.s.All())
		}
	}
	found, err := d.List(t.Context(), outbox.Selector{IDs: []outbox.ID{old}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	l := found[0]
	if l.EntityType != "book" || l.Op != outbox.Upsert || l.Version != 1 || l.Attempts != 4 || l.Reason != "es_4xx" || l.Error != "es_4xx said no" ||
		l.CreatedAt != nil || l.UpdatedAt == nil || l.Replays != 2 || l.ReplayedBy != "bob" {
		t.Errorf("got %+v, want what the row holds", l)
	}
	sum, err := d.Summary(t.Context(), outbox.Selector{EntityType: "book", Reason: "es_4xx"})
	if err != nil || len(sum) != 1 || sum[0].Replayed != 1 || sum[0].Sample != "es_4xx said no" || sum[0].Oldest == nil {
		t.Errorf("got %+v, %v, want one group with one row that was replayed before", sum, err)
	}
}

func TestReplayResetsOnlyWhatHasFailed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	key := b.enqueue(1, 2, 3)
	b.enqueue(4)
	x := b.leaseAll()
	ev := x.Events[0]
	b.settle(x,
		outbox.Settlement{Event: &ev[0], Verdict: outbox.Failed, Reason: outbox.ReasonES4xx, Detail: "no"},
		outbox.Settlement{Event: &ev[1], Verdict: outbox.Done},
		outbox.Settlement{Event: &ev[2], Verdict: outbox.Retry, Reason: outbox.ReasonES429, Delay: time.Hour},
	)
	y := b.leaseAll()
	unknown := outbox.UUID(uuid.New())
	all := []outbox.ID{ev[0].ID, ev[1].ID, ev[2].ID, y.Events[0][0].ID, unknown}
	before := []row{b.row(all[1]), b.row(all[2]), b.row(all[3])}
	r := b.beginReplay(outbox.Selector{IDs: all})
	if sent := b.send(r, all...); !slices.Equal(sent, all[:1]) {
		t.Fatalf("sent %v, want the one in failed, %v", sent, all[0])
	}
	if got := b.row(all[0]); got.Status != "pending" || got.Attempts != 0 || got.Reclaims != 0 || got.Owner != nil || got.Retry == nil || got.Lease != nil || *got.Error != "no" {
		t.Errorf("replayed row is %+v, want due, without attempts, with the error of the last one", got)
	}
	var n int
	var by, why string
	var at time.Time
	if err := b.pool.QueryRow(t.Context(), "select replay_count, last_replayed_by, last_replayed_reason, last_replayed_at from search_outbox_events where id = $1",
		&all[0]).Scan(&n, &by, &why, &at); err != nil || n != 1 || by != "alice" || why != "fixed" {
		t.Errorf("the row holds %d, %q, %q (%v), want 1, alice, fixed", n, by, why, err)
	}
	if diff := cmp.Diff(before, []row{b.row(all[1]), b.row(all[2]), b.row(all[3])}); diff != "" {
		t.Errorf("rows that are done, waiting and in flight have changed:\n%s", diff)
	}
	if sent := b.send(r, all...); len(sent) != 0 {
		t.Errorf("a second time sent %v, want none", sent)
	}
	f, err := r.Fates(t.Context(), all)
	if err != nil || f.Done != 2 || f.Failed != 0 || len(f.Open) != 3 { // a row that is gone counts as done
		t.Errorf("fates %+v, %v, want 2 done and 3 open", f, err)
	}
	if err := r.End(t.Context(), outbox.ReplayOutcome{Outcome: "finished", Done: 1}); err != nil {
		t.Fatal(err)
	}
	count, detail := b.audited(r.AuditID())
	if count != 1 || detail["outcome"] != "finished" || detail["done"] != 1.0 || detail["ended_at"] == nil || detail["table"] != table {
		t.Errorf("audit: %d, %v, want one row, finished", count, detail)
	}
	// The settle of the batch that was in flight all the while is not disturbed.
	if s := b.settle(y, y.all(outbox.Done)...); len(s.Left) != 0 {
		t.Errorf("settled %+v, want all of the batch", s)
	}
	if z := b.leaseAll(); z.Count() != 1 || z.Events[0][0].ID != all[0] || z.Events[0][0].Key != key {
		t.Errorf("leased %+v, want the replayed one", z.Events)
	}
}

// The first page holds the lowest versions of all, the others go entity by entity.
func TestReplayListsEachOnceFromTheLowestVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	of := func(entity string, typ string, version int64, ago string) {
		b.exec("update search_outbox_events set entity_id = $1, entity_type = $2 where id = $3", entity, typ, ptr(b.fail("block", version, "es_4xx", ago)))
	}
	one, two := "10000000-0000-0000-0000-000000000000", "20000000-0000-0000-0000-000000000000"
	of(two, "block", 1, "1 min")
	of(one, "block", 2, "9 min")
	for _, version := range []int64{9, 5, 7} {
		of(two, "block", version, fmt.Sprintf("%d min", version))
	}
	of(one, "block", 8, "-1 h") // of a clock that was ahead
	for range 3 {
		of(one, "block", 8, "1 min")
		of(one, "page", 8, "1 min")
	}
	r := b.beginReplay(outbox.Selector{})
	var got []string
	for {
		ids, err := r.Next(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(ids) == 0 {
			break
		}
		b.send(r, ids...)
		// All of them fail again at once.
		b.exec("update search_outbox_events set status = 'failed', updated_at = clock_timestamp() where id = any($1::uuid[])", outbox.IDs(ids, func(id *outbox.ID) *outbox.ID { return id }))
		for _, id := range ids {
			var entity string
			var v int64
			if err := b.pool.QueryRow(t.Context(), "select entity_id::text, event_version from search_outbox_events where id = $1", &id).Scan(&entity, &v); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s/%d", entity[:1], v))
		}
	}
	want := "2/1 1/2 1/8 1/8 1/8 1/8 1/8 1/8 1/8 2/5 2/7 2/9"
	if strings.Join(got, " ") != want {
		t.Errorf("listed %v, want %s", got, want)
	}
	if n := b.count("replay_count = 1"); n != 12 {
		t.Errorf("%d events were replayed once, want all 12", n)
	}
}

// TestReplayListsWhatFailedAtNoTime: an adopted table may allow null for the last change.
func TestReplayListsWhatFailedAtNoTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.fail("book", 1, "es_4xx", "1 h")
	b.exec("alter table search_outbox_events alter column updated_at drop not null")
	b.exec("update search_outbox_events set updated_at = null")
	if ids, err := b.beginReplay(outbox.Selector{}).Next(t.Context(), 10); err != nil || !slices.Equal(ids, []outbox.ID{id}) {
		t.Errorf("listed %v, %v, want the dead letter", ids, err)
	}
}

func ptr[T any](v T) *T { return &v }

func TestReplayPassesOverWhatOthersHold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	held, free := b.fail("block", 1, "es_4xx", "1 h"), b.fail("block", 2, "es_4xx", "1 h")
	r := b.beginReplay(outbox.Selector{})
	release := b.hold("event_version = 1")
	if sent := b.send(r, held, free); !slices.Equal(sent, []outbox.ID{free}) {
		t.Errorf("sent %v while a stranger holds the other, want %v", sent, free)
	}
	release()
	if sent := b.send(r, held, free); !slices.Equal(sent, []outbox.ID{held}) {
		t.Errorf("sent %v then, want %v", sent, held)
	}
	if n, _ := b.audited(r.AuditID()); n != 2 {
		t.Errorf("audited %d rows, want 2", n)
	}
}

func TestReplaysAtTheSameTimeShareTheRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var ids []outbox.ID
	for v := range int64(200) {
		ids = append(ids, b.fail("block", v, "es_4xx", "1 h"))
	}
	replays := []*outbox.Replay{b.beginReplay(outbox.Selector{}), b.beginReplay(outbox.Selector{}), b.beginReplay(outbox.Selector{})}
	var wg sync.WaitGroup
	counts, errs := make([]int, len(replays)), make([]error, len(replays))
	for i, r := range replays {
		mine := slices.Clone(ids)
		if i == 1 {
			slices.Reverse(mine)
		}
		wg.Go(func() {
			for part := range slices.Chunk(mine, 20) {
				sent, err := r.Send(t.Context(), part)
				counts[i] += len(sent)
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	total := 0
	for i, r := range replays {
		n, _ := b.audited(r.AuditID())
		if n != counts[i] {
			t.Errorf("replay %d has sent %d and the audit says %d", i, counts[i], n)
		}
		total += n
	}
	if pending := b.count("status = 'pending' and replay_count = 1"); total != pending || pending+b.count("status = 'failed'") != 200 {
		t.Errorf("%d rows are pending after one replay each, and %d were counted", pending, total)
	}
}

func TestReplayNeedsItsAudit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.fail("block", 1, "es_4xx", "1 h")
	for want, o := range map[string]outbox.LetterOrder{
		"who it is: must not be empty":                        {By: " ", Why: "x"},
		"who it is: must not be longer than 120 characters":   {By: strings.Repeat("é", 121), Why: "x"},
		"the reason: must not be empty":                       {By: "x"},
		"the reason: must not contain control characters":     {By: "x", Why: "a\nb"},
		"the reason: must not be longer than 1000 characters": {By: "x", Why: strings.Repeat("é", 1001)},
		"who it is: must not contain control characters":      {By: "a\x1b[31m", Why: "x"},
	} {
		if _, err := b.letters(b.pool).BeginReplay(t.Context(), o, 1); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	r := b.beginReplay(outbox.Selector{})
	b.exec("delete from weft_audit")
	if sent, err := r.Send(t.Context(), []outbox.ID{id}); !errors.Is(err, outbox.ErrNoEntry) || len(sent) != 0 {
		t.Errorf("sent %v, %v without an audit, want ErrNoEntry", sent, err)
	}
	if got := b.row(id); got.Status != "failed" {
		t.Errorf("row is %+v, want it in failed", got)
	}
	if err := r.End(t.Context(), outbox.ReplayOutcome{}); !errors.Is(err, outbox.ErrNoEntry) {
		t.Errorf("End: %v, want ErrNoEntry", err)
	}
}

// What operators do with psql goes on working.
func TestReplayByHand(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"update search_outbox_events set status = 'pending', attempts = 0, next_retry_at = null where status = 'failed'",
		"update search_outbox_events set status = 'pending' where status = 'failed'",
	} {
		b := setup(t)
		b.enqueue(1)
		x := b.leaseAll()
		b.settle(x, x.all(outbox.Failed)...)
		b.exec(sql)
		y := b.leaseAll()
		if y.Count() != 1 || y.Events[0][0].ID != x.Events[0][0].ID {
			t.Fatalf("%s: leased %+v, want the event", sql, y.Events)
		}
		if s := b.settle(y, y.all(outbox.Done)...); len(s.Left) != 0 || b.count("status = 'done'") != 1 {
			t.Errorf("%s: settled %+v, want the row done", sql, s)
		}
	}
}

// A batch of a replay costs what its rows cost, and a look at them as well.
func TestReplayCostFollowsTheBatch(t *testing.T) {
	t.Parallel()
	for _, statistics := range []string{fresh, ofBacklog, ofDrained} {
		t.Run(statistics, func(t *testing.T) {
			t.Parallel()
			const n = 200
			b := crowded(t, false, statistics)
			// A person's sessions have the settings of the server.
			e := &explained{Pool: testenv.Pool(t, b.pool.Config().ConnString()), t: t}
			r, err := b.letters(e).BeginReplay(t.Context(), outbox.LetterOrder{By: "a", Why: "b"}, n)
			if err != nil {
				t.Fatal(err)
			}
			var ids []outbox.ID
			for page := range 3 {
				e.blocks, e.rows = 0, 0
				if ids, err = r.Next(t.Context(), n); err != nil || len(ids) != n {
					t.Fatalf("listed %d, %v", len(ids), err)
				}
				if page > 0 && (e.rows > 3*n || e.blocks > 10*n) {
					t.Errorf("page %d touches %d blocks, and a step reads %d rows", page+1, e.blocks, e.rows)
				}
			}
			e.blocks, e.rows = 0, 0
			if sent, err := r.Send(t.Context(), ids); err != nil || len(sent) != n {
				t.Fatalf("sent %d, %v", len(sent), err)
			}
			if f, err := r.Fates(t.Context(), ids); err != nil || len(f.Open) != n {
				t.Fatalf("fates %+v, %v", f, err)
			}
			t.Logf("%d blocks, at most %d rows in one step", e.blocks, e.rows)
			if e.rows > 3*n || e.blocks > 150*n {
				t.Errorf("%d rows touch %d blocks, and a step reads %d rows", n, e.blocks, e.rows)
			}
		})
	}
}

func TestReadAudit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	b.leaseAll()
	b.setTerm(2, "a")
	if _, err := b.store.ReclaimLeases(t.Context(), outbox.ReclaimRequest{Epoch: 2, Limit: 10, MaxReclaims: 5}); err != nil {
		t.Fatal(err)
	}
	b.exec("update weft_audit set at = now() - interval '2 h'")
	r := b.beginReplay(outbox.Selector{Reason: "es_4xx"})
	for name, tt := range map[string]struct {
		f    outbox.AuditFilter
		want []string
	}{
		"All":        {outbox.AuditFilter{Limit: 9}, []string{"replay", "reclaim"}},
		"Limit":      {outbox.AuditFilter{Limit: 1}, []string{"replay"}},
		"Action":     {outbox.AuditFilter{Limit: 9, Action: "reclaim"}, []string{"reclaim"}},
		"Actor":      {outbox.AuditFilter{Limit: 9, Actor: "alice"}, []string{"replay"}},
		"Since":      {outbox.AuditFilter{Limit: 9, Since: b.now().Add(-time.Hour)}, []string{"replay"}},
		"Projection": {outbox.AuditFilter{Limit: 9, Projection: "chronicle_events_to_entries"}, nil},
	} {
		found, err := outbox.ReadAudit(t.Context(), b.pool, tt.f, time.Minute)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, e := range found {
			got = append(got, e.Action)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
	found, err := outbox.ReadAudit(t.Context(), b.pool, outbox.AuditFilter{Limit: 2}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	replay, reclaim := found[0], found[1]
	if replay.ID != r.AuditID() || replay.Actor != "alice" || replay.Why != "fixed" || !strings.Contains(string(replay.Detail), `"reason": "es_4xx"`) {
		t.Errorf("got %+v, want who, why and the selector", replay)
	}
	if reclaim.FromOwner != "a" || *reclaim.FromEpoch != 1 || *reclaim.ByEpoch != 2 || reclaim.Count != 1 || string(reclaim.Detail) != "null" {
		t.Errorf("got %+v, want from whom it was taken", reclaim)
	}
}
