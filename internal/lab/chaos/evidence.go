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
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

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
