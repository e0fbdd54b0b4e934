package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Round is one loss of the primary. Times are in milliseconds.
type Round struct {
	Fault     string  `json:"fault"`            // sigkill, immediate, or one of the catalogue
	StopMS    float64 `json:"stop_ms"`          // until the primary's processes were gone
	GapMS     float64 `json:"gap_ms,omitempty"` // with Patroni: the database took no writes before the first settled event
	PromoteMS float64 `json:"promote_ms"`       // from the order to promote until the replica took writes; with Patroni these begin with the end of the gap
	LeadMS    float64 `json:"lead_ms"`          // … until the epoch of the next term committed
	SettleMS  float64 `json:"settle_ms"`        // … until the first event settled
	OutageMS  float64 `json:"outage_ms"`        // the producer had no commit answered
	Instance  string  `json:"instance"`         // that led then
	Epoch     int64   `json:"epoch"`

	Lossy bool `json:"lossy,omitempty"` // by design: the replica was cut off before
	Lost  int  `json:"lost"`            // events the producer saw committed and the new primary never had
	Ahead int  `json:"ahead"`           // documents that were newer than anything the new primary knew
	Named int  `json:"named"`           // of these, by weft's alarm

	findings []string // a fault that did not happen
}

// String returns the round as one line.
func (r *Round) String() string {
	s := fmt.Sprintf("%s; promoted in %.0f ms; %s leads after %.0f ms, first event settled after %.0f ms; the producer waited %.0f ms",
		r.Fault, r.PromoteMS, r.Instance, r.LeadMS, r.SettleMS, r.OutageMS)
	if r.GapMS > 0 {
		s = fmt.Sprintf("%s; the database took no writes for %.0f ms; first event settled %.0f ms after, by %s", r.Fault, r.GapMS, r.SettleMS, r.Instance)
	}
	if r.Lost+r.Ahead > 0 {
		s += fmt.Sprintf("; %d events lost with the primary, %d documents ahead, %d named", r.Lost, r.Ahead, r.Named)
	}
	return s
}

func (r *run) round() *Round {
	round, fault := &Round{Fault: "sigkill"}, faults.PostgresSIGKILL
	if r.random.IntN(2) == 0 {
		round.Fault, fault = "immediate", faults.PostgresRestartImmediate
	}
	if round.Lossy = r.opts.Replication == stack.Asynchronous; round.Lossy {
		r.cutOff(r.Servers.URL(r.replica))
	}
	before := rig.Try(r.Position(r.Ctx)).Must(r)
	began := time.Now()
	// It is never healed: the replica takes over.
	r.Must(faults.New(fault, &faults.Target{Group: r.Group, Primary: r.primary}, nil, faults.Params{}).Inject(r.Ctx))
	promoted := time.Now()
	r.Must(r.Servers.Do(r.Ctx, stack.Promote, r.replica))
	round.StopMS, round.PromoteMS = millis(promoted.Sub(began)), millis(time.Since(promoted))
	r.primary, r.replica = r.replica, r.primary
	r.Pool.Reset()
	r.resumed(round, before, promoted)
	waited := rig.Try(r.app.Outage(r.Ctx, promoted)).Must(r)
	round.OutageMS = millis(waited)
	r.examine(round)
	r.Must(r.Servers.MakeReplica(r.Ctx, r.replica, r.opts.Replication))
	return round
}

// doomed is how many changes [run.cutOff] makes that the new primary will not know, each of a
// document.
const doomed = 3

// cutOff stops the replicas from receiving, for as long as they are to lag behind.
func (r *run) cutOff(replicas ...string) {
	for _, url := range replicas {
		r.setReceiver(url, "alter system set primary_conninfo = ''", true)
	}
	// One of each kind reaches Elasticsearch and will be unknown to the new primary.
	events := r.write(upsert(edited), traffic.Delete(traffic.Entity(removed)), upsert(created))
	ids := outbox.IDs(events, func(e *outbox.NewEvent) *outbox.ID { return &e.ID })
	r.await("settle of the last changes", func(ctx context.Context) error {
		return r.Holds(ctx, `select not exists (select from search_outbox_events where id = any($1) and status <> 'done')`, ids)
	})
	r.Pause(r.opts.Lag)
}

// setReceiver changes with statement which primary a replica receives from. With nothing it waits until the
// replica receives no more.
func (r *run) setReceiver(url, statement string, nothing bool) {
	pool := rig.Try(rig.OpenPool(r.Ctx, url, 1)).MustDo(r, "connect to the replica")
	defer pool.Close()
	for _, statement := range []string{statement, "select pg_reload_conf()"} {
		rig.Try(pool.Exec(r.Ctx, statement)).MustDo(r, "change what the replica receives")
	}
	if nothing {
		r.await("cut-off replica", func(ctx context.Context) error {
			return (&rig.Place{Pool: pool}).Holds(ctx, `select not exists (select from pg_stat_wal_receiver)`)
		})
	}
}

// forgotten is how far back in the record [run.resumed] looks: more changes than a new primary can have lost.
const forgotten = 20_000

// resumed waits for the first event that the new primary saw settled. No commit of it is older
// than the promotion; before is the position before the fault.
func (r *run) resumed(round *Round, before int64, promoted time.Time) {
	r.await("event that is settled after the promotion", func(ctx context.Context) error {
		log, err := history.Since(ctx, r.Pool, rig.Outbox, group, before-forgotten)
		if err != nil {
			return err
		}
		for _, c := range log.Changes {
			if !c.Done() || !c.Settles() || c.At.Before(promoted) {
				continue
			}
			round.SettleMS, round.Instance, round.Epoch = millis(c.At.Sub(promoted)), c.Owner, c.Epoch
			for _, t := range log.Terms {
				if t.Epoch == c.Epoch && !t.At.Before(promoted) {
					round.LeadMS, round.Instance = millis(t.At.Sub(promoted)), t.Instance
				}
			}
			return nil
		}
		return errors.New("there is none")
	})
}

func millis(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}
