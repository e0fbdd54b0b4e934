package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// Command returns `weftlab demo`.
func Command() *cobra.Command {
	var opts Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch two instances carry the documentation of Go's standard library",
		Long: `Write every doc comment of the standard library into search_index, each with its
outbox event, and let two instances of weft carry them into Elasticsearch. A stream of
edits goes on while the leader is killed three times. Then everything is compared,
document by document, and searched.

It starts a PostgreSQL and an Elasticsearch; where DATABASE_URL or ELASTIC_URL is set
it works in a schema and an index of its own on that server and removes them. It takes
less than 90 s after the downloads, usually half of that.

Exit code 0 means that no event was lost or out of order, no two instances were active
at once, and both stores agree; 1 means anything else.`,
		Example: `  weftlab demo
  weftlab demo --json result.json
  weftlab demo --keep`,
		Args: cobra.NoArgs,
		RunE: rig.RunE(func(ctx context.Context, cmd *cobra.Command) error {
			opts.Out, opts.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			opts.Environ = os.Environ()
			opts.DatabaseURL, opts.ElasticURL = os.Getenv("DATABASE_URL"), os.Getenv("ELASTIC_URL")
			return Run(ctx, opts)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&opts.JSON, "json", "", "write the figures to `FILE` as JSON")
	f.BoolVar(&opts.Keep, "keep", false, "leave the servers and both instances up, and say how to look around")
	f.StringVar(&opts.Dir, "dir", "", "keep the logs of the instances in `DIR`")
	f.StringVar(&opts.Binary, "weft", "", "run this weft `FILE` instead of building one")
	return cmd
}

const (
	ownIndex = "weft-demo"
	conns    = 12
)

// quietPeriod is between two status lines where they cannot be rewritten in place.
const quietPeriod = 2 * time.Second

const (
	// wholeLimit is for everything but downloads and the build. How much of the time
	// until the servers were up was download is not known here: shortLimit remains
	// for the rest in any case.
	wholeLimit = 87 * time.Second
	shortLimit = 50 * time.Second
)

// Options of [Run].
type Options struct {
	Out      io.Writer // what there is to see
	Progress io.Writer // of downloads and servers
	Environ  []string  // of the weft processes; names of settings in it are dropped

	DatabaseURL, ElasticURL string // servers to use instead of starting some
	Binary                  string // weft; empty means to build it
	Dir                     string // for logs and the binary; empty means a temporary one
	JSON                    string // file for the result; empty means none
	Keep                    bool   // leave servers and instances up
}

type run struct {
	*rig.Group
	rig.Script
	opts     Options
	screen   *rig.Screen
	began    time.Time // of the part after the servers are up
	deadline time.Time
	dir      string
	base     *rig.Place // that of the user's schemas; the run's own place where PostgreSQL is ours
	app      *traffic.Application
	cancel   context.CancelCauseFunc // ends the part with a deadline
}

// Run shows the demo. It returns an error when something could not be done, when time ran out,
// and when a loss figure is not 0.
func Run(ctx context.Context, opts Options) error {
	dir := rig.Dir{Path: opts.Dir, Program: "demo", Holds: "logs"}
	return dir.Run(ctx, func(ctx context.Context, path string) (err error) {
		r := &run{Group: &rig.Group{}, opts: opts, screen: rig.NewScreen(opts.Out, quietPeriod), began: time.Now(), dir: path}
		defer func() {
			if !dir.Keep {
				err = errors.Join(err, r.close(ctx))
			}
		}()
		docs, err := r.prepare(ctx)
		if err != nil {
			return err
		}
		v, err := r.timed(ctx, docs)
		if err != nil {
			return err
		}
		if opts.Keep {
			if r.Servers != nil {
				if err := r.Servers.Detach(ctx, r.stateFile()); err != nil {
					return err
				}
			}
			dir.Keep = true
		}
		v.took = time.Since(r.began)
		v.write(r.screen)
		if err := rig.WriteResult(opts.JSON, v.result); err != nil {
			return err
		}
		if dir.Keep {
			leader := "" // at the end
			for _, t := range v.takeovers {
				leader = t.To.Instance
			}
			r.lookAround(r.screen, leader)
			r.Pool.Close()
		}
		return v.result.Err()
	})
}

// timed shows the demo within its time.
func (r *run) timed(ctx context.Context, docs []Document) (v *outcome, err error) {
	r.began, r.deadline = time.Now(), time.Now().Add(max(shortLimit, wholeLimit-time.Since(r.began)))
	ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	over := time.AfterFunc(time.Until(r.deadline), func() {
		r.cancel(fmt.Errorf("out of time %.0f s after the servers were up, in the step: %s", time.Since(r.began).Seconds(), r.screen.Step()))
	})
	defer over.Stop()
	err = r.Play(ctx, func() { v = r.show(docs) })
	r.screen.Refresh("")
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	return v, err
}

// open starts the servers that the user has not named, and takes names of the demo's own on the others.
func (r *run) open(ctx context.Context) (err error) {
	r.base, err = rig.Open(ctx, stack.Options{Progress: r.opts.Progress, DatabaseURL: r.opts.DatabaseURL, ElasticURL: r.opts.ElasticURL}, conns)
	if err != nil {
		return err
	}
	suffix := rig.Suffix()
	if r.base.Index = ownIndex; r.opts.ElasticURL != "" {
		r.base.Index += "-" + suffix
	}
	if r.Place = r.base; r.opts.DatabaseURL != "" {
		// The lock of a group is one per database: the group is the demo's own, too.
		r.Place, err = r.base.Corner(ctx, "weft_demo_"+suffix, r.base.Index, "demo-"+suffix, conns)
	}
	return err
}

// close ends the instances, stops the demo's servers and removes what it has made on the user's.
func (r *run) close(ctx context.Context) error {
	errs := []error{r.Stop()}
	if r.base == nil {
		return errs[0]
	}
	switch {
	case r.Place != nil && r.Place != r.base:
		errs = append(errs, r.Place.Close(ctx))
	case !r.base.Started.Elastic:
		errs = append(errs, r.base.Elastic.DeleteIndices(context.WithoutCancel(ctx), r.base.Index))
	}
	return errors.Join(append(errs, r.base.Close(ctx))...)
}

// prepare starts the servers, builds weft and reads the corpus, all at once.
func (r *run) prepare(ctx context.Context) (docs []Document, err error) {
	root, err := process.Go(ctx, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.open(gctx) })
	g.Go(func() (err error) {
		start := time.Now()
		if r.opts.Binary == "" {
			r.screen.Line("Building weft …")
		}
		if r.Fleet, err = rig.NewFleet(gctx, r.opts.Binary, r.dir); err == nil && r.opts.Binary == "" {
			r.screen.Line("Built weft in %.1f s", time.Since(start).Seconds())
		}
		return err
	})
	g.Go(func() (err error) {
		start := time.Now()
		if docs, err = ReadCorpus(gctx, filepath.Join(root, "src")); err != nil {
			return err
		}
		size := 0
		for _, d := range docs {
			size += len(d.Text)
		}
		r.screen.Line("Read the documentation of %s symbols below %s in %.1f s (%.1f MB)",
			rig.Number(len(docs)), filepath.Join(root, "src"), time.Since(start).Seconds(), float64(size)/1e6)
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	r.app = &traffic.Application{Pool: r.Pool}
	r.Fleet.Keep = r.opts.Keep
	r.Fleet.Env = rig.Environment(r.opts.Environ, r.opts.ElasticURL != "", append(r.Settings(), "WEFT_PROJECTIONS=search_index_to_elastic")...)
	return docs, nil
}

// stateFile is not that of `weftlab stack up`, so that both can be up.
func (r *run) stateFile() string { return filepath.Join(r.dir, "stack.json") }

// lookAround says what can be done with what --keep has left.
func (r *run) lookAround(w io.Writer, leader string) {
	database, elastic := stack.Redact(r.DatabaseURL), strings.TrimRight(stack.Redact(r.ElasticURL), "/")
	env := fmt.Sprintf("DATABASE_URL='%s' WEFT_GROUP=%s", database, r.Place.Group)
	fmt.Fprintln(w, "\nEverything is still up. To look around:")
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(what, how string) { fmt.Fprintf(tw, "  %s\t%s\n", what, how) }
	row("state", env+" "+r.Fleet.Binary+" status")
	row("rows", fmt.Sprintf("psql '%s' -c 'select entity_type, snippet from search_index limit 5'", database))
	row("events", fmt.Sprintf("psql '%s' -c 'select status, count(*) from %s group by 1'", database, rig.Outbox))
	row("record", fmt.Sprintf("psql '%s' -c 'select * from weftlab_history order by seq desc limit 20'", database))
	row("search", fmt.Sprintf("curl -s '%s/%s/_search?q=text:deadline&size=3&pretty'", elastic, r.Index))
	var pids []string
	for _, m := range r.Members() {
		i := m.Instance()
		row("instance "+m.Name, fmt.Sprintf("curl -s %s; curl -s %s; tail -f %s", i.URL("/health/ready"), i.URL("/metrics"), i.Log))
		pids = append(pids, fmt.Sprint(i.PID()))
	}
	if m := r.Member(leader); m != nil {
		row("takeover", fmt.Sprintf("kill -9 %d   # %s leads; look at the state again", m.Instance().PID(), leader))
	}
	stop := "kill " + strings.Join(pids, " ")
	if r.Servers != nil {
		stop += "; go run ./cmd/weftlab stack down --state " + r.stateFile()
	}
	if r.Schema != "" {
		stop += fmt.Sprintf("; psql '%s' -c 'drop schema %s cascade'", stack.Redact(r.base.DatabaseURL), r.Schema)
	}
	if !r.Started.Elastic {
		stop += fmt.Sprintf("; curl -X DELETE '%s/%s-v1'", elastic, r.Index)
	}
	row("stop", stop+"; rm -r "+r.dir)
	_ = tw.Flush()
}
