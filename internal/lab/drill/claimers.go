package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
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
	At      time.Time  `json:"ts"`
	Event   string     `json:"event"` // claim, process
	Phase   string     `json:"phase"`
	Claimer string     `json:"claimer"`
	Waited  float64    `json:"waited_ms"` // for the answer to the claim
	Claimed int        `json:"claimed"`
	ID      *uuid.UUID `json:"event_id,omitempty"`
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

// newLedger returns an empty ledger whose metrics count as those of before.
func (r *run) newLedger() *ledger {
	registry := prometheus.NewRegistry()
	counter := func(name, help string) *prometheus.CounterVec {
		return promauto.With(registry).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"phase", "claimer"})
	}
	l := &ledger{
		registry:  registry,
		claims:    counter("weftlab_claims_total", "Claims of the drill's own claimers."),
		processed: counter("weftlab_processed_events_total", "Events that the drill's own claimers have processed, each time."),
		waited:    counter("weftlab_claim_wait_seconds_total", "Time that the drill's own claimers have waited for their claims."),
	}
	r.keepLedger(l, r.before, r.after)
	return l
}

func (l *ledger) claim(c *claimer, began time.Time, ids []uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waited := time.Since(began)
	l.entries = append(l.entries, claimEntry{At: time.Now().UTC(), Event: "claim", Phase: c.phase, Claimer: c.name,
		Waited: float64(waited.Microseconds()) / 1000, Claimed: len(ids)})
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

// keepLedger writes log and metrics of the claimers as those of an instance.
func (r *run) keepLedger(l *ledger, into ...map[string]verdict.Families) {
	families, err := l.registry.Gather()
	r.MustDo("metrics of the claimers", err)
	r.mu.Lock()
	for _, scrapes := range into {
		scrapes["claimers"] = families
	}
	r.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Must(verdict.WriteLines(r.dir, verdict.LogDir+"/"+claimersFile, l.entries))
}

// both runs two claimers until each has found nothing more to claim, and the sampler, unless nil, beside
// them.
func (r *run) both(phase string, book *ledger, step func(context.Context, *claimer) (claimed int, err error), sample func(context.Context) error) {
	var claimers []*claimer
	for _, name := range []string{"w1", "w2"} {
		conn := r.connect(rig.AppName + "/" + name)
		defer func() { _ = conn.Close(context.WithoutCancel(r.Ctx)) }()
		claimers = append(claimers, &claimer{r: r, name: name, phase: phase, conn: conn, book: book})
	}
	var sampler errgroup.Group
	sampling, stop := context.WithCancel(r.Ctx)
	defer stop()
	sampler.Go(func() error {
		for sample != nil && rig.Sleep(sampling, samplePeriod) == nil {
			if err := sample(r.Ctx); err != nil {
				return fmt.Errorf("sample: %w", err)
			}
		}
		return nil
	})
	working, ctx := errgroup.WithContext(r.Ctx)
	for _, c := range claimers {
		working.Go(func() error {
			for {
				if n, err := step(ctx, c); err != nil {
					return fmt.Errorf("claimer %s: %w", c.name, err)
				} else if n == 0 {
					return nil
				}
			}
		})
	}
	err := working.Wait()
	stop()
	r.Must(errors.Join(err, sampler.Wait()))
}

const samplePeriod = 3 * time.Millisecond

func (r *run) connect(name string) *pgx.Conn {
	config, err := pgx.ParseConfig(r.DatabaseURL)
	r.MustDo("database URL", err)
	config.RuntimeParams["application_name"] = name
	conn, err := pgx.ConnectConfig(r.Ctx, config)
	r.MustDo("connect", err)
	return conn
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
