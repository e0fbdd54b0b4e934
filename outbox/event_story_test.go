package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

func (b *bench) stories(timeout time.Duration) *outbox.Stories {
	b.t.Helper()
	s, err := outbox.OpenStories(b.t.Context(), b.pool, table, timeout)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *bench) find(id outbox.ID) (*outbox.Story, outbox.Search) {
	b.t.Helper()
	story, search, err := b.stories(time.Minute).Find(b.t.Context(), id)
	if err != nil {
		b.t.Fatal(err)
	}
	return story, search
}

// one enqueues an event and returns its id.
func (b *bench) one(key outbox.Key, version int64) (id outbox.ID) {
	b.t.Helper()
	b.enqueueFor(key, version)
	if err := b.pool.QueryRow(b.t.Context(), "select id from "+table+" where entity_id = $1 and event_version = $2", &key.ID, version).Scan(&id); err != nil {
		b.t.Fatal(err)
	}
	return id
}

func newKey() outbox.Key { return outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())} }

// TestStoryTellsWhereAnEventIs, through all the places of its life.
func TestStoryTellsWhereAnEventIs(t *testing.T) {
	t.Parallel()
	for place, tc := range map[outbox.Place]struct {
		set   string // of the row
		check func(s *outbox.Story) bool
	}{
		outbox.PlaceReady: {"attempts = 0", func(s *outbox.Story) bool {
			return s.RetryAt == nil && s.Holder == outbox.Holder{} && s.Behind == nil
		}},
		outbox.PlaceDue:     {"next_retry_at = now() - interval '1 s', attempts = 2", func(s *outbox.Story) bool { return s.RetryAt != nil && s.Attempts == 2 }},
		outbox.PlaceWaiting: {"next_retry_at = now() + interval '1 h', error_reason = 'es_5xx', error = 'boom'", func(s *outbox.Story) bool { return s.RetryAt != nil && s.Reason == "es_5xx" && s.Error == "boom" }},
		outbox.PlaceBehind:  {"next_retry_at = now() + interval '1 h', behind = 3", func(s *outbox.Story) bool { return s.Behind != nil && *s.Behind == 3 }},
		outbox.PlaceClaimed: {"status = 'processing', owner = 'python', lease_until = now() + interval '1 min', processing_started_at = now()",
			func(s *outbox.Story) bool {
				return s.Owner == "python" && s.Epoch == 0 && s.Until != nil && s.Since != nil && s.Batch == ""
			}},
		outbox.PlaceFailed: {"status = 'failed', error_reason = 'es_4xx', replay_count = 2, last_replayed_by = 'alice', last_replayed_reason = 'again', last_replayed_at = now()",
			func(s *outbox.Story) bool {
				return s.Reason == "es_4xx" && s.Replays == 2 && s.ReplayedBy == "alice" && s.ReplayReason == "again" && s.ReplayedAt != nil
			}},
		outbox.PlaceDone:  {"status = 'done', processed_at = now()", func(s *outbox.Story) bool { return s.DoneAt != nil }},
		outbox.PlaceOther: {"status = 'parked', created_at = 'infinity', updated_at = '-infinity', traceparent = 'garbage'", func(s *outbox.Story) bool { return s.Status == "parked" && s.CreatedAt == nil && s.TraceID() == "" }},
	} {
		t.Run(string(place), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			key := newKey()
			id := b.one(key, 7)
			b.exec("update " + table + " set traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', tracestate = 'x=1'")
			b.exec("update " + table + " set " + tc.set)
			s, _ := b.find(id)
			if s == nil || s.Place != place || s.ID != id || s.Key() != key || s.Version != 7 || s.Op != outbox.Upsert || s.Now.IsZero() || !tc.check(s) {
				t.Fatalf("got %+v, want %s", s, place)
			}
			if place != outbox.PlaceOther && (s.TraceID() != "0af7651916cd43dd8448eb211c80319c" || s.Tracestate != "x=1" || s.CreatedAt == nil || s.UpdatedAt == nil) {
				t.Errorf("trace or times: got %+v", s)
			}
		})
	}
}

// TestStoryOfAnEventInFlight names its lease, and not the batch beside it.
func TestStoryOfAnEventInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mine, other := b.one(newKey(), 1), b.one(newKey(), 2)
	l := b.list()
	x := b.lease(1, groups(l.Ready[0])...)
	b.lease(1, groups(l.Ready[1])...)
	s, _ := b.find(mine)
	if s == nil || s.Place != outbox.PlaceInFlight || s.Batch != x.id.String() || s.Owner != "a" || s.Epoch != 1 ||
		s.Until.Sub(*s.Since) != leaseTime {
		t.Errorf("got %+v, want batch %s of a", s, x.id)
	}
	if s, _ := b.find(other); s == nil || s.Batch == "" || s.Batch == x.id.String() {
		t.Errorf("the other: got %+v, want another batch", s)
	}
}

