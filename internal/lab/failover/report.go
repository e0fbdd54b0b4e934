package failover

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
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
	Lost            int  `json:"lost"`              // of the events that the new primaries had
	Unleased        int  `json:"unleased"`          // verdicts without a lease
	Twice           int  `json:"done_twice"`
	OutOfOrder      int  `json:"out_of_order"`
	TwoClaimers     int  `json:"two_claimers"`
	Failed          int  `json:"failed"`                         // dead letters
	Ahead           int  `json:"ahead"`                          // documents newer than anything the new primary knew
	Unnamed         int  `json:"unnamed"`                        // of these, not named by weft's alarm
	Converged       bool `json:"converged"`                      // both stores are equal
	Unseen          int  `json:"unseen,omitempty"`               // faults that did not happen
	Inexact         bool `json:"judged_by_statements,omitempty"` // and not by times of commits, which all servers here keep

	findings []string
}

// maxShown is how many findings of a kind are printed.
const maxShown = 5

// judge wants a stopped writer.
func (r *run) judge(result *Result) {
	r.drained()
	log := rig.Try(history.Read(r.Ctx, r.Pool, rig.Outbox, group)).Must(r)
	end := r.end()
	// What went with a primary is counted apart; the rest the last one must have.
	var acknowledged []history.Enqueued
	for _, app := range r.applications() {
		acknowledged = append(acknowledged, app.Acknowledged()...)
	}
	kept := slices.DeleteFunc(slices.Clone(acknowledged), func(e history.Enqueued) bool { return r.gone[e] })
	v := history.Check(history.Run{Log: log, Acknowledged: kept})
	for _, b := range append(v.Breaches(), history.Breach{Invariant: "dead letters", Findings: v.DeadLetters}) {
		result.findings = append(result.findings, b.Lines(maxShown)...)
	}
	result.Produced, result.Refused, result.LostWithPrimary, result.Inexact = len(acknowledged), r.app.Refused(), len(r.gone), !log.Exact
	result.Lost, result.Unleased, result.Twice = len(v.Lost), len(v.Unleased), len(v.Twice)
	result.OutOfOrder, result.TwoClaimers, result.Failed = len(v.OutOfOrder), len(v.TwoActive), len(v.DeadLetters)
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
	return verdict.Clean("failover", []verdict.Count{
		{N: r.Lost, What: "lost events"}, {N: r.Unleased, What: "verdicts without a lease"}, {N: r.Twice, What: "events done twice"},
		{N: r.OutOfOrder, What: "events out of order"}, {N: r.TwoClaimers, What: "acts of a second claimer"},
		{N: r.Failed, What: "dead letters"}, {N: r.Unnamed, What: "documents ahead of the source that no alarm named"},
		{N: r.Unseen, What: "faults that did not happen"},
	}, wrong...)
}

func (r *Result) write(w io.Writer) {
	for _, f := range r.findings {
		fmt.Fprintf(w, "  %s\n", f)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	if r.Route == "" {
		fmt.Fprintln(table, "round\tfault\tpromoted ms\tleads ms\tfirst settled ms\tproducer waited ms\tlost with primary\tahead\tnamed\t")
		for n, round := range r.Rounds {
			fmt.Fprintf(table, "%d\t%s\t%.0f\t%.0f\t%.0f\t%.0f\t%d\t%d\t%d\t\n", n+1, round.Fault, round.PromoteMS, round.LeadMS, round.SettleMS,
				round.OutageMS, round.Lost, round.Ahead, round.Named)
		}
	} else {
		fmt.Fprintln(table, "round\tfault\tdatabase away ms\tleads after ms\tfirst settled after ms\tlost with primary\tahead\tnamed\t")
		for n, round := range r.Rounds {
			fmt.Fprintf(table, "%d\t%s\t%.0f\t%.0f\t%.0f\t%d\t%d\t%d\t\n", n+1, round.Fault, round.GapMS, round.LeadMS, round.SettleMS, round.Lost, round.Ahead, round.Named)
		}
	}
	_ = table.Flush()
	fmt.Fprintf(w, "%s replication, %d events committed, %d lost with a primary; of the rest %d lost, %d without a lease, %d done twice, %d out of order, %d failed; %d acts of a second claimer\n",
		r.Replication, r.Produced, r.LostWithPrimary, r.Lost, r.Unleased, r.Twice, r.OutOfOrder, r.Failed, r.TwoClaimers)
	verdict := "PASS"
	if err := r.Err(); err != nil {
		verdict = "FAIL"
	}
	fmt.Fprintf(w, "%s (seed %d)\n", verdict, r.Seed)
}
