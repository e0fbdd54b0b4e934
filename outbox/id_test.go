package outbox_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/outbox"
)

func TestIDsReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	u := uuid.New()
	for _, id := range []outbox.ID{
		outbox.UUID(u), outbox.UUID(uuid.Nil), outbox.Number(0), outbox.Number(math.MinInt64), outbox.Number(math.MaxInt64),
		outbox.Text("a"), outbox.Text(strings.Repeat("é", 1250)),
	} {
		got, err := outbox.ParseID(id.Kind(), id.String())
		if err != nil || got != id {
			t.Errorf("%s %s read as %s, %v", id.Kind(), id, got, err)
		}
	}
	if got := outbox.UUID(u).String(); got != u.String() {
		t.Errorf("uuid %s is written as %s", u, got)
	}
	if got := (outbox.Key{Type: "book", ID: outbox.Number(-7)}).String(); got != "book:-7" {
		t.Errorf("key is written as %s", got)
	}
	for text, kind := range map[string]outbox.IDKind{
		"12": outbox.KindUUID, "x": outbox.KindNumber, "9223372036854775808": outbox.KindNumber, "": outbox.KindText,
		strings.Repeat("x", 2501): outbox.KindText, "y": 0,
	} {
		if got, err := outbox.ParseID(kind, text); err == nil {
			t.Errorf("%q as %s: got %s, want an error", text, kind, got)
		}
	}
}

// TestIDsAreOrderedAsTheDatabaseOrdersThem, with the indexes that lists read.
func TestIDsAreOrderedAsTheDatabaseOrdersThem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var numbers, uuids []outbox.ID
	for _, n := range []int64{0, -1, 1, math.MinInt64, math.MaxInt64, 1 << 40} {
		numbers = append(numbers, outbox.Number(n))
	}
	for range 50 {
		uuids = append(uuids, outbox.UUID(uuid.New()))
	}
	for typ, ids := range map[string][]outbox.ID{"bigint": numbers, "uuid": uuids} {
		rows, err := b.pool.Query(t.Context(), "select id from unnest($1::"+typ+"[]) id order by id", outbox.IDs(ids, func(i *outbox.ID) *outbox.ID { return i }))
		if err != nil {
			t.Fatal(err)
		}
		var got []outbox.ID
		for rows.Next() {
			var id outbox.ID
			if err := rows.Scan(&id); err != nil {
				t.Fatal(err)
			}
			got = append(got, id)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		if !slices.IsSortedFunc(got, outbox.ID.Compare) || len(got) != len(ids) {
			t.Errorf("the database's order of %s is %v, Compare's is another", typ, got)
		}
	}
}

// TestDigestsSpreadIDs: what is kept of a sampling of traces, and the requests of a batch,
// are chosen by them.
func TestDigestsSpreadIDs(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]func(int) outbox.ID{
		"uuid":   func(int) outbox.ID { return outbox.UUID(uuid.New()) },
		"bigint": func(i int) outbox.ID { return outbox.Number(int64(i)) },
		"text":   func(i int) outbox.ID { return outbox.Text(strings.Repeat("x", i%100) + string(rune('a'+i/100))) },
	} {
		low := 0
		for i := range 2000 {
			if id(i).Digest() < math.MaxUint64/2 {
				low++
			}
		}
		if low < 850 || low > 1150 {
			t.Errorf("%s: %d of 2,000 digests are in the lower half", name, low)
		}
	}
}
