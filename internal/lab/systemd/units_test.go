package systemd

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestMain(m *testing.M) { testenv.MainNoServers(m) }

func TestVerdict(t *testing.T) {
	t.Parallel()
	clean := Result{Converged: true, Drills: []*Drill{{Name: upgrade, PauseMS: 999}, {Name: "freeze", PauseMS: 5000}}}
	if err := clean.Err(); err != nil {
		t.Errorf("clean run: got %v, want none", err)
	}
	for want, spoil := range map[string]func(*Result){
		"1 lost events":                 func(r *Result) { r.Lost = 1 },
		"2 events out of order":         func(r *Result) { r.OutOfOrder = 2 },
		"3 acts of a second claimer":    func(r *Result) { r.TwoClaimers = 3 },
		"6 verdicts without a lease":    func(r *Result) { r.Unleased = 6 },
		"7 events done twice":           func(r *Result) { r.Twice = 7 },
		"4 dead letters":                func(r *Result) { r.Failed = 4 },
		"5 journals with wrong":         func(r *Result) { r.Misjudged = 5 },
		"the stores differ":             func(r *Result) { r.Converged = false },
		"nothing was settled for 1001 ": func(r *Result) { r.Drills = []*Drill{{Name: upgrade, PauseMS: 1001}} },
	} {
		bad := clean
		spoil(&bad)
		if err := bad.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("verdict: got %v, want %q", err, want)
		}
	}
}

// record is a log in which events of one epoch are settled at the given milliseconds.
func record(from time.Time, epochs map[int64][]int) *history.Log {
	log := &history.Log{Exact: true}
	for epoch, times := range epochs {
		for i, ms := range times {
			at := from.Add(time.Duration(ms) * time.Millisecond)
			if i == 0 {
				log.Terms = append(log.Terms, history.Term{At: at.Add(-time.Millisecond), Epoch: epoch, Instance: "i"})
			}
			log.Changes = append(log.Changes, history.Change{
				At: at, Event: outbox.UUID(uuid.New()), Key: outbox.Key{Type: "block", ID: outbox.UUID(uuid.New())},
				From: history.Pending, To: history.Done, Owner: "i", Epoch: epoch,
			})
		}
	}
	slices.SortStableFunc(log.Changes, func(a, b history.Change) int { return a.At.Compare(b.At) })
	slices.SortFunc(log.Terms, func(a, b history.Term) int { return a.At.Compare(b.At) })
	return log
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 5, 4, 1, 2, 3, 0, time.UTC)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	log := record(start, map[int64][]int{1: {0, 100, 1900, 2000}, 2: {2080, 2100, 9000}})
	over := &Drill{Name: "kill", began: at(1950), ended: at(2090)}
	over.fault(at(2010), 1)
	away := &Drill{Name: "outage", began: at(2050), ended: at(9100), server: at(8900)}
	r := Result{Drills: []*Drill{{Name: "stop", began: at(50), ended: at(150)}, over, away}}
	r.measure(log)
	for i, want := range []Drill{{FirstMS: 0, PauseMS: 1800}, {FirstMS: 70, PauseMS: 100}, {FirstMS: 100, PauseMS: 6900}} {
		if got := r.Drills[i]; got.FirstMS != want.FirstMS || got.PauseMS != want.PauseMS {
			t.Errorf("%s: got first %v ms and pause %v ms, want %v and %v", got.Name, got.FirstMS, got.PauseMS, want.FirstMS, want.PauseMS)
		}
	}
	var out bytes.Buffer
	r.Converged, r.Versions = true, []string{"1", "2"}
	r.write(&out)
	if text := out.String(); !strings.Contains(text, "kill    70 ms") || !strings.HasSuffix(text, "PASS (1, then 2)\n") {
		t.Errorf("table: got\n%s", text)
	}
}

const entries = `{"PRIORITY":"6","_TRANSPORT":"stdout","MESSAGE":"{\"level\":\"info\",\"msg\":\"leads\"}"}
{"PRIORITY":"4","_TRANSPORT":"stdout","MESSAGE":"{\"level\":\"warn\",\"msg\":\"server away\"}"}
{"PRIORITY":"6","_TRANSPORT":"stdout","MESSAGE":"goroutine 1 [running]:"}
{"PRIORITY":"6","_TRANSPORT":"stdout","MESSAGE":[27,91]}
{"PRIORITY":"3","_TRANSPORT":"journal","MESSAGE":"weft.service: Watchdog timeout (limit 20s)!"}
`

func TestJournal(t *testing.T) {
	t.Parallel()
	lines, err := parseJournal(entries)
	if err != nil || len(lines) != 5 {
		t.Fatalf("got %d lines, %v, want 5", len(lines), err)
	}
	if !contains(lines, "Watchdog timeout") || contains(lines, "SIGABRT") {
		t.Errorf("contains: wrong about %v", lines)
	}
	if looked, bad := misjudged(lines); looked != 2 || bad != "" {
		t.Errorf("priorities: got %d lines, %q, want 2 and no fault", looked, bad)
	}
	lines[1].Priority = "6"
	if _, bad := misjudged(lines); !strings.HasPrefix(bad, "priority 6, want 4: ") {
		t.Errorf("wrong priority: got %q", bad)
	}
	if _, err := parseJournal("no json"); err == nil || !strings.HasPrefix(err.Error(), "journal: ") {
		t.Errorf("no journal: got %v", err)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for want, opts := range map[string]Options{
		`drill "sleep": want one of start, reload, stop`: {Only: []string{"kill", "sleep"}},
		"packages: 1 files, want two":                    {Packages: []string{"one.deb"}},
	} {
		opts.Out, opts.Progress = io.Discard, io.Discard
		if err := Run(t.Context(), opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
