package chaos

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// Result is what a run counted and measured; --json writes it. The counts from Broken to Stale
// must be 0 in a run that passes, but for Failed; [Result.Err] judges them all.
type Result struct {
	Seed     uint64         `json:"seed"`     // of the schedule
	Domain   string         `json:"domain"`   // wordloom or shop
	Faults   int            `json:"faults"`   // injected
	Injected map[string]int `json:"injected"` // times, by name of the fault
	Skipped  map[string]int `json:"skipped"`  // times that a fault could not be injected, by name
	// Impossible names the faults in Skipped that the options of the run rule out.
	Impossible []string `json:"impossible,omitempty"`
	Seconds    float64  `json:"seconds"` // from the first fault until everything was drained
	Produced   int      `json:"produced"`
	Unknown    int      `json:"unknown"`     // events of commits that the producer got no answer to
	Bulk       int      `json:"bulk"`        // items of bulk requests
	Unread     int      `json:"unread_bulk"` // bulk requests whose items are not in the record
	Terms      int      `json:"terms"`       // of leadership, in all shards
	// Spontaneous counts the terms that began while no fault was on. A machine too busy for a
	// heartbeat within three seconds has some, so the verdict ignores it.
	Spontaneous int `json:"spontaneous_terms"`

	Shards       int   `json:"shards,omitempty"` // shards that the instances shared; 0: the run had none
	ElasticNodes int   `json:"elastic_nodes,omitempty"`
	Patroni      bool  `json:"patroni,omitempty"`
	PauseMS      int64 `json:"longest_pause_ms"` // longest time without a done event, in any shard

	Finished   string `json:"finished,omitempty"` // what became of events that were done
	Upgrade    string `json:"upgrade,omitempty"`  // the other build that led in turns
	OtherTerms int    `json:"other_build_terms"`  // those of Terms that the other build led
	Leases     int    `json:"leases"`
	Kept       int    `json:"kept"` // finished events that stayed in the table although they were to be archived or deleted

	verdict.Broken
	SentEarly   int  `json:"sent_early"`  // items that were sent without a committed lease
	Regressions int  `json:"regressions"` // writes that took a document to an older version
	Resurrected int  `json:"resurrected"` // deleted documents that came back by themselves
	Misplaced   int  `json:"misplaced"`   // events and rows in a shard that is not their entity's
	WallClock   int  `json:"wall_clock"`  // columns with times from an instance's clock instead of the database's
	Surprises   int  `json:"surprises"`   // instances that ended by themselves, or badly
	Missing     int  `json:"missing"`     // rows without a document
	Extra       int  `json:"extra"`       // documents without a row
	Stale       int  `json:"stale"`       // documents that differ from their row
	Converged   bool `json:"converged"`

	TakeoverMS map[string]verdict.Latency `json:"takeover_ms"` // by name of the fault, in milliseconds
	Delayed    map[string]int             `json:"delayed"`     // by name of the fault: events that were on their way for more than a second across it

	Rebuilds *Rebuilds `json:"rebuilds,omitempty"`

	// Inexact says that the server records no commit times (track_commit_timestamp is off), so the
	// record has the order of statements. Named says that the caller named the database, and may be
	// unable to turn that setting on: then Inexact does not fail the run.
	Inexact bool `json:"judged_by_statements,omitempty"`
	Named   bool `json:"named_database,omitempty"`
}

// byStatements says what an inexact record is worth.
const byStatements = "judged by the times of statements, not of commits"

// Rebuilds counts the rebuilds of the index during the faults, and the searches beside them.
type Rebuilds struct {
	Done     int              `json:"done"`
	Aborted  int              `json:"aborted"`
	Killed   int              `json:"commands_killed"`
	Searches traffic.Searches `json:"searches"`
}

