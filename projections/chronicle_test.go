package projections

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// happened inserts a chronicle event and returns its key.
func (b *bench) happened(kind, payload string) outbox.Key {
	b.tb.Helper()
	k := outbox.Key{Type: "chronicle_event", ID: outbox.UUID(uuid.New())}
	b.exec("insert into chronicle_events (id, event_type, book_id, payload, occurred_at) values ($1, $2, $3, $4, now())", &k.ID, kind, [16]byte(uuid.New()), payload)
	return k
}

func (b *bench) chronicle(version int) *Chronicle {
	b.tb.Helper()
	c, err := NewChronicle(b.pool, version, zaptest.NewLogger(b.tb))
	if err != nil {
		b.tb.Fatal(err)
	}
	return c
}

func (b *bench) project(c *Chronicle, events ...outbox.Event) []outbox.Outcome {
	b.tb.Helper()
	out, err := c.Project(leading(b.tb, 1), events)
	if err != nil {
		b.tb.Fatal(err)
	}
	return out
}

func TestChronicleRules(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.chronicle(1)
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept, dropped, gone := b.happened("book_created", `{"title":"T"}`), b.happened("book_created", `{}`), key()
	up := func(k outbox.Key) outbox.Event { return event(outbox.Upsert, k, 1) }
	del := func(k outbox.Key) outbox.Event { return event(outbox.Delete, k, 2) }
	ok, applied, missing := outbox.OK(), outbox.NoOp(outbox.NoopAlreadyApplied), outbox.NoOp(outbox.NoopSourceMissing)

	wantOutcomes(t, b.project(c, up(kept), event("merge", key(), 1), up(dropped), up(gone)),
		[]outbox.Outcome{ok, outbox.Reject(outbox.ReasonDeterministic, ""), ok, missing})
	wantOutcomes(t, b.project(c, up(kept), del(dropped)), []outbox.Outcome{applied, ok})
	wantOutcomes(t, b.project(c, del(dropped), del(gone)), []outbox.Outcome{applied, applied})
	if got := one[int](b, "select count(*) from chronicle_entries"); got != 1 {
		t.Errorf("entries: got %d, want 1", got)
	}
	if got := one[bool](b, `select (c.event_type, c.book_id, c.block_id, c.actor_id, c.occurred_at, c.created_at, c.payload)
		is not distinct from (e.event_type, e.book_id, e.block_id, e.actor_id, e.occurred_at, e.created_at, e.payload)
		from chronicle_entries c join chronicle_events e using (id)`); !got {
		t.Errorf("entry differs from its event")
	}

	b.exec("delete from chronicle_events")
	wantOutcomes(t, b.project(c, up(kept)), []outbox.Outcome{missing})
	if got := one[int](b, "select count(*) from chronicle_entries"); got != 0 {
		t.Errorf("entries without event: got %d, want 0", got)
	}
	wantOutcomes(t, b.project(c, event("merge", key(), 1)), []outbox.Outcome{outbox.Reject(outbox.ReasonDeterministic, "")})
}

func TestChronicleProjectionVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.happened("book_created", `{}`)
	for _, version := range []int{1, 2} {
		wantOutcomes(t, b.project(b.chronicle(version), event(outbox.Upsert, k, 1)), []outbox.Outcome{outbox.OK()})
		if got := one[int](b, "select projection_version from chronicle_entries"); got != version {
			t.Errorf("projection_version: got %d, want %d", got, version)
		}
	}
	if _, err := NewChronicle(b.pool, 0, zaptest.NewLogger(t)); err == nil {
		t.Errorf("version 0: got no error")
	}
}

