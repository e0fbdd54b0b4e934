package chaos

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Result is what --json writes.
type Result struct {
	Seed     uint64       `json:"seed"`
	Faults   int          `json:"faults"` // injected
	Injected map[Kind]int `json:"injected"`
	Skipped  map[Kind]int `json:"skipped"`
	Seconds  float64      `json:"seconds"` // from the first fault until everything was drained
	Produced int          `json:"produced"`
	Unknown  int          `json:"unknown"` // events of commits that the producer got no answer to
	Failed   int          `json:"failed"`  // events that ended in the dead letter
	Bulk     int          `json:"bulk"`    // items of bulk requests
	Terms    int          `json:"terms"`   // of leadership
	// Spontaneous is how many terms began while everything was well. A machine that is
	// too busy for a heartbeat in three seconds has some: no figure of the verdict.
	Spontaneous int `json:"spontaneous_terms"`

	Finished   string `json:"finished,omitempty"` // what became of events that were done
	Upgrade    string `json:"upgrade,omitempty"`  // the other build that led in turns
	OtherTerms int    `json:"other_build_terms"`  // of Terms
	Leases     int    `json:"leases"`
	Kept       int    `json:"kept"` // finished events that stayed in the table although they were to be archived or deleted

	Unleased    int  `json:"unleased"`     // verdicts without a lease
	SentEarly   int  `json:"sent_early"`   // items that were sent without a committed lease
	Twice       int  `json:"done_twice"`   // events that were done or archived more than once
	Lost        int  `json:"lost"`         // events without an end, and committed ones that were never recorded
	OutOfOrder  int  `json:"out_of_order"` // events done before an earlier one of their entity
	Regressions int  `json:"regressions"`  // writes that took a document to an older version
	Resurrected int  `json:"resurrected"`  // deleted documents that came back by themselves
	TwoClaimers int  `json:"two_claimers"` // acts under a term that was over, or that another one holds
	WallClock   int  `json:"wall_clock"`   // columns with times of an instance's clock
	Surprises   int  `json:"surprises"`    // instances that ended by themselves, or badly
	Missing     int  `json:"missing"`      // rows without a document
	Extra       int  `json:"extra"`        // documents without a row
	Stale       int  `json:"stale"`        // documents that differ from their row
	Converged   bool `json:"converged"`

	TakeoverMS map[Kind]Spread `json:"takeover_ms"`
	Delayed    map[Kind]int    `json:"delayed"` // events that were on their way for more than a second across the fault
}

// Spread is the distribution of a time in milliseconds.
type Spread struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Err returns nil when every figure is what it must be, and otherwise says which is not.
func (r *Result) Err() error {
	var bad []string
	kept := r.Kept
	if r.Upgrade != "" {
		kept = 0 // an older build keeps them
	}
	for _, f := range []struct {
		n    int
		what string
	}{
		{r.Lost, "lost events"}, {r.OutOfOrder, "events out of order"}, {r.Regressions, "writes back to an older version"},
		{r.Resurrected, "resurrected documents"}, {r.TwoClaimers, "acts of a second claimer"}, {r.WallClock, "columns with times of another clock"},
		{r.Unleased, "verdicts without a lease"}, {r.SentEarly, "sends without a lease"}, {r.Twice, "events done or archived twice"}, {kept, "finished events that stayed in the table"},
		{r.Surprises, "instances that ended by themselves or badly"},
		{r.Missing, "missing documents"}, {r.Extra, "extra documents"}, {r.Stale, "stale documents"},
	} {
		if f.n != 0 {
			bad = append(bad, fmt.Sprintf("%d %s", f.n, f.what))
		}
	}
	if r.Upgrade != "" && (r.OtherTerms == 0 || r.OtherTerms == r.Terms) {
		bad = append(bad, fmt.Sprintf("%d of %d terms of the other build", r.OtherTerms, r.Terms))
	}
	if !r.Converged && len(bad) == 0 {
		bad = append(bad, "not converged")
	}
	if len(bad) == 0 {
		return nil
	}
	return errors.New("the run is not clean: " + strings.Join(bad, ", "))
}

// write prints the table of faults and the verdict.
func (r *Result) write(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "fault\ttimes\tskipped\ttakeover p50\tp99\tmax\tdelayed\t")
	for _, i := range kindTable() {
		if r.Injected[i.kind]+r.Skipped[i.kind] == 0 {
			continue
		}
		times := "\t\t"
		if s, ok := r.TakeoverMS[i.kind]; ok {
			times = fmt.Sprintf("%s\t%s\t%s", millis(s.P50), millis(s.P99), millis(s.Max))
		}
		skipped := ""
		if n := r.Skipped[i.kind]; n > 0 {
			skipped = fmt.Sprint(n)
		}
		note := ""
		if i.measure == handover || i.measure == restarted {
			note = string(i.measure)
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%d\t%s\n", i.kind, r.Injected[i.kind], skipped, times, r.Delayed[i.kind], note)
	}
	_ = tw.Flush()
	fmt.Fprintf(w, "%d faults in %.0f s, %d terms, %d of them without a fault; %d events produced, %d of them ended in the dead letter, %d items sent\n",
		r.Faults, r.Seconds, r.Terms, r.Spontaneous, r.Produced, r.Failed, r.Bulk)
	fmt.Fprintf(w, "%d lost, %d out of order, %d regressions, %d resurrected, %d acts of a second claimer, %d times of another clock; %d missing, %d extra, %d stale\n",
		r.Lost, r.OutOfOrder, r.Regressions, r.Resurrected, r.TwoClaimers, r.WallClock, r.Missing, r.Extra, r.Stale)
	fmt.Fprintf(w, "%d leases; %d verdicts and %d sends without one, %d done twice\n", r.Leases, r.Unleased, r.SentEarly, r.Twice)
	if r.Finished != "" {
		fmt.Fprintf(w, "finished events: %s; %d stayed in the table\n", r.Finished, r.Kept)
	}
	if r.Upgrade != "" {
		fmt.Fprintf(w, "%d terms were of the other build, %s\n", r.OtherTerms, r.Upgrade)
	}
	verdict := "PASS"
	if err := r.Err(); err != nil {
		verdict = "FAIL: " + err.Error()
	}
	fmt.Fprintf(w, "%s (seed %d)\n", verdict, r.Seed)
}

// millis writes a time as a person would: 83 ms, 1.20 s.
func millis(ms float64) string {
	if ms < 1000 {
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}

func inMillis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
