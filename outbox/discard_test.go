package outbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/outbox"
)

func (b *bench) discard(s outbox.Selector) outbox.DiscardOutcome {
	b.t.Helper()
	out, err := b.letters(b.pool).Discard(b.t.Context(), outbox.LetterOrder{By: "alice", Why: "test data", Selector: s})
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

func (b *bench) found(s outbox.Selector) (ids []outbox.ID) {
	b.t.Helper()
	list, err := b.letters(b.pool).List(b.t.Context(), s, 100)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, l := range list {
		ids = append(ids, l.ID)
	}
	return ids
}

func TestDiscardedEventsStayInFailedAndCountNoMore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	book, other, tag := b.fail("book", 1, "es_4xx", "3 h"), b.fail("book", 2, "es_4xx", "2 h"), b.fail("tag", 3, "es_4xx", "1 h")

	out := b.discard(outbox.Selector{EntityType: "book"})
	if out.Outcome != outbox.DiscardFinished || out.Matched != 2 || out.Discarded != 2 || out.Skipped != 0 {
		t.Errorf("got %+v, want both books", out)
	}
	count, detail := b.audited(out.AuditID)
	if count != 2 || detail["outcome"] != "finished" || detail["discarded"] != 2.0 || detail["table"] != table {
		t.Errorf("the audit has %d and %v", count, detail)
	}
	if n := b.count("discarded_at is not null and updated_at < now() - interval '1 h'"); n != 2 {
		t.Errorf("%d keep the time of their failure, want 2", n)
	}
	if got := b.found(outbox.Selector{}); !slices.Equal(got, []outbox.ID{tag}) {
		t.Errorf("left: got %v, want the tag", got)
	}
	if got := b.found(outbox.Selector{Discarded: true}); !slices.Equal(got, []outbox.ID{other, book}) {
		t.Errorf("discarded: got %v, want both books, the newest failure first", got)
	}
	list, err := b.letters(b.pool).List(t.Context(), outbox.Selector{IDs: []outbox.ID{book}}, 1)
	if err != nil || len(list) != 1 || list[0].DiscardedAt == nil || list[0].DiscardedBy != "alice" || list[0].DiscardReason != "test data" {
		t.Errorf("by id: got %+v, %v, want who discarded it", list, err)
	}
	for name, read := range map[string]func() (outbox.Stats, error){
		"Stats":  func() (outbox.Stats, error) { return b.store.Stats(t.Context(), time.Minute, 0) },
		"Glance": func() (outbox.Stats, error) { return b.store.Stats(t.Context(), time.Minute, 100) },
	} {
		if st, err := read(); err != nil || st.Failed != 1 || st.Discarded != 2 {
			t.Errorf("%s: got %d failed and %d discarded, %v; want 1 and 2", name, st.Failed, st.Discarded, err)
		}
	}

	// Again, by ids: one was discarded before, one is not there.
	out = b.discard(outbox.Selector{IDs: []outbox.ID{book, tag, outbox.UUID(uuid.New())}})
	if out.Matched != 2 || out.Discarded != 1 || out.Skipped != 1 {
		t.Errorf("got %+v, want the tag alone", out)
	}
	if out = b.discard(outbox.Selector{}); out.Matched != 0 || out.AuditID != 0 {
		t.Errorf("got %+v, want nothing left to discard", out)
	}
}

// A replay by ids, or of those that were discarded, takes the mark away, so that an event that
// fails again is a dead letter again.
func TestReplayUndoesADiscard(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.fail("book", 1, "es_4xx", "3 h"), b.fail("book", 2, "es_4xx", "2 h")
	b.discard(outbox.Selector{})
	for name, tc := range map[string]struct {
		s    outbox.Selector
		want []outbox.ID
	}{"All": {outbox.Selector{}, nil}, "ID": {outbox.Selector{IDs: []outbox.ID{second}}, []outbox.ID{second}}, "Discarded": {outbox.Selector{Discarded: true}, []outbox.ID{first, second}}} {
		if got, err := b.beginReplay(tc.s).Next(t.Context(), 10); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: a replay lists %v, %v, want %v", name, got, err, tc.want)
		}
	}
	b.send(b.beginReplay(outbox.Selector{Discarded: true}), first, second)
	if n := b.count("status = 'pending' and num_nonnulls(discarded_at, discarded_by, discarded_reason) = 0"); n != 2 {
		t.Errorf("%d are pending and no longer marked, want both", n)
	}
}

// TestReplayLeavesOutWhatWasDiscardedSinceItsList: a page of a slow replay is many seconds old when its end is sent.
func TestReplayLeavesOutWhatWasDiscardedSinceItsList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.fail("book", 1, "es_4xx", "3 h"), b.fail("tag", 2, "es_4xx", "2 h")
	for name, tc := range map[string]struct {
		s    outbox.Selector
		want []outbox.ID
	}{"All": {outbox.Selector{}, []outbox.ID{first}}, "IDs": {outbox.Selector{IDs: []outbox.ID{first, second}}, []outbox.ID{first, second}}} {
		r := b.beginReplay(tc.s)
		ids, err := r.Next(t.Context(), 10)
		if err != nil || len(ids) != 2 {
			t.Fatalf("%s: listed %v, %v, want both", name, ids, err)
		}
		b.discard(outbox.Selector{EntityType: "tag"})
		sent := b.send(r, ids...)
		slices.SortFunc(sent, func(a, b outbox.ID) int { return slices.Index(ids, a) - slices.Index(ids, b) })
		if !slices.Equal(sent, tc.want) {
			t.Errorf("%s: sent %v, want %v", name, sent, tc.want)
		}
		b.exec("update search_outbox_events set status = 'failed', updated_at = now() - interval '1 h', discarded_at = null, discarded_by = null, discarded_reason = null")
	}
}

// cancelling ends a context before the first discard of rows.
type cancelling struct {
	outbox.DB
	cancel func()
}

func (c cancelling) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if strings.Contains(sql, "discarded_at = clock_timestamp()") {
		c.cancel()
	}
	return c.DB.QueryRow(ctx, sql, args...)
}

func TestDiscardEndsInterruptedAndAudited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fail("book", 1, "es_4xx", "3 h")
	ctx, cancel := context.WithCancel(t.Context())
	out, err := b.letters(cancelling{b.pool, cancel}).Discard(ctx, outbox.LetterOrder{By: "alice", Why: "x"})
	if !errors.Is(err, context.Canceled) || out.Outcome != outbox.DiscardInterrupted {
		t.Fatalf("got %+v, %v, want an interruption", out, err)
	}
	if count, detail := b.audited(out.AuditID); count != 0 || detail["outcome"] != outbox.DiscardInterrupted {
		t.Errorf("the audit has %d and %v", count, detail)
	}
}
