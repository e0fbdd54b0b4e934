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
	"strconv"
	"strings"
	"time"

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

// keepLogs copies the servers' logs.
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

// keepRecord writes what was recorded, of one shard where there are several, as tables.
func (r *run) keepRecord(shard string, log *history.Log, applied []history.Applied) error {
	integer := func(n int64) string { return strconv.FormatInt(n, 10) }
	record := func(w *csv.Writer) error {
		_ = w.Write([]string{"seq", "tx", "at", "event", "entity", "version", "op", "from", "to", "owner", "epoch", "attempts", "reclaim"})
		for n := range log.Changes {
			c := &log.Changes[n]
			_ = w.Write([]string{integer(c.Seq), strconv.FormatUint(c.Tx, 10), c.At.UTC().Format(stamp), c.Event.String(), c.Key.String(),
				integer(c.Version), string(c.Op), string(c.From), string(c.To), c.Owner, integer(c.Epoch), strconv.Itoa(c.Attempts), strconv.FormatBool(c.Reclaim)})
		}
		return nil
	}
	leases := func(w *csv.Writer) error {
		_ = w.Write([]string{"seq", "tx", "at", "batch", "owner", "epoch", "by", "ended_tx", "ended", "ended_by", "settled", "reclaimed", "events"})
		for _, l := range log.Leases {
			_ = w.Write([]string{integer(l.Seq), strconv.FormatUint(l.Tx, 10), l.At.UTC().Format(stamp), l.Batch.String(), l.Owner, integer(l.Epoch), l.By,
				strconv.FormatUint(l.EndedTx, 10), moment(l.Ended), l.EndedBy, strconv.Itoa(l.Settled), strconv.Itoa(l.Reclaimed), strings.Trim(fmt.Sprint(l.Events), "[]")})
		}
		return nil
	}
	terms := func(w *csv.Writer) error {
		_ = w.Write([]string{"seq", "at", "epoch", "instance"})
		for _, t := range log.Terms {
			_ = w.Write([]string{integer(t.Seq), t.At.UTC().Format(stamp), integer(t.Epoch), t.Instance})
		}
		return nil
	}
	source := func(w *csv.Writer) error {
		_ = w.Write([]string{"tx", "at", "entity", "version", "deleted"})
		for n := range log.Source {
			c := &log.Source[n]
			_ = w.Write([]string{strconv.FormatUint(c.Tx, 10), c.At.UTC().Format(stamp), c.Key.String(), integer(c.Version), strconv.FormatBool(c.Deleted)})
		}
		return nil
	}
	bulk := func(w *csv.Writer) error {
		_ = w.Write([]string{"request", "instance", "sent", "answered", "op", "id", "version", "status", "result", "seq_no", "primary_term", "result_version", "forwarded", "known", "target", "index"})
		for n := range applied {
			a := &applied[n]
			_ = w.Write([]string{integer(a.Request), a.Instance, a.Sent.UTC().Format(stamp), moment(a.Answered), a.Op, a.ID, integer(a.Version),
				strconv.Itoa(a.Status), a.Result, integer(a.SeqNo), integer(a.PrimaryTerm), integer(a.ResultVersion),
				strconv.FormatBool(a.Forwarded), strconv.FormatBool(a.Known), a.Target, a.Index})
		}
		return nil
	}
	var errs []error
	for name, fill := range map[string]func(*csv.Writer) error{
		"record.csv.gz": record, "leases.csv.gz": leases, "terms.csv": terms, "source.csv.gz": source, "bulk.csv.gz": bulk,
	} {
		if shard != "" {
			name = strings.Replace(name, ".csv", "-"+shard+".csv", 1)
		}
		errs = append(errs, r.keepTable(name, fill))
	}
	return errors.Join(errs...)
}

// moment is empty for a time that never came.
func moment(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(stamp)
}

func (r *run) keepTable(name string, fill func(*csv.Writer) error) error {
	return r.keep(name, func(w io.Writer) error {
		var zip *gzip.Writer
		if filepath.Ext(name) == ".gz" {
			zip = gzip.NewWriter(w)
			w = zip
		}
		table := csv.NewWriter(w)
		err := fill(table)
		table.Flush()
		err = errors.Join(err, table.Error())
		if zip != nil {
			err = errors.Join(err, zip.Close())
		}
		return err
	})
}

// keep writes one file of the evidence.
func (r *run) keep(name string, fill func(io.Writer) error) error {
	f, err := os.Create(filepath.Join(r.dir, name))
	if err != nil {
		return fmt.Errorf("keep evidence: %w", err)
	}
	w := bufio.NewWriter(f)
	if err := errors.Join(fill(w), w.Flush(), f.Close()); err != nil {
		return fmt.Errorf("keep evidence %s: %w", name, err)
	}
	return nil
}
