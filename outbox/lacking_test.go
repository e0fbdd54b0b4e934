package outbox_test

import (
	"slices"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// An adopted table may allow null in every column that the application writes: such rows are listed with the others, are
// discarded, and are sent again where something can carry them.
func TestDeadLettersThatLackValues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`alter table search_outbox_events alter entity_type drop not null, alter entity_id drop not null, alter op drop not null,
		alter event_version drop not null`)
	whole := b.fail("book", 1, "es_4xx", "1 h")
	lacking := map[string]outbox.ID{}
	for _, column := range []string{"entity_type", "entity_id", "op", "event_version"} {
		lacking[column] = b.fail("book", 2, "es_4xx", "1 h")
		b.exec("update search_outbox_events set "+column+" = null where id = $1", ptr(lacking[column]))
	}
	letters := b.letters(b.pool)
	list, err := letters.List(t.Context(), outbox.Selector{}, 9)
	if err != nil || len(list) != 5 {
		t.Errorf("list: got %d, %v, want 5", len(list), err)
	}
	if groups, err := letters.Summary(t.Context(), outbox.Selector{}); err != nil || len(groups) != 2 {
		t.Errorf("summary: got %+v, %v, want the book's and those of no type", groups, err)
	}
	for column, id := range lacking {
		if story, _, err := b.stories(time.Minute).Find(t.Context(), id); err != nil || story == nil {
			t.Errorf("event without %s: got %v, %v", column, story, err)
		}
	}
	r := b.beginReplay(outbox.Selector{})
	ids, err := r.Next(t.Context(), 9)
	if err != nil || len(ids) != 5 {
		t.Fatalf("to be sent again: got %d, %v, want 5", len(ids), err)
	}
	if sent := b.send(r, ids...); len(sent) != 3 || !slices.Contains(sent, whole) || slices.Contains(sent, lacking["entity_id"]) || slices.Contains(sent, lacking["event_version"]) {
		t.Errorf("sent %v, want all but those without an entity or a version", sent)
	}
	b.exec("update search_outbox_events set event_version = null where id = $1", &whole)
	if waiting, err := b.store.Waiting(t.Context(), 9); err != nil || len(waiting) != 3 {
		t.Errorf("waiting: got %+v, %v, want 3", waiting, err)
	}
	out, err := letters.Discard(t.Context(), outbox.LetterOrder{By: "alice", Why: "x"})
	if err != nil || out.Discarded != 2 {
		t.Errorf("discard: got %+v, %v, want the other 2", out, err)
	}
}

// A row of an adopted table may lack its type and op: a settle that looks for it finds it all the same.
func TestRowWithoutTypeAndOpIsSettled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("alter table search_outbox_events alter entity_type drop not null, alter op drop not null")
	b.enqueue(1)
	b.exec("update search_outbox_events set entity_type = null, op = null")
	x := b.leaseAll()
	b.exec("update search_outbox_events set updated_at = now()") // so that the settle looks for it
	if got := b.settle(x, x.all(outbox.Failed)...); len(got.Left) != 0 || b.count("status = 'failed'") != 1 {
		t.Errorf("left %+v, want it settled", got.Left)
	}
}