// Err returns nil when the run passes, and otherwise an error that names each figure that is wrong.
func (r *Result) Err() error {
	kept := r.Kept
	if r.Upgrade != "" {
		kept = 0 // an older build keeps them
	}
	counts := append(r.Counts(), []verdict.Count{
		{N: r.Regressions, What: "writes back to an older version"}, {N: r.Resurrected, What: "resurrected documents"},
		{N: r.WallClock, What: "columns with times of another clock"}, {N: r.SentEarly, What: "sends without a lease"},
		{N: r.Misplaced, What: "events or rows in another shard than their entity's"},
		{N: kept, What: "finished events that stayed in the table"}, {N: r.Surprises, What: "instances that ended by themselves or badly"},
		{N: r.Unread, What: "bulk requests that could not be read"},
		{N: r.Missing, What: "missing documents"}, {N: r.Extra, What: "extra documents"}, {N: r.Stale, What: "stale documents"},
	}...)
	wrong := r.idle()
	if r.Inexact && !r.Named {
		wrong = append(wrong, byStatements)
	}
	if b := r.Rebuilds; b != nil {
		counts = append(counts, verdict.Count{N: b.Searches.Failed, What: "searches without an index"}, verdict.Count{N: b.Searches.Stale, What: "stale searches"})
		want := 1
		if r.Seconds > severalRebuilds.Seconds() {
			want = 2 // a second one finds what the first has left
		}
		if b.Done < want || b.Searches.Answered == 0 {
			wrong = append(wrong, fmt.Sprintf("%d rebuilds and %d searches", b.Done, b.Searches.Answered))
		}
	}
	if r.Upgrade != "" && (r.OtherTerms == 0 || r.OtherTerms == r.Terms) {
		wrong = append(wrong, fmt.Sprintf("%d of %d terms of the other build", r.OtherTerms, r.Terms))
	}
	if !r.Converged && verdict.Clean("", counts, wrong...) == nil {
		wrong = append(wrong, "not converged")
	}
	return verdict.Clean("the run", counts, wrong...)
}

// idle says what the run has left undone, so that nothing else it says counts.
func (r *Result) idle() (wrong []string) {
	if r.Faults == 0 {
		wrong = append(wrong, "no fault was injected")
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Skipped)) {
		if n := r.Skipped[kind]; n > 1 && r.Injected[kind] == 0 && !slices.Contains(r.Impossible, kind) {
			wrong = append(wrong, fmt.Sprintf("%s %d times skipped and never injected", kind, n))
		}
	}
	if r.Bulk == 0 || r.Leases == 0 {
		wrong = append(wrong, fmt.Sprintf("nothing was recorded: %d items and %d leases", r.Bulk, r.Leases))
	}
	return wrong
}

