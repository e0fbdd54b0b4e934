package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Two entities of which the first comes first in every order of ids.
var (
	heldKey  = outbox.Key{Type: "block", ID: outbox.UUID(uuid.MustParse("00000000-0000-4000-8000-000000000001"))}
	otherKey = outbox.Key{Type: "block", ID: outbox.UUID(uuid.MustParse("ffffffff-ffff-4fff-bfff-ffffffffffff"))}
)

// What the rows of stock are in.
const (
	asReady   = "'pending', null, null, null"
	asWaiting = "'pending', now() + interval '1 h', null, null"
	asPutOff  = "'pending', now() + interval '1 h', 0, null"
	asClaimed = "'processing', null, null, now() + interval '1 h'"
)

// stock writes n events of an entity, from a version on, that were created some minutes ago.
func (b *bench) stock(key outbox.Key, from, n, minutes int, as string) {
	b.t.Helper()
	b.exec(fmt.Sprintf(`insert into search_outbox_events (entity_type, entity_id, op, event_version, created_at, status, next_retry_at, behind, lease_until)
		select $1, $2, 'upsert', $3::bigint + i, now() - make_interval(mins => $4), %s from generate_series(0, $5::bigint - 1) i`, as), key.Type, &key.ID, from, minutes, n)
}

// The age that the objective of freshness uses is that of events that may go, however many events of an
// entity in quarantine are older.
func TestOldestUnquarantined(t *testing.T) {
	t.Parallel()
	const more = 10_000 // than the statement passes over, with one
	for name, tt := range map[string]struct {
		stock   func(b *bench)
		minutes int
	}{
		"Ready":   {func(b *bench) { b.stock(heldKey, 0, 300, 60, asReady); b.stock(otherKey, 300, 1, 5, asReady) }, 5},
		"Waiting": {func(b *bench) { b.stock(heldKey, 0, 2000, 60, asWaiting); b.stock(otherKey, 2000, 1, 5, asWaiting) }, 5},
		"PutOff":  {func(b *bench) { b.stock(heldKey, 0, 2000, 60, asPutOff); b.stock(otherKey, 2000, 1, 5, asPutOff) }, 5},
		"Claimed": {func(b *bench) { b.stock(heldKey, 0, 2, 60, asClaimed); b.stock(otherKey, 2, 1, 5, asClaimed) }, 5},
		"OtherType": {func(b *bench) {
			b.stock(heldKey, 0, 2, 60, asReady)
			b.stock(outbox.Key{Type: "tag", ID: heldKey.ID}, 0, 1, 5, asReady)
		}, 5},
		"NothingElse": {func(b *bench) { b.stock(heldKey, 0, 2, 60, asReady); b.stock(heldKey, 2, 2, 60, asPutOff) }, 0},
		"MoreThanItMay": {func(b *bench) {
			b.stock(heldKey, 0, more, 60, asReady)
			b.stock(heldKey, more, 9, 10, asReady)
			b.stock(otherKey, more+9, 1, 5, asReady)
		}, 10},
		"OlderThanThose": {func(b *bench) { b.stock(heldKey, 1, 300, 60, asReady); b.stock(otherKey, 0, 1, 90, asReady) }, 90},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			tt.stock(b)
			age, err := b.store.OldestUnquarantined(t.Context(), []outbox.Key{heldKey})
			if at := time.Duration(tt.minutes) * time.Minute; err != nil || age < at || at == 0 && age > 0 || at > 0 && age > at+5*time.Minute-time.Second {
				t.Errorf("the oldest event that is not in quarantine is %v old, %v, want %v", age, err, at)
			}
		})
	}
}

// The age costs what its limits say, whatever waits in quarantine.
func TestOldestUnquarantinedIsBounded(t *testing.T) {
	t.Parallel()
	for _, statistics := range []string{fresh, ofBacklog, ofDrained} {
		t.Run("Statistics="+statistics, func(t *testing.T) {
			t.Parallel()
			b := crowded(t, false, statistics)
			n := testenv.Volume(15_000, 120_000)
			for _, as := range []string{asReady, asWaiting, asPutOff} {
				b.stock(heldKey, -n, n, 60, as)
			}
			b.exec(fmt.Sprintf("vacuum (analyze %v) search_outbox_events", statistics == fresh))
			held := make([]outbox.Key, outbox.MaxQuarantined)
			for i := range held {
				held[i] = outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())}
			}
			held[0] = heldKey
			cost := &explained{Pool: b.pool, t: t}
			s := b.newStore(cost, "a", outbox.Keep)
			cost.blocks, cost.rows = 0, 0
			age, err := s.OldestUnquarantined(t.Context(), held)
			if err != nil || age < time.Hour {
				t.Errorf("age %v, %v, want that of the event behind those that are passed over", age, err)
			}
			t.Logf("%d blocks, at most %d rows in one step", cost.blocks, cost.rows)
			if cost.rows > 11_000 || cost.blocks > 10_000 {
				t.Errorf("the age of the oldest event touches %d blocks, and a step reads %d rows, want at most 10,000 and 11,000", cost.blocks, cost.rows)
			}
		})
	}
}

// TestOldestOfOddTimes: the producer's times may be those of an empty value or of a wrong century, whose ages are
// beyond what a duration of Go holds.
func TestOldestOfOddTimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.enqueue(1)
	for at, want := range map[string]time.Duration{
		"9999-12-31": 0, "4713-01-01 BC": 100_000 * 24 * time.Hour, "0001-01-01": 100_000 * 24 * time.Hour, "1600-01-01": 100_000 * 24 * time.Hour,
	} {
		b.exec("update search_outbox_events set created_at = $1::text::timestamptz", at)
		s, err := b.store.Stats(t.Context(), leaseTime, 0)
		if err != nil || s.Oldest != want {
			t.Errorf("created at %s: the oldest event is %v old, %v, want %v", at, s.Oldest, err, want)
		}
		if age, err := b.store.OldestUnquarantined(t.Context(), nil); err != nil || age != want {
			t.Errorf("created at %s: the oldest event that is not in quarantine is %v old, %v, want %v", at, age, err, want)
		}
	}
}
