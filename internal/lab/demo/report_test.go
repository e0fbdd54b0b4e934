package demo

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

func eventID(i int) outbox.ID { return outbox.UUID(uuid.UUID{15: byte(i)}) }

// smallLog is the sound history of three events of one load and one later edit.
func smallLog() (*history.Log, []history.Enqueued) {
	at := func(ms int) time.Time { return time.UnixMilli(1_000_000 + int64(ms)) }
	log := &history.Log{Exact: true, Terms: []history.Term{{At: at(0), Epoch: 1, Instance: "a"}}}
	var ledger []history.Enqueued
	change := func(i, ms int, from, to history.Status) {
		id := eventID(i)
		c := history.Change{
			Seq: int64(len(log.Changes)), Tx: uint64(len(log.Changes)), At: at(ms), Event: id,
			Key: outbox.Key{Type: "func", ID: id}, Version: int64(i), From: from, To: to,
		}
		if to == history.Done {
			c.Owner, c.Epoch = "a", 1
		}
		log.Changes = append(log.Changes, c)
	}
	for i := 1; i <= 4; i++ {
		id := eventID(i)
		change(i, 0, "", history.Pending)
		ledger = append(ledger, history.Enqueued{Event: id, Key: outbox.Key{Type: "func", ID: id}, Version: int64(i)})
		log.Rows = append(log.Rows, history.Row{Event: id, Status: history.Done})
	}
	for i := 1; i <= 4; i++ {
		change(i, 1000+100*i, history.Pending, history.Done)
		log.Leases = append(log.Leases, &history.Lease{
			Seq: int64(i), Batch: uuid.UUID{15: byte(i)}, Owner: "a", Epoch: 1, By: "a", Events: []outbox.ID{eventID(i)},
			At: at(100 * i), Ended: at(1000 + 100*i), EndedBy: "a", EndedSeq: int64(10 + i), Settled: 1,
		})
	}
	return log, ledger
}

func TestJudge(t *testing.T) {
	t.Parallel()
	log, ledger := smallLog()
	takeovers := []takeover{{Settle: 40 * time.Millisecond}, {Settle: 61250 * time.Microsecond}, {Settle: 50 * time.Millisecond}}
	clean := judge(log, ledger, &reconcile.Report{Rows: 4, Documents: 4}, takeovers, 3)
	want := Result{Produced: 4, Documents: 4, TakeoverMS: 61.3, EventsPerSecond: 2} // 3 events from 100 ms to 1,300 ms
	if diff := cmp.Diff(want, clean.result); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if err := clean.result.Err(); err != nil {
		t.Errorf("clean run: got error %v", err)
	}
	var out strings.Builder
	clean.write(&out)
	for _, part := range []string{"4 produced, 0 lost, 0 out of order", "61 ms after SIGKILL at worst", "(40 ms, 61 ms, 50 ms)"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("summary: got\n%s\nwant %q in it", &out, part)
		}
	}

	t.Run("EachFigureFailsTheRun", func(t *testing.T) {
		t.Parallel()
		for _, r := range []Result{{Missing: 1}, {Extra: 1}, {Stale: 1}, {LostEvents: 1}, {OutOfOrder: 1}, {TwoActive: 1}, {Unleased: 1}, {Twice: 1}} {
			if r.Err() == nil {
				t.Errorf("%+v: got no error", r)
			}
		}
	})

	t.Run("FindingsAreCountedAndShown", func(t *testing.T) {
		t.Parallel()
		log, ledger := smallLog()
		log.Rows[1].Status = history.Failed
		log.Leases[3].Epoch = 0
		log.Exact = false
		compared := &reconcile.Report{Rows: 4, Documents: 4, Missing: 1, Extra: 1, Stale: 2,
			Examples: []reconcile.Difference{{Kind: reconcile.Extra, ID: "func:x"}}}
		v := judge(log, ledger, compared, nil, 3)
		want := Result{Produced: 4, Documents: 4, Missing: 1, Extra: 1, Stale: 2, LostEvents: 1, TwoActive: 2, EventsPerSecond: 2} // its lease and its settle
		if diff := cmp.Diff(want, v.result); diff != "" {
			t.Errorf("result (-want +got):\n%s", diff)
		}
		var out strings.Builder
		v.write(&out)
		for _, part := range []string{"lost: func:", "one claimer: func:", "extra func:x", "track_commit_timestamp"} {
			if !strings.Contains(out.String(), part) {
				t.Errorf("summary: got\n%s\nwant %q in it", &out, part)
			}
		}
	})
}

