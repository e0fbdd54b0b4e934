package drill

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
)

// The claimers of the deliberate bugs are code of the drill: weft leases events by one row
// in one statement, and has no way to do it otherwise.

// claimer is a worker as the ones before weft were: it claims, processes, settles.
type claimer struct {
	r     *run
	name  string
	phase string
	conn  *pgx.Conn
	book  *ledger
}

// claimEntry is a line of the claimers' log.
type claimEntry struct {
	At      time.Time   `json:"ts"`
	Event   string      `json:"event"` // claim, process
	Phase   string      `json:"phase"`
	Claimer string      `json:"claimer"`
	Waited  float64     `json:"waited_ms"` // for the answer to the claim
	Claimed int         `json:"claimed"`
	ID      *uuid.UUID  `json:"event_id,omitempty"`
	IDs     []uuid.UUID `json:"-"`
}

// ledger is what the claimers have done, and their metrics.
type ledger struct {
	mu        sync.Mutex
	entries   []claimEntry
	registry  *prometheus.Registry
	claims    *prometheus.CounterVec
	processed *prometheus.CounterVec
	waited    *prometheus.CounterVec
}

func newLedger() (*ledger, error) {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"phase", "claimer"})
	}
	l := &ledger{
		registry:  prometheus.NewRegistry(),
		claims:    counter("weftlab_claims_total", "Claims of the drill's own claimers."),
		processed: counter("weftlab_processed_events_total", "Events that the drill's own claimers have processed, each time."),
		waited:    counter("weftlab_claim_wait_seconds_total", "Time that the drill's own claimers have waited for their claims."),
	}
	for _, c := range []prometheus.Collector{l.claims, l.processed, l.waited} {
		if err := l.registry.Register(c); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *ledger) claim(c *claimer, began time.Time, ids []uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waited := time.Since(began)
	l.entries = append(l.entries, claimEntry{At: time.Now().UTC(), Event: "claim", Phase: c.phase, Claimer: c.name,
		Waited: float64(waited.Microseconds()) / 1000, Claimed: len(ids), IDs: ids})
	l.claims.WithLabelValues(c.phase, c.name).Inc()
	l.waited.WithLabelValues(c.phase, c.name).Add(waited.Seconds())
}

func (l *ledger) process(c *claimer, id uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, claimEntry{At: time.Now().UTC(), Event: "process", Phase: c.phase, Claimer: c.name, ID: &id})
	l.processed.WithLabelValues(c.phase, c.name).Inc()
}

// of returns the entries of a phase.
func (l *ledger) of(phase string) []claimEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.entries), func(e claimEntry) bool { return e.Phase != phase })
}

const claimersFile = "weft-claimers.jsonl"

// keep writes log and metrics of the claimers as those of an instance.
func (l *ledger) keep(r *run, before bool) error {
	families, err := l.registry.Gather()
	if err != nil {
		return fmt.Errorf("metrics of the claimers: %w", err)
	}
	r.mu.Lock()
	if before {
		r.before["claimers"] = families
	}
	r.after["claimers"] = families
	r.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return verdict.WriteLines(r.dir, verdict.LogDir+"/"+claimersFile, l.entries)
}

// both runs two claimers until each has found nothing more to claim, and the sampler beside
// them.
func (r *run) both(ctx context.Context, phase string, book *ledger, step func(context.Context, *claimer) (claimed int, err error), sample func(context.Context, *pgx.Conn) error) error {
	g, ctx := errgroup.WithContext(ctx)
	start := make(chan struct{})
	var ready, working sync.WaitGroup
	sampling, stop := context.WithCancel(ctx)
	defer stop()
	for _, name := range []string{"w1", "w2"} {
		conn, err := r.connect(ctx, appName+"/"+name)
		if err != nil {
			return err
		}
		c := &claimer{r: r, name: name, phase: phase, conn: conn, book: book}
		ready.Add(1)
		working.Add(1)
		g.Go(func() error {
			defer working.Done()
			defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
			ready.Done()
			<-start
			for {
				n, err := step(ctx, c)
				if err != nil {
					return fmt.Errorf("claimer %s: %w", c.name, err)
				}
				if n == 0 {
					return nil
				}
			}
		})
	}
	if sample != nil {
		conn, err := r.connect(ctx, appName)
		if err != nil {
			return err
		}
		g.Go(func() error {
			defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
			for await.Sleep(sampling, samplePeriod) == nil {
				if err := sample(ctx, conn); err != nil {
					return fmt.Errorf("sample: %w", err)
				}
			}
			return nil
		})
	}
	ready.Wait()
	close(start)
	working.Wait()
	stop()
	return g.Wait()
}

const samplePeriod = 3 * time.Millisecond

func (r *run) connect(ctx context.Context, name string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(r.databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config.RuntimeParams["application_name"] = name
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// collectIDs reads the ids that a claim has returned.
func collectIDs(rows pgx.Rows, err error) ([]uuid.UUID, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (id uuid.UUID, err error) {
		err = row.Scan((*[16]byte)(&id))
		return id, err
	})
}

func arrayOf(ids []uuid.UUID) [][16]byte {
	out := make([][16]byte, len(ids))
	for i, id := range ids {
		out[i] = id
	}
	return out
}
