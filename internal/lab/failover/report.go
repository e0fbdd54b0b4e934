package failover

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Result is what --json writes.
type Result struct {
	Replication stack.Replication `json:"replication"`
	Route       string            `json:"route,omitempty"` // with Patroni: hosts, haproxy
	Seed        uint64            `json:"seed"`
	Rounds      []Round           `json:"rounds"`
	SettleMS    verdict.Latency   `json:"settle_ms"` // from the order to promote to the first settled event
	OutageMS    verdict.Latency   `json:"outage_ms"` // as the producer saw it

	Produced        int  `json:"produced"`          // events that the producer saw committed
	Refused         int  `json:"refused"`           // transactions that it saw fail
	LostWithPrimary int  `json:"lost_with_primary"` // acknowledged, and unknown to the new primary
	verdict.Broken       // of the events that the new primaries had
	Ahead           int  `json:"ahead"`                          // documents newer than anything the new primary knew
	Unnamed         int  `json:"unnamed"`                        // of these, not named by weft's alarm
	Converged       bool `json:"converged"`                      // both stores are equal
	Unseen          int  `json:"unseen,omitempty"`               // faults that did not happen
	Inexact         bool `json:"judged_by_statements,omitempty"` // and not by times of commits, which all servers here keep

	findings []string
}

// judge wants a stopped writer.
func (r *run) judge(result *Result) {
	r.drained()
	log := rig.Try(history.Read(r.Ctx, r.Pool, rig.Outbox, group)).Must(r)
	end := r.end()
	// What went with a primary is counted apart; the rest the last one must have.
	acknowledged := slices.Concat(rig.Map(r.applications(), (*traffic.Application).Acknowledged)...)
	kept := slices.DeleteFunc(slices.Clone(acknowledged), func(e history.Enqueued) bool { return r.gone[e] })
	v := history.Check(history.Run{Log: log, Acknowledged: kept})
	result.Add(v)
	result.findings = v.Lines()
	result.Produced, result.Refused, result.LostWithPrimary, result.Inexact = len(acknowledged), r.app.Refused(), len(r.gone), !log.Exact
	result.Converged = end.Compared.Equal()
	for _, d := range end.Compared.Examples {
		result.findings = append(result.findings, d.String())
	}
	var settles, outages verdict.Distribution
	for _, round := range result.Rounds {
		result.Unseen += len(round.findings)
		result.findings = append(result.findings, round.findings...)
		settles, outages = append(settles, round.SettleMS), append(outages, round.OutageMS)
		result.Ahead += round.Ahead
		result.Unnamed += round.Ahead - round.Named
	}
	result.SettleMS, result.OutageMS = settles.Latency(), outages.Latency()
}

// Err returns nil for a clean run, and otherwise says what was wrong.
func (r *Result) Err() error {
	var wrong []string
	if len(r.Rounds) == 0 {
		wrong = append(wrong, "no round took place")
	}
	if r.Inexact {
		wrong = append(wrong, "judged by the times of statements, not of commits")
	}
	if r.Replication == stack.Synchronous && r.LostWithPrimary != 0 {
		wrong = append(wrong, fmt.Sprintf("%d acknowledged events lost in spite of synchronous replication", r.LostWithPrimary))
	}
	for n, round := range r.Rounds {
		if round.Lossy && (round.Lost == 0 || round.Ahead < doomed) {
			wrong = append(wrong, fmt.Sprintf("round %d, %s with the replica cut off: %d events lost and %d documents ahead, want one and %d at least: the alarm was not tested",
				n+1, round.Fault, round.Lost, round.Ahead, doomed))
		}
		if r.Route != "" && round.SettleMS > millis(settleLimit) {
			wrong = append(wrong, fmt.Sprintf("%s: first event settled %.0f ms after the database took writes again, want %.0f at most", round.Fault, round.SettleMS, millis(settleLimit)))
		}
	}
	if !r.Converged {
		wrong = append(wrong, "the stores differ")
	}
	return verdict.Clean("failover", append(r.Counts(), verdict.Count{N: r.Failed, What: "dead letters"},
		verdict.Count{N: r.Unnamed, What: "documents ahead of the source that no alarm named"}, verdict.Count{N: r.Unseen, What: "faults that did not happen"}), wrong...)
}

func (r *Result) write(w io.Writer) {
	for _, f := range r.findings {
		fmt.Fprintf(w, "  %s\n", f)
	}
	first := "promoted ms" // each round has one of the two
	if r.Route != "" {
		first = "database away ms"
	}
	verdict.WriteRows(w, []any{"fault", first, "leads after ms", "first settled after ms", "producer waited ms", "lost with primary", "ahead", "named"}, rig.Map(r.Rounds, func(round Round) []any {
		ms := []any{round.Fault}
		for _, f := range []float64{round.PromoteMS + round.GapMS, round.LeadMS, round.SettleMS, round.OutageMS} {
			ms = append(ms, math.Round(f))
		}
		return append(ms, round.Lost, round.Ahead, round.Named)
	})...)
	fmt.Fprintf(w, "%s replication, %d events committed, %d lost with a primary; of the rest %d lost, %d without a lease, %d done twice, %d out of order, %d failed; %d acts of a second claimer\n",
		r.Replication, r.Produced, r.LostWithPrimary, r.Lost, r.Unleased, r.Twice, r.OutOfOrder, r.Failed, r.TwoClaimers)
	said := "PASS"
	if err := r.Err(); err != nil {
		said = "FAIL"
	}
	fmt.Fprintf(w, "%s (seed %d)\n", said, r.Seed)
}

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
	r.Must(faults.New(fault, &faults.Target{Group: r.Group, Place: r.Place, Primary: r.primary}, nil, faults.Params{}).Inject(r.Ctx))
	promoted := time.Now()
	r.Must(r.Servers.Do(r.Ctx, stack.Promote, r.replica))
	round.StopMS, round.PromoteMS = millis(promoted.Sub(began)), millis(time.Since(promoted))
	r.primary, r.replica = r.replica, r.primary
	r.Pool.Reset()
	r.resumed(round, before, promoted)
	without, again := r.gap([]*traffic.Application{r.app}, began, promoted)
	round.OutageMS = millis(again.Sub(without))
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
		c, ok := log.FirstDoneAfter(promoted)
		round.SettleMS, round.Instance, round.Epoch = millis(c.At.Sub(promoted)), c.Owner, c.Epoch
		for _, t := range log.Terms {
			if t.Epoch == c.Epoch && !t.At.Before(promoted) {
				round.LeadMS, round.Instance = millis(t.At.Sub(promoted)), t.Instance
			}
		}
		return rig.Want(nil, ok, "there is none")
	})
}

func millis(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}
