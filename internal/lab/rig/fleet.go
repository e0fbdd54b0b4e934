package rig

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const stopGrace = 10 * time.Second

// Fleet starts weft processes and ends them. Its methods are safe for concurrent use;
// its fields are set before the first call.
type Fleet struct {
	Binary string   // weft, as an absolute path
	Dir    string   // of the logs, and where the processes run
	Env    []string // of all processes; see [Environment]
	Keep   bool     // processes may outlive this one

	mu  sync.Mutex
	all []*Instance
}

// Environment returns environ without the names of weft's settings, and own: the settings of
// a shell that is prepared for another deployment must not reach a run. The credentials of a
// user's Elasticsearch stay when keepElastic is set.
func Environment(environ []string, keepElastic bool, own ...string) []string {
	// A URL and a file with one do not go together.
	database := slices.ContainsFunc(own, func(e string) bool { return strings.HasPrefix(e, "DATABASE_") })
	kept := slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		return database && strings.HasPrefix(e, "DATABASE_") || IsSetting(e) && (!keepElastic || !strings.HasPrefix(e, "ELASTIC_"))
	})
	return append(kept, own...) // of two values of a name the last counts
}

// IsSetting reports whether a variable, or its name, is a setting of weft's, other than the database's.
func IsSetting(variable string) bool {
	return slices.ContainsFunc([]string{"WEFT_", "OUTBOX_", "WORDLOOM_", "CHRONICLE_", "OTEL_", "ELASTIC_"}, func(prefix string) bool {
		return strings.HasPrefix(variable, prefix)
	})
}

// Run runs one command of weft to its end.
func (f *Fleet) Run(ctx context.Context, args ...string) error {
	out, err := f.Output(ctx, args...)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// Output runs one command of weft to its end and returns its standard output, as [process.Tool.Run] does.
func (f *Fleet) Output(ctx context.Context, args ...string) ([]byte, error) {
	out, err := process.Tool{Dir: f.Dir, Environ: f.Env}.Run(ctx, append([]string{f.Binary}, args...)...)
	return []byte(out), err
}

// Start starts an instance of the fleet's binary, unless ctx has ended; env comes on top of the fleet's.
// A later end of ctx does not end the instance: Stop does.
func (f *Fleet) Start(ctx context.Context, name string, env ...string) (*Instance, error) {
	return f.StartBinary(ctx, f.Binary, name, env...)
}

// StartBinary is Start with another binary.
func (f *Fleet) StartBinary(ctx context.Context, binary, name string, env ...string) (*Instance, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock() // Stop misses nothing
	i, err := f.start(binary, name, env)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	f.all = append(f.all, i)
	return i, nil
}

func (f *Fleet) start(binary, name string, env []string) (*Instance, error) {
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	death := syscall.SIGKILL
	if f.Keep {
		death = 0
	}
	i := &Instance{Name: name, Port: port, Log: filepath.Join(f.Dir, "weft-"+name+".jsonl")}
	i.Process, err = process.Start(process.Server{
		Name: "instance " + name, Dir: f.Dir, Log: i.Log, Argv: []string{binary, "run"}, DeathSignal: death,
		Env: slices.Concat(f.Env, env, []string{"WEFT_INSTANCE=" + name, "OUTBOX_METRICS_PORT=" + strconv.Itoa(port)}),
	})
	if err != nil {
		return nil, err
	}
	i.PID = i.Process.PID()
	return i, nil
}

func (f *Fleet) instances() []*Instance {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}

// Died returns an error when an instance has ended that nobody has ended; see
// [Instance.Expected].
func (f *Fleet) Died() error {
	for _, i := range f.instances() {
		if i.HasEnded() && !i.Expected() {
			return i.Ending()
		}
	}
	return nil
}

// Alive ends a wait when an instance has ended.
func (f *Fleet) Alive(context.Context) error {
	if err := f.Died(); err != nil {
		return Stop(err)
	}
	return nil
}

// Await is [Await], unless an instance ends before.
func (f *Fleet) Await(ctx context.Context, bound, period time.Duration, what string, check func(context.Context) error) error {
	return Await(ctx, bound, period, what, func(ctx context.Context) error {
		if err := f.Alive(ctx); err != nil {
			return err
		}
		return check(ctx)
	})
}

// Stop ends all instances, with SIGTERM first, and reports those that did not end well by
// it. A second call is harmless.
func (f *Fleet) Stop() error {
	all := f.instances()
	errs := make([]error, len(all))
	var g sync.WaitGroup
	for n, i := range all {
		if i.HasEnded() {
			continue
		}
		g.Go(func() {
			i.Stop(process.Step{Signal: syscall.SIGTERM}, process.Step{Signal: syscall.SIGCONT, Wait: stopGrace}) // a stopped process sees no SIGTERM
			if i.Err() != nil {
				errs[n] = i.Ending()
			}
		})
	}
	g.Wait()
	return errors.Join(errs...)
}
