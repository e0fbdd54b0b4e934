package history_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/outbox"
)

// careless is a projection that asks for no version: it writes an older state over
// whatever is there.
type careless struct {
	consumer.Projection
	url   string // of the index, through the tap
	after int64  // events up to this version are written carelessly
}

func (c *careless) Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
	out := make([]outbox.Outcome, len(events))
	for i, e := range events {
		if e.Version > c.after {
			one, err := c.Projection.Project(ctx, events[i:i+1])
			if err != nil {
				return nil, err
			}
			out[i] = one[0]
			continue
		}
		var body bytes.Buffer
		enc := json.NewEncoder(&body)
		_ = enc.Encode(map[string]any{"index": map[string]string{"_id": e.Key.String()}})
		_ = enc.Encode(map[string]any{"entity_type": e.Key.Type, "entity_id": e.Key.ID, "text": "an older state", "event_version": e.Version})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/_bulk", &body)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/x-ndjson")
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("bulk: %s", res.Status)
		}
		out[i] = outbox.OK()
	}
	return out, nil
}

// lazy is a projection that does not write some events, and says that it has.
type lazy struct {
	consumer.Projection
	version int64
}

func (l *lazy) Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
	if i := slices.IndexFunc(events, func(e outbox.Event) bool { return e.Version == l.version }); i >= 0 {
		return slices.Repeat([]outbox.Outcome{outbox.OK()}, len(events)), nil
	}
	return l.Projection.Project(ctx, events)
}

// hiding is a store whose lists leave one event out until it is released.
type hiding struct {
	consumer.Store
	version  int64
	released atomic.Bool
}

func (h *hiding) List(ctx context.Context, r outbox.ListRequest) (*outbox.List, error) {
	l, err := h.Store.List(ctx, r)
	if err == nil && !h.released.Load() {
		l.Ready = slices.DeleteFunc(l.Ready, func(e outbox.Row) bool { return e.Version == h.version })
	}
	return l, err
}

// continuing is a store whose lists go on where the last one ended, until it is told to
// begin at the head. It says that the first row was found at once, however slow the machine:
// after a slow look the scheduler has each lease make sure of the order.
type continuing struct {
	consumer.Store
	mu     sync.Mutex
	from   *outbox.Position
	atHead bool
}

func (c *continuing) List(ctx context.Context, r outbox.ListRequest) (*outbox.List, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.atHead {
		r.From = c.from
	}
	l, err := c.Store.List(ctx, r)
	if err != nil {
		return nil, err
	}
	l.Look = 0
	if len(l.Ready) > 0 {
		last := l.Ready[len(l.Ready)-1]
		c.from = &outbox.Position{Version: last.Version + 1, ID: last.ID}
	}
	return l, nil
}

func (c *continuing) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.atHead = true
}

// hasty is a store that ends its first lease at once, and does not say so.
type hasty struct {
	consumer.Store
	once sync.Once
}

func (h *hasty) Lease(ctx context.Context, epoch int64, batch uuid.UUID, groups []outbox.Group) (*outbox.Lease, error) {
	l, err := h.Store.Lease(ctx, epoch, batch, groups)
	if err == nil {
		h.once.Do(func() { _, err = h.Abandon(ctx, epoch, []uuid.UUID{batch}) })
	}
	return l, err
}

// tardy is a database that commits a lease only when its events are settled.
type tardy struct {
	*pgxpool.Pool
	mu   sync.Mutex
	open []pgx.Tx
}

func (d *tardy) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if !strings.Contains(sql, "insert into weft_lease") {
		return d.Pool.Query(ctx, sql, args...)
	}
	tx, err := d.Begin(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.open = append(d.open, tx)
	d.mu.Unlock()
	return tx.Query(ctx, sql, args...)
}

func (d *tardy) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	d.mu.Lock()
	for _, tx := range d.open {
		_ = tx.Commit(ctx) // the settle fails without the lease
	}
	d.open = nil
	d.mu.Unlock()
	return d.Pool.SendBatch(ctx, b)
}

// settler is a store with a settle of its own before or after the right one.
type settler struct {
	consumer.Store
	before, after func(ids any)
}

func (s *settler) Settle(ctx context.Context, epoch int64, batch uuid.UUID, in []outbox.Settlement) (outbox.Settled, error) {
	ids := outbox.IDs(in, func(x *outbox.Settlement) *outbox.ID { return &x.Event.ID })
	if s.before != nil {
		s.before(ids)
		return s.Store.Settle(ctx, epoch, batch, nil)
	}
	out, err := s.Store.Settle(ctx, epoch, batch, in)
	s.after(ids)
	return out, err
}