func (r *Result) write(w io.Writer) {
	var rows [][]any
	for _, f := range faults.All() {
		if r.Injected[f.Name]+r.Skipped[f.Name] == 0 {
			continue
		}
		row := []any{f.Name, r.Injected[f.Name], "", "", "", "", r.Delayed[f.Name], ""}
		if n := r.Skipped[f.Name]; n > 0 {
			row[2] = n
		}
		if s, ok := r.TakeoverMS[f.Name]; ok {
			row[3], row[4], row[5] = millis(s.P50), millis(s.P99), millis(s.Max)
		}
		if f.Measure == faults.Handover || f.Measure == faults.Restarted {
			row[7] = f.Measure
		}
		rows = append(rows, row)
	}
	verdict.WriteRows(w, []any{"fault", "times", "skipped", "takeover p50", "p99", "max", "delayed", ""}, rows...)
	fmt.Fprintf(w, "%d faults in %.0f s, %d terms, %d of them without a fault; %d events produced, %d of them ended in the dead letter, %d items sent\n",
		r.Faults, r.Seconds, r.Terms, r.Spontaneous, r.Produced, r.Failed, r.Bulk)
	if r.Inexact {
		fmt.Fprintf(w, "%s: the server has track_commit_timestamp off\n", byStatements)
	}
	fmt.Fprintf(w, "%d lost, %d out of order, %d regressions, %d resurrected, %d acts of a second claimer, %d times of another clock; %d missing, %d extra, %d stale\n",
		r.Lost, r.OutOfOrder, r.Regressions, r.Resurrected, r.TwoClaimers, r.WallClock, r.Missing, r.Extra, r.Stale)
	fmt.Fprintf(w, "%.1f s at most without an event that was done\n", float64(r.PauseMS)/1000)
	fmt.Fprintf(w, "%d leases; %d verdicts and %d sends without one, %d done twice\n", r.Leases, r.Unleased, r.SentEarly, r.Twice)
	if r.Shards > 0 {
		fmt.Fprintf(w, "%d shards; %d events or rows in another shard than their entity's\n", r.Shards, r.Misplaced)
	}
	if r.Finished != "" {
		fmt.Fprintf(w, "finished events: %s; %d stayed in the table\n", r.Finished, r.Kept)
	}
	if r.Upgrade != "" {
		fmt.Fprintf(w, "%d terms were of the other build, %s\n", r.OtherTerms, r.Upgrade)
	}
	if b := r.Rebuilds; b != nil {
		fmt.Fprintf(w, "%d rebuilds, %d aborted, %d of their commands killed; %d searches, %d without an index, %d stale, %d without a server %s\n",
			b.Done, b.Aborted, b.Killed, b.Searches.Answered, b.Searches.Failed, b.Searches.Stale, b.Searches.Away, b.Searches.First)
	}
	said := "PASS"
	if err := r.Err(); err != nil {
		said = "FAIL: " + err.Error()
	}
	fmt.Fprintf(w, "%s (seed %d)\n", said, r.Seed)
}

