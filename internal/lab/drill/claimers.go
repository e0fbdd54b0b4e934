package drill

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
)

// The claimers of the deliberate bugs are code of the drill: weft leases events by one row
// in one statement, and has no way to do it otherwise.

// claimer is a worker as the ones before weft were: it claims, processes, settles. Each of its turns
// is a script.
type claimer struct {
	rig.Script
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

// ledger is what the claimers have done.
type ledger struct {
	mu      sync.Mutex
	entries []claimEntry
}

func (l *ledger) claim(c *claimer, began time.Time, ids []uuid.UUID) {
	l.add(claimEntry{Event: "claim", Phase: c.phase, Claimer: c.name, Waited: verdict.InMillis(time.Since(began)), Claimed: len(ids)})
}

func (l *ledger) process(c *claimer, id uuid.UUID) {
	l.add(claimEntry{Event: "process", Phase: c.phase, Claimer: c.name, ID: &id})
}

func (l *ledger) add(e claimEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.At = time.Now().UTC()
	l.entries = append(l.entries, e)
}

func (l *ledger) of(phase string) []claimEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.entries), func(e claimEntry) bool { return e.Phase != phase })
}

const claimersFile = "weft-claimers.jsonl"

// keepLedger writes log and metrics of the claimers, who have ended, as those of an instance.
func (r *run) keepLedger(l *ledger) {
	registry := prometheus.NewRegistry()
	counter := func(name, help string) *prometheus.CounterVec {
		return promauto.With(registry).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"phase", "claimer"})
	}
	claims := counter("weftlab_claims_total", "Claims of the drill's own claimers.")
	processed := counter("weftlab_processed_events_total", "Events that the drill's own claimers have processed, each time.")
	waited := counter("weftlab_claim_wait_seconds_total", "Time that the drill's own claimers have waited for their claims.")
	for _, e := range l.entries {
		if e.Event == "process" {
			processed.WithLabelValues(e.Phase, e.Claimer).Inc()
			continue
		}
		claims.WithLabelValues(e.Phase, e.Claimer).Inc()
		waited.WithLabelValues(e.Phase, e.Claimer).Add(e.Waited / 1000)
	}
	families := rig.Try(registry.Gather()).MustDo(r, "metrics of the claimers")
	r.mu.Lock()
	r.after["claimers"] = families
	r.mu.Unlock()
	r.Must(verdict.WriteLines(r.dir, verdict.LogDir+"/"+claimersFile, l.entries))
}

// both runs two claimers until each has found nothing more to claim, and the sampler, unless nil, beside
// them.
func (r *run) both(phase string, book *ledger, turn func(*claimer) (claimed int), sample func(context.Context) error) {
	var claimers []*claimer
	for _, name := range []string{"w1", "w2"} {
		config := rig.Try(pgx.ParseConfig(r.DatabaseURL)).MustDo(r, "database URL")
		config.RuntimeParams["application_name"] = rig.AppName + "/" + name
		conn := rig.Try(pgx.ConnectConfig(r.Ctx, config)).MustDo(r, "connect")
		defer func() { _ = conn.Close(context.WithoutCancel(r.Ctx)) }()
		claimers = append(claimers, &claimer{r: r, name: name, phase: phase, conn: conn, book: book})
	}
	var sampled error
	stop := rig.During(r.Ctx, func(ctx context.Context) {
		for sample != nil && sampled == nil && rig.Sleep(ctx, samplePeriod) == nil {
			sampled = sample(r.Ctx)
		}
	})
	working, ctx := errgroup.WithContext(r.Ctx)
	for _, c := range claimers {
		working.Go(func() error {
			return c.Play(ctx, func() {
				c.Part("claimer "+c.name, 0, func() {
					for more := true; more; {
						more = turn(c) > 0
					}
				})
			})
		})
	}
	err := working.Wait()
	stop()
	r.Must(err)
	r.MustDo("sample", sampled)
}

const samplePeriod = 3 * time.Millisecond

// ids reads what a claim has returned, or the error of its query.
func (c *claimer) ids(rows pgx.Rows, _ error) []uuid.UUID {
	return rig.Try(pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])).Must(c)
}

// exec runs a statement, in a transaction or in none.
func (c *claimer) exec(in interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	rig.Try(in.Exec(c.Ctx, sql, args...)).Must(c)
}
