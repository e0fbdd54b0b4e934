package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	riverCommand   = "river-client"
	pgstreamModule = "github.com/xataio/pgstream@v1.4.1"
)

// options are those of a run.
type options struct {
	rows, times  int
	json, only   string
	weft, source string
	dir          string
}

func main() {
	runtime.LockOSThread() // of which the kernel knows when this process ends
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runCommand(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		stop()
		os.Exit(1)
	}
}

func runCommand(ctx context.Context, args []string) error {
	if len(args) == 3 && args[0] == riverCommand {
		return runRiver(ctx, args[1], args[2])
	}
	var o options
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.IntVar(&o.rows, "rows", 100_000, "rows of the backlog")
	flags.IntVar(&o.times, "times", 3, "takeovers of each kind")
	flags.StringVar(&o.only, "only", "", "only these peers, separated by commas")
	flags.StringVar(&o.json, "json", "", "write the figures to this file")
	flags.StringVar(&o.weft, "weft", "", "binary of weft")
	flags.StringVar(&o.source, "source", "", "directory of this module")
	flags.StringVar(&o.dir, "dir", "", "directory for logs and data")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r, err := measure(ctx, o, os.Getenv("ELASTIC_URL"), os.Stderr)
	if err != nil {
		return err
	}
	r.print(os.Stdout)
	if o.json == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(text, '\n'), 0o644)
}

// measure runs all peers, one after the other.
func measure(ctx context.Context, o options, elasticURL string, progress io.Writer) (r *report, err error) {
	s := &site{dir: o.dir, source: o.source, weft: o.weft, elastic: elastic{strings.TrimSuffix(elasticURL, "/")}}
	r = &report{Date: time.Now().UTC().Format(time.RFC3339), CPUs: runtime.NumCPU(), Rows: o.rows, PostgresSettings: serverSettings()}
	if r.Elastic, err = s.elastic.version(ctx); err != nil {
		return nil, fmt.Errorf("version of Elasticsearch: %w", err)
	}
	s.version = r.Elastic
	if s.postgres, err = startPostgres(ctx, o.dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.postgres.stop()) }()
	if err := s.postgres.admin.QueryRow(ctx, "show server_version").Scan(&r.Postgres); err != nil {
		return nil, err
	}
	only := strings.FieldsFunc(o.only, func(c rune) bool { return c == ',' })
	wanted := func(name string) bool { return len(only) == 0 || slices.Contains(only, name) }
	r.LoadBefore = loadAverage()
	sync := &pgsync{site: s}
	defer func() { err = errors.Join(err, sync.close()) }()
	for _, p := range []peer{weft{s}, sync, &hibernate{site: s}} {
		if wanted(p.about().name) {
			r.Peers = append(r.Peers, measurePeer(ctx, s, p, o, progress))
		}
	}
	if wanted("pgstream") {
		_, err := run(ctx, s.dir, nil, "go", "mod", "download", pgstreamModule)
		r.Peers = append(r.Peers, figures{Name: "pgstream", Version: pgstreamModule, Reason: withoutHosts(err)})
	}
	if wanted("River") {
		r.Peers = append(r.Peers, measureRiver(ctx, s, o, progress))
	}
	r.LoadAfter = loadAverage()
	return r, ctx.Err()
}

// measurePeer measures one peer. An error is among its figures, and ends its measurements.
func measurePeer(ctx context.Context, s *site, p peer, o options, progress io.Writer) (f figures) {
	about := p.about()
	f = figures{Name: about.name, Settings: p.settings(), Wrote: about.backlog, SettledMeans: about.settled, Standby: about.standby}
	fail := func(step string, err error) figures {
		f.Reason = step + ": " + withoutHosts(err)
		fmt.Fprintf(progress, "%s: %s\n", about.name, f.Reason)
		return f
	}
	var err error
	if f.Version, err = p.prepare(ctx); err != nil {
		return fail("prepare", err)
	}
	f.Load = loadAverage()
	fmt.Fprintf(progress, "%s %s: a backlog of %d rows\n", about.name, f.Version, o.rows)
	b, err := measureBacklog(ctx, s, p, o.rows)
	if err != nil {
		return fail("backlog", err)
	}
	f.Backlog = &b
	for _, fault := range faults() {
		if fault.signal == syscall.SIGSTOP && about.standby == "" {
			f.Takeovers = append(f.Takeovers, takeovers{Fault: fault.name, Note: "none: it has no standby, and a supervisor sees no end of a frozen process"})
			continue
		}
		t := takeovers{Fault: fault.name}
		for turn := range o.times {
			fmt.Fprintf(progress, "%s: %s, %d of %d\n", about.name, fault.name, turn+1, o.times)
			one, err := measureTakeover(ctx, s, p, fault, turn)
			if err != nil {
				return fail(fault.name, err)
			}
			t.add(one)
		}
		f.Takeovers = append(f.Takeovers, t)
	}
	return f
}

func measureRiver(ctx context.Context, s *site, o options, progress io.Writer) (f figures) {
	f = figures{
		Name: "River", Version: riverVersion(), Settings: []string{"all defaults", "the election alone: it has no Elasticsearch"}, Load: loadAverage(),
		Standby: "each client stands for election",
	}
	for _, fault := range faults() {
		t := takeovers{Fault: fault.name}
		for turn := range o.times {
			fmt.Fprintf(progress, "River: %s, %d of %d\n", fault.name, turn+1, o.times)
			one, err := electAgain(ctx, s, fault, turn)
			if err != nil {
				f.Reason = fault.name + ": " + withoutHosts(err)
				return f
			}
			t.add(one)
		}
		f.Takeovers = append(f.Takeovers, t)
	}
	return f
}

func faults() []fault { return []fault{{"kill -9", syscall.SIGKILL}, {"SIGSTOP", syscall.SIGSTOP}} }