// millis writes a time as a person would: 83 ms, 1.20 s.
func millis(ms float64) string {
	if ms < 1000 {
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}

// The evidence is what a person needs to find out what happened: beside the logs of
// the instances, which are written there from the start,
//
//	postgres.log, elastic.log    the servers'; elastic2.log and so on those of other nodes, and
//	                             patroni-pg1.log, etcd-pg1.log and so on where Patroni manages PostgreSQL
//	schedule.txt                 every fault as it was carried out
//	record.csv.gz, leases.csv.gz, terms.csv, source.csv.gz
//	                             what the database recorded of events, leases, epochs and rows
//	bulk.csv.gz                  what passed to Elasticsearch, and its answers
//	findings.txt                 what is wrong, with the story of each entity
//
// Where there are shards, the tables are those of each, as record-0.csv.gz.

const stamp = "2006-01-02T15:04:05.000000Z07:00"

func (r *run) keepLogs() error {
	var errs []error
	for name, from := range r.serverLogs() {
		errs = append(errs, r.keep(name, func(w io.Writer) error {
			f, err := os.Open(from)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(w, f)
			return err
		}))
	}
	return errors.Join(errs...)
}

// serverLogs returns the logs of the servers by name, as far as the run has started them.
func (r *run) serverLogs() map[string]string {
	logs := map[string]string{}
	if r.cluster != nil {
		logs = r.cluster.Logs()
	}
	if r.Servers == nil {
		return logs
	}
	logs["postgres.log"], logs["elastic.log"] = r.Servers.Log(stack.Postgres), r.Servers.Log(stack.Elastic)
	for _, node := range r.Servers.ElasticNodes() {
		logs[string(node)+".log"] = r.Servers.Log(node)
	}
	maps.DeleteFunc(logs, func(_, file string) bool { return file == "" }) // of the caller's servers
	return logs
}

func (r *run) keepSchedule() error {
	return r.keep("schedule.txt", func(w io.Writer) error {
		fmt.Fprintf(w, "seed %d\n", r.opts.Seed)
		for _, i := range r.injections {
			if i.Injection == nil {
				continue // the run has ended before it
			}
			fmt.Fprintf(w, "%s\n    at %s, healed %s, calm %s; aimed at %s (leader %v), epoch %d%s%s", i.Step,
				i.At.UTC().Format(stamp), i.Healed.UTC().Format(stamp), i.Calm.UTC().Format(stamp), i.Instance, i.Leader, i.Epoch, i.ofShard(), i.Note)
			if i.Skipped != "" {
				fmt.Fprintf(w, "; skipped: %s", i.Skipped)
			}
			fmt.Fprintln(w)
		}
		return nil
	})
}

// table is a file of the evidence: a head, and the cells of each of n rows.
type table struct {
	name string
	head string // columns, with commas
	n    int
	row  func(n int) []any
}

// keepRecord writes what was recorded, of one shard where there are several, as tables.
func (r *run) keepRecord(shard string, log *history.Log, applied []history.Applied) error {
	var errs []error
	for _, t := range []table{
		{"record.csv.gz", "seq,tx,at,event,entity,version,op,from,to,owner,epoch,attempts,reclaim", len(log.Changes), func(n int) []any {
			c := &log.Changes[n]
			return []any{c.Seq, c.Tx, c.At, c.Event, c.Key, c.Version, c.Op, c.From, c.To, c.Owner, c.Epoch, c.Attempts, c.Reclaim}
		}},
		{"leases.csv.gz", "seq,tx,at,batch,owner,epoch,by,ended_tx,ended,ended_by,settled,reclaimed,events", len(log.Leases), func(n int) []any {
			l := log.Leases[n]
			events := strings.Trim(fmt.Sprint(l.Events), "[]")
			return []any{l.Seq, l.Tx, l.At, l.Batch, l.Owner, l.Epoch, l.By, l.EndedTx, l.Ended, l.EndedBy, l.Settled, l.Reclaimed, events}
		}},
		{"terms.csv", "seq,at,epoch,instance", len(log.Terms), func(n int) []any {
			t := &log.Terms[n]
			return []any{t.Seq, t.At, t.Epoch, t.Instance}
		}},
		{"source.csv.gz", "tx,at,entity,version,deleted", len(log.Source), func(n int) []any {
			c := &log.Source[n]
			return []any{c.Tx, c.At, c.Key, c.Version, c.Deleted}
		}},
		{"bulk.csv.gz", "request,instance,sent,answered,op,id,version,status,result,seq_no,primary_term,result_version,forwarded,known,target,index",
			len(applied), func(n int) []any {
				a := &applied[n]
				return []any{a.Request, a.Instance, a.Sent, a.Answered, a.Op, a.ID, a.Version, a.Status, a.Result, a.SeqNo, a.PrimaryTerm,
					a.ResultVersion, a.Forwarded, a.Known, a.Target, a.Index}
			}},
	} {
		if shard != "" {
			t.name = strings.Replace(t.name, ".csv", "-"+shard+".csv", 1)
		}
		errs = append(errs, r.keep(t.name, t.write))
	}
	return errors.Join(errs...)
}

// write writes the table as CSV, compressed where its name says so.
func (t *table) write(w io.Writer) error {
	if filepath.Ext(t.name) != ".gz" {
		return t.writeCSV(w)
	}
	zip := gzip.NewWriter(w)
	return errors.Join(t.writeCSV(zip), zip.Close())
}

func (t *table) writeCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	_ = out.Write(strings.Split(t.head, ",")) // the writer remembers the first error
	for n := range t.n {
		var cells []string
		for _, cell := range t.row(n) {
			at, isTime := cell.(time.Time)
			switch {
			case !isTime:
				cells = append(cells, fmt.Sprint(cell))
			case at.IsZero(): // it never came
				cells = append(cells, "")
			default:
				cells = append(cells, at.UTC().Format(stamp))
			}
		}
		_ = out.Write(cells)
	}
	out.Flush()
	return out.Error()
}

func (r *run) keep(name string, fill func(io.Writer) error) error {
	f, err := os.Create(filepath.Join(r.dir, name))
	if err != nil {
		return fmt.Errorf("keep evidence: %w", err)
	}
	w := bufio.NewWriter(f)
	return rig.Wrap("keep evidence "+name, errors.Join(fill(w), w.Flush(), f.Close()))
}
