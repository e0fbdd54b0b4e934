package systemd

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

// upgradeLimit is the longest pause between two settled events in an upgrade.
const upgradeLimit = time.Second

// Drill is one line of the table.
type Drill struct {
	Name string `json:"name"`
	// FirstMS is from the fault to the first event that the successor settled, or from the
	// start of PostgreSQL to the first settled event.
	FirstMS float64 `json:"first_ms,omitempty"`
	// PauseMS is the longest time between two settled events while the drill lasted.
	PauseMS float64 `json:"pause_ms,omitempty"`
	// BackS is from the fault until both units were well again, one leading.
	BackS float64 `json:"back_s,omitempty"`
	Seen  string  `json:"seen"`

	began, ended time.Time
	mark         history.FaultMark // zero when nobody was to take over
	server       time.Time         // when PostgreSQL was started again
}

// Result is what --json writes.
type Result struct {
	Versions []string `json:"versions"` // of the packages
	Drills   []*Drill `json:"drills"`
	Seconds  float64  `json:"seconds"`

	Produced int `json:"produced"` // events that the producer saw committed
	Refused  int `json:"refused"`  // transactions that it saw fail
	Terms    int `json:"terms"`
	verdict.Broken
	Misjudged int  `json:"misjudged"` // machines in whose journal a line has not the priority of its level
	LogLines  int  `json:"log_lines"` // that were looked at for that
	Converged bool `json:"converged"` // both stores are equal

	findings []string
}

// Err returns nil for a clean run, and otherwise says what was wrong.
func (r *Result) Err() error {
	var wrong []string
	if !r.Converged {
		wrong = append(wrong, "the stores differ")
	}
	for _, d := range r.Drills {
		if d.Name == upgrade && d.PauseMS > verdict.InMillis(upgradeLimit) {
			wrong = append(wrong, fmt.Sprintf("nothing was settled for %.0f ms in an upgrade", d.PauseMS))
		}
	}
	return verdict.Clean("the run", append(r.Counts(), verdict.Count{N: r.Failed, What: "dead letters"}, verdict.Count{N: r.Misjudged, What: "journals with wrong priorities"}), wrong...)
}

// measure fills in the times of the drills from the record.
func (r *Result) measure(log *history.Log) {
	var marks []history.FaultMark
	var marked []*Drill
	for _, d := range r.Drills {
		pause, _ := log.LongestPause(d.began, d.ended)
		d.PauseMS = verdict.InMillis(pause)
		if !d.mark.At.IsZero() {
			marks, marked = append(marks, d.mark), append(marked, d)
		}
		if first, ok := log.FirstDoneAfter(d.server); ok && !d.server.IsZero() {
			d.FirstMS = verdict.InMillis(first.At.Sub(d.server))
		}
	}
	for i, t := range history.Takeovers(log, marks) {
		if t.Happened() {
			marked[i].FirstMS = verdict.InMillis(t.Settle())
		}
	}
}

func (r *Result) write(w io.Writer) {
	for _, f := range r.findings {
		fmt.Fprintf(w, "  %s\n", f)
	}
	verdict.WriteRows(w, []any{"drill", "first settled", "longest pause", "pair well again", "seen"}, rig.Map(r.Drills, func(d *Drill) []any {
		return []any{d.Name, orNothing(d.FirstMS, "ms"), orNothing(d.PauseMS, "ms"), orNothing(d.BackS, "s"), d.Seen}
	})...)
	fmt.Fprintf(w, "%d events committed in %.0f s, %d transactions refused, %d terms; %d lost, %d out of order, %d failed; %d acts of a second claimer\n",
		r.Produced, r.Seconds, r.Refused, r.Terms, r.Lost, r.OutOfOrder, r.Failed, r.TwoClaimers)
	said := "PASS"
	if err := r.Err(); err != nil {
		said = "FAIL"
	}
	fmt.Fprintf(w, "%s (%s)\n", said, strings.Join(r.Versions, ", then "))
}

func orNothing(n float64, unit string) string {
	switch {
	case n == 0:
		return ""
	case unit == "s":
		return fmt.Sprintf("%.1f s", n)
	case n >= 10_000:
		return fmt.Sprintf("%.1f s", n/1000)
	default:
		return fmt.Sprintf("%.0f %s", n, unit)
	}
}
