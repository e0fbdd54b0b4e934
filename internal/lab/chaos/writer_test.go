package chaos

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

// The writer must be a hard one and a lawful one: versions of some entities are
// committed out of order, those of the locked ones never, and no row goes back.
func TestWriterIsLawful(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t, testenv.Database(t))
	if err := history.Install(t.Context(), pool, outboxTable); err != nil {
		t.Fatal(err)
	}
	w := &writer{pool: pool, seed: 5, rate: 1500}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.run(ctx) }()
	testenv.Eventually(t, time.Minute, func() bool { return w.ledger.produced() > 1500 }, "1,500 events are written")
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	log, err := history.Read(t.Context(), pool, outboxTable, group)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(log.Changes), w.ledger.produced(); got != want {
		t.Errorf("recorded events: got %d, want the %d that were acknowledged", got, want)
	}
	newest := map[outbox.Key]history.Change{}
	late, deletes, together := 0, 0, map[uint64]int{}
	for _, c := range log.Changes {
		together[c.Tx]++
		if c.Op == outbox.Delete {
			deletes++
		}
		if c.Version < newest[c.Key].Version {
			late++
			if !careless(c.Key) {
				t.Errorf("%s is only changed under its lock, and version %d was committed after %d", c.Key, c.Version, newest[c.Key].Version)
			}
			continue
		}
		newest[c.Key] = c
	}
	if late == 0 || deletes == 0 || len(together) == len(log.Changes) {
		t.Errorf("the writer is tame: %d late versions, %d deletes, %d transactions of %d events", late, deletes, len(together), len(log.Changes))
	}

	for key, c := range newest {
		var version int64
		err := pool.QueryRow(t.Context(), "select coalesce((select event_version from search_index where entity_type = $1 and entity_id = $2), 0)",
			key.Type, &key.ID).Scan(&version)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int64{true: 0, false: c.Version}[c.Op == outbox.Delete]; version != want {
			t.Errorf("row of %s, whose newest event is %s %d: got version %d, want %d", key, c.Op, c.Version, version, want)
		}
	}
}

// An application that is told "again" after a dead letter writes what is there now.
func TestWriterWritesAgain(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t, testenv.Database(t))
	w := &writer{pool: pool}
	key := outbox.Key{Type: "block", ID: outbox.UUID(uuid.UUID([16]byte{1}))}
	read := func() (op string, version int64) {
		t.Helper()
		err := pool.QueryRow(t.Context(), "select op, event_version from search_outbox_events order by event_version desc limit 1").Scan(&op, &version)
		if err != nil {
			t.Fatal(err)
		}
		return op, version
	}
	if err := w.again(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if op, _ := read(); op != "delete" {
		t.Errorf("event of an entity without a row: got %s, want delete", op)
	}
	if _, err := pool.Exec(t.Context(), insertRow, key.Type, &key.ID, "text", 1.0); err != nil {
		t.Fatal(err)
	}
	if err := w.again(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	op, version := read()
	var row int64
	if err := pool.QueryRow(t.Context(), "select event_version from search_index").Scan(&row); err != nil {
		t.Fatal(err)
	}
	if op != "upsert" || row != version {
		t.Errorf("event of an entity with a row: got %s %d, row %d, want upsert and the row's version", op, version, row)
	}
}