// TestStoryNamesWhatGoesBefore: the entity's open events before this one, not those of
// others, not later ones, not settled ones; of many the earliest.
func TestStoryNamesWhatGoesBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	key := newKey()
	first := b.one(key, 1)
	done, failed, second, me := b.one(key, 2), b.one(key, 3), b.one(key, 4), b.one(key, 5)
	b.one(key, 6)
	b.one(outbox.Key{Type: "book", ID: key.ID}, 1) // of another type with the same id
	b.enqueue(1)
	b.exec("update "+table+" set status = 'done' where id = $1", &done)
	b.exec("update "+table+" set status = 'failed' where id = $1", &failed)
	b.exec("update "+table+" set next_retry_at = now() + interval '1 h' where id = $1", &first)
	b.exec("update "+table+" set next_retry_at = now() + interval '1 h', behind = 1 where id in ($1, $2)", &second, &me)
	s, _ := b.find(me)
	var got []outbox.ID
	for _, e := range s.Before {
		got = append(got, e.ID)
	}
	if !cmp.Equal(got, []outbox.ID{first, second}, cmp.Comparer(func(a, b outbox.ID) bool { return a == b })) || s.More {
		t.Fatalf("before: got %v, want %v and %v", got, first, second)
	}
	if f, e := s.Before[0], s.Before[1]; f.RetryAt == nil || f.Behind != nil || f.Status != "pending" || f.InFlight || e.Behind == nil {
		t.Errorf("before: got %+v", s.Before)
	}
	if s, _ := b.find(done); len(s.Before) != 0 {
		t.Errorf("of a done event: got %v before it, want nothing told", s.Before)
	}
	b.exec(`insert into `+table+` (id, entity_type, entity_id, op, event_version) select gen_random_uuid(), 'block', $1, 'upsert', -i from generate_series(1, 30) i`, &key.ID)
	if s, _ := b.find(me); len(s.Before) != outbox.MaxBefore || !s.More || s.Before[0].Version != -30 {
		t.Errorf("of many: got %d, more %v, want the %d earliest", len(s.Before), s.More, outbox.MaxBefore)
	}
}

// TestStoryFindsArchivedEvents: in days with an index, in the day that is written, and in
// days of the past that were not indexed yet.
func TestStoryFindsArchivedEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := map[int]outbox.ID{}
	for days := range 5 {
		ids[days] = b.one(newKey(), int64(days))
		b.exec("update "+table+" set status = 'done', processed_at = now() - $2 * interval '24 hours' where id = $1", &[]outbox.ID{ids[days]}[0], days)
	}
	f := b.finished()
	if got, err := f.Sweep(t.Context(), outbox.Sweep{Move: true}); err != nil || got.Moved != 5 {
		t.Fatalf("sweep: %+v, %v", got, err)
	}
	parts, _, err := f.Partitions(t.Context())
	if err != nil || len(parts) != 5 {
		t.Fatal(err)
	}
	for _, p := range parts[:3] { // 4, 3 and 2 days ago
		if _, err := f.IndexClosed(t.Context(), p.Name, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	for days, id := range ids {
		s, _ := b.find(id)
		if s == nil || s.Place != outbox.PlaceArchived || s.Partition != parts[4-days].Name || s.ID != id || s.Version != int64(days) || s.DoneAt == nil {
			t.Errorf("%d days ago: got %+v, want it in %s", days, s, parts[4-days].Name)
		}
	}
	s, search := b.find(outbox.UUID(uuid.New()))
	if s != nil || search.Partitions != 5 || !search.Since.Equal(parts[0].From) || len(search.Skipped) != 0 {
		t.Errorf("unknown: got %+v, %+v, want five days searched, since %v", s, search, parts[0].From)
	}
	if s, search := b.find(outbox.Number(17)); s != nil || search.Partitions != 0 {
		t.Errorf("id of another kind: got %+v, %+v, want nothing", s, search)
	}

	// A day that cannot be read in time is named.
	slow := &slowDay{Pool: b.pool, from: parts[4].From}
	reader, err := outbox.OpenStories(t.Context(), slow, table, 150*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	s, search, err = reader.Find(t.Context(), outbox.UUID(uuid.New()))
	if err != nil || s != nil || !cmp.Equal(search.Skipped, []string{parts[4].Name}) || search.Partitions != 4 {
		t.Errorf("with a large day: got %+v, %+v, %v, want today skipped", s, search, err)
	}
}

// slowDay is a pool whose server takes long to read one day of the history, and whose other answers are waited for.
type slowDay struct {
	*pgxpool.Pool
	from time.Time
}

func (s *slowDay) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if len(args) == 3 && args[1].(pgtype.Timestamptz).Time.Equal(s.from) {
		return s.Pool.Query(ctx, "select pg_sleep(60)")
	}
	return s.Pool.Query(context.WithoutCancel(ctx), sql, args...)
}

func (s *slowDay) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return s.Pool.QueryRow(context.WithoutCancel(ctx), sql, args...)
}

// TestStoryOfNumberedEvents: ids of the table's own kind.
func TestStoryOfNumberedEvents(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t, testenv.Database(t))
	b := &bench{t: t, pool: pool}
	b.exec(`create table orders_outbox_events (like search_outbox_events including defaults); alter table orders_outbox_events drop id, drop entity_id;
		alter table orders_outbox_events add id bigint primary key, add entity_id text not null;
		insert into orders_outbox_events (id, entity_type, entity_id, op, event_version) values (42, 'order', 'o-1', 'upsert', 1), (41, 'order', 'o-1', 'upsert', 1)`)
	s, err := outbox.OpenStories(t.Context(), pool, "orders_outbox_events", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []outbox.ID{outbox.Number(42), outbox.Text("42")} {
		story, _, err := s.Find(t.Context(), id)
		if err != nil || story == nil || story.ID != outbox.Number(42) || story.EntityID != outbox.Text("o-1") || len(story.Before) != 1 || story.Before[0].ID != outbox.Number(41) {
			t.Errorf("%v: got %+v, %v, want event 42 behind 41", id, story, err)
		}
	}
	if story, _, err := s.Find(t.Context(), outbox.Number(7)); err != nil || story != nil {
		t.Errorf("unknown number: got %+v, %v, want nothing", story, err)
	}
}