func TestChronicleSummary(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.chronicle(1)
	for _, x := range []struct{ kind, payload, want string }{
		{"book_created", `{"title":"Ten days"}`, "Book created: “Ten days”"},
		{"block.status-changed", `{"from":"draft","to":"done"}`, "Block status changed: draft → done"},
		{"tag_removed", `{}`, "Tag removed"},
		{"tag_removed", `[1,2]`, "Tag removed"},
		{"tag_removed", `null`, "Tag removed"},
		{"tag_removed", `"text"`, "Tag removed"},
		{"note_edited", `{"title":"","name":{"a":1},"text":" a\n\tb  c "}`, "Note edited: “ a b c ”"},
		{"renamed", `{"title":"x","old":1,"new":true}`, "Renamed: “x”, 1 → true"},
		{"half", `{"from":"x"}`, "Half"},
		{"", `{}`, ""},
	} {
		k := b.happened(x.kind, x.payload)
		b.project(c, event(outbox.Upsert, k, 1))
		if got := one[string](b, "select summary from chronicle_entries where id = $1", &k.ID); got != x.want {
			t.Errorf("%s %s: got %q, want %q", x.kind, x.payload, got, x.want)
		}
	}
	long := b.happened("note_edited", `{"text":"`+strings.Repeat("é", 1<<20)+`","from":"`+strings.Repeat("a", 1000)+`","to":"`+strings.Repeat("b", 1000)+`"}`)
	b.project(c, event(outbox.Upsert, long, 1))
	if got := one[int](b, "select length(summary) from chronicle_entries where id = $1", &long.ID); got > 200 || got < 100 {
		t.Errorf("length of a long summary: got %d, want at most 200", got)
	}
}

// Once a newer epoch has been committed, nothing is written.
func TestChronicleIsFenced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.chronicle(1)
	up, old := b.happened("a", `{}`), b.happened("b", `{}`)
	b.project(c, event(outbox.Upsert, old, 1))
	b.exec("update weft_leader set epoch = 2")
	got, err := c.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, up, 1), event(outbox.Delete, old, 2)})
	if got != nil || !errors.Is(err, outbox.ErrFenced) {
		t.Errorf("got %v, %v, want ErrFenced", got, err)
	}
	if got := one[string](b, "select string_agg(event_type, ',') from chronicle_entries"); got != "b" {
		t.Errorf("entries: got %q, want the one of the old term untouched", got)
	}
	if _, err := c.Project(leading(t, 2), []outbox.Event{event(outbox.Upsert, up, 1)}); err != nil {
		t.Errorf("new term: %v", err)
	}
	if _, err := c.Project(t.Context(), []outbox.Event{event(outbox.Upsert, up, 1)}); err == nil {
		t.Errorf("without authority: got no error")
	}
}

// The bump of the epoch waits for a statement of the old term, and a statement that
// waits for the bump finds itself fenced.
func TestChronicleWaitsForTheBump(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.happened("a", `{}`)
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "update weft_leader set epoch = 2"); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := b.chronicle(1).Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, k, 1)})
		result <- err
	}()
	for waiting := 0; waiting == 0; {
		waiting = one[int](b, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, outbox.ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
	if got := one[int](b, "select count(*) from chronicle_entries"); got != 0 {
		t.Errorf("entries: got %d, want 0", got)
	}
}

func TestChronicleRefusedRowHoldsNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.chronicle(1)
	b.exec("create table books (id uuid primary key)")
	var events []outbox.Event
	var want []outbox.Outcome
	for i := range 20 {
		k := b.happened("a", `{"title":"secret"}`)
		events = append(events, event(outbox.Upsert, k, 1))
		if i == 3 || i == 11 {
			want = append(want, outbox.Reject(outbox.ReasonDeterministic, ""))
			continue
		}
		b.exec("insert into books select book_id from chronicle_events where id = $1", &k.ID)
		want = append(want, outbox.OK())
	}
	b.exec("alter table chronicle_entries add constraint entry_book foreign key (book_id) references books (id)")
	b.exec("update chronicle_events set correlation_id = 'request of ' || id where id = any ($1)", []uuid.UUID{uuid.MustParse(events[3].Key.ID.String()), uuid.MustParse(events[4].Key.ID.String())})
	for i := 3; i <= 4; i++ { // refused, and written
		want[i].Correlation = "request of " + events[i].Key.ID.String()
	}
	got := b.project(c, events...)
	wantOutcomes(t, got, want)
	for _, part := range []string{"23503", "entry_book"} {
		if !strings.Contains(got[3].Detail, part) {
			t.Errorf("detail: got %q, want %s in it", got[3].Detail, part)
		}
	}
	if n := one[int](b, "select count(*) from chronicle_entries"); n != 18 {
		t.Errorf("entries: got %d, want 18", n)
	}
}

func TestChronicleFaultsOfTheDatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.chronicle(1)
	k := b.happened("a", `{}`)
	b.exec("create function fail() returns trigger language plpgsql as $$ begin raise exception 'no' using errcode = tg_argv[0]; end $$")
	for code, want := range map[string]outbox.Fault{
		"40001": {Reason: outbox.ReasonDBContention},
		"40P01": {Reason: outbox.ReasonDBContention},
		"55P03": {Reason: outbox.ReasonDBContention},
		"57P01": {Reason: outbox.ReasonDBUnavailable, Shared: true},
		"53100": {Reason: outbox.ReasonDBUnavailable, Shared: true},
		"42501": {Reason: outbox.ReasonUnknown, Shared: true},
		"XX000": {Reason: outbox.ReasonUnknown},
	} {
		b.exec("create trigger t before insert on chronicle_entries for each row execute function fail('" + code + "')")
		out, err := c.Project(leading(t, 1), []outbox.Event{event(outbox.Upsert, k, 1)})
		f, ok := errors.AsType[*outbox.Fault](err)
		if out != nil || !ok || f.Reason != want.Reason || f.Shared != want.Shared {
			t.Errorf("%s: got %v, %v, want %s shared=%t", code, out, err, want.Reason, want.Shared)
		}
		b.exec("drop trigger t on chronicle_entries")
	}
	b.exec("create trigger t before insert on chronicle_entries for each row execute function fail('P0001')")
	wantOutcomes(t, b.project(c, event(outbox.Upsert, k, 1)), []outbox.Outcome{outbox.Reject(outbox.ReasonDeterministic, "")})
}

// The probe of an outage says so while a right is missing; otherwise it ends the outage at once, and weft tries in vain without pause.
func TestChronicleIsNotReadyWithoutARight(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	owner := &bench{tb: t, pool: testenv.Pool(t, dsn)}
	user := testenv.Runner(t, dsn)
	c := (&bench{tb: t, pool: testenv.Pool(t, testenv.As(t, dsn, user))}).chronicle(1)
	for _, right := range []string{"select on chronicle_events", "select on chronicle_entries", "insert on chronicle_entries", "update on chronicle_entries",
		"delete on chronicle_entries"} {
		if err := c.Ready(t.Context()); err != nil {
			t.Fatalf("with every right: %v", err)
		}
		owner.exec("revoke " + right + " from " + user.Username())
		table := right[strings.LastIndex(right, " ")+1:]
		f, ok := errors.AsType[*outbox.Fault](c.Ready(t.Context()))
		if !ok || !f.Shared || !strings.Contains(f.Error(), "permission denied for table "+table) || !strings.Contains(f.Error(), "weft migrate grant") {
			t.Errorf("without %s: got %v, want a shared fault that names the table and the remedy", right, f)
		}
		owner.exec("grant " + right + " to " + user.Username())
	}
	owner.exec("alter role " + user.Username() + " set row_security = off; alter table chronicle_entries enable row level security") // as weft's sessions have it
	hidden := (&bench{tb: t, pool: testenv.Pool(t, testenv.As(t, dsn, user))}).chronicle(1)
	if err := hidden.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), `for table "chronicle_entries"`) || !strings.Contains(err.Error(), "let the role bypass row security") {
		t.Errorf("with row security: got %v, want the table and the remedy", err)
	}
	owner.exec("alter table chronicle_entries disable row level security")
	tx, err := owner.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "lock table chronicle_entries in share mode"); err != nil {
		t.Fatal(err)
	}
	if err := c.Ready(t.Context()); err != nil {
		t.Errorf("beside a lock, as the build of an index takes it: %v", err)
	}
}
