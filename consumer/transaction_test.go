package consumer

import (
	"context"
	"testing"
)

// While a batch is with its destination no transaction of weft's is open: nothing
// holds back vacuum, and nobody waits for its locks.
func TestNoTransactionIsOpenDuringAProjection(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *Config) { c.Concurrency = 1 })
	r.proj.entering, r.proj.leave = make(chan struct{}, 100), make(chan struct{})
	k := newKey()
	r.enqueue(k, 1)
	stop := r.start()
	<-r.proj.entering // the batch is out, and stays there
	for range 20 {
		var open int
		err := r.pool.QueryRow(context.Background(), `select count(*) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
			  and state like 'idle in transaction%'`).Scan(&open)
		if err != nil {
			t.Fatal(err)
		}
		if open != 0 {
			t.Fatalf("%d transactions idle while the batch is out, want none", open)
		}
	}
	// The claimed row itself can be locked by anybody.
	if _, err := r.pool.Exec(t.Context(), "select from search_outbox_events where status = 'processing' for update nowait"); err != nil {
		t.Errorf("lock the claimed row: %v, want no lock on it", err)
	}
	close(r.proj.leave)
	r.await(map[string]int{"done": 1})
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}