func TestJudgeRefusesWhatTheRecordContradicts(t *testing.T) {
	t.Parallel()
	for want, spoil := range map[string]func(*history.Log){
		"1 verdicts without a lease": func(log *history.Log) { log.Changes[7].Owner = "" },
		"1 events done twice": func(log *history.Log) {
			again := log.Changes[7]
			again.From, again.Tx = history.Done, again.Tx+1
			log.Changes = append(log.Changes, again)
		},
	} {
		log, ledger := smallLog()
		spoil(log)
		v := judge(log, ledger, &reconcile.Report{Rows: 4, Documents: 4}, nil, 3)
		if err := v.result.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q in it", err, want)
		}
		var out strings.Builder
		if v.write(&out); !strings.Contains(out.String(), "func:") {
			t.Errorf("%s: got\n%s\nwant the finding in it", want, &out)
		}
	}
}

func TestResultFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "result.json")
	if err := rig.WriteResult(file, &Result{Produced: 7, TakeoverMS: 12.5}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]float64
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	want := map[string]float64{"produced": 7, "documents": 0, "missing": 0, "extra": 0, "stale": 0, "lost_events": 0,
		"out_of_order": 0, "two_active": 0, "unleased": 0, "done_twice": 0, "takeover_ms": 12.5, "events_per_second": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names and values (-want +got):\n%s", diff)
	}
}

func TestDrainOfNothing(t *testing.T) {
	t.Parallel()
	if n, took := drain(&history.Log{}, 1); n != 0 || took != 0 {
		t.Errorf("drain: got %d in %v, want 0 in 0", n, took)
	}
}

func TestSynopsis(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"One. Two.":              "One.",
		"Over\ntwo\tlines":       "Over two lines",
		strings.Repeat("é", 60):  strings.Repeat("é", 60),
		strings.Repeat("é", 100): strings.Repeat("é", 59) + "…",
	} {
		if got := synopsis(in); got != want {
			t.Errorf("synopsis(%q): got %q, want %q", in, got, want)
		}
	}
}

func TestSplit(t *testing.T) {
	t.Parallel()
	docs := []Document{
		newDocument("package", "io/ioutil", "io/ioutil", "x"),
		newDocument("func", "io/ioutil", "io/ioutil.ReadAll", "x"),
		newDocument("func", "io", "io.ReadAll", "x"),
		newDocument("func", "context", "context.WithCancel", "x"),
		newDocument("func", "context", "context.WithCancelCause", "x"),
	}
	pinned, everyday := split(docs)
	if len(pinned.deleted) != 2 || len(pinned.updated) != 1 || len(everyday) != 2 {
		t.Errorf("got %d deleted, %d updated, %d others; want 2, 1, 2", len(pinned.deleted), len(pinned.updated), len(everyday))
	}
}

func TestRank(t *testing.T) {
	t.Parallel()
	ordered := []float64{
		rank("package", "http", "http"),
		rank("type", "http", "http.Client"),
		rank("method", "http", "http.Client.Do"),
		rank("method", "net/http", "net/http.Client.Do"),
		rank("method", "net/http", "net/http.Client.do"),
		rank("method", "net/http", "net/http.client.do"),
	}
	for i := 1; i < len(ordered); i++ {
		if ordered[i] >= ordered[i-1] {
			t.Errorf("ranks: got %v, want them to fall", ordered)
		}
	}
}
