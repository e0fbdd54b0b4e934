package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	stopGrace    = 10 * time.Second
	readyTimeout = time.Minute // servers may stand still for seconds
	readyPoll    = 20 * time.Millisecond
	getTimeout   = 3 * time.Second
	bodyLimit    = 16 << 20 // of an answer
	// exitTimeout bounds a graceful end, the grace of weft included.
	exitTimeout = 40 * time.Second
)

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
	death := syscall.SIGKILL
	if f.Keep {
		death = 0
	}
	i := &Instance{Name: name, Log: filepath.Join(f.Dir, "weft-"+name+".jsonl")}
	err := process.FreePorts(&i.Port)
	if err == nil {
		i.Process, err = process.Start(process.Server{
			Name: "instance " + name, Dir: f.Dir, Log: i.Log, Argv: []string{binary, "run"}, DeathSignal: death,
			Env: slices.Concat(f.Env, env, []string{"WEFT_INSTANCE=" + name, "OUTBOX_METRICS_PORT=" + strconv.Itoa(i.Port)}),
		})
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	f.all = append(f.all, i)
	return i, nil
}

func (f *Fleet) instances() []*Instance {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}

// Alive returns an error, which ends a wait, when an instance has ended that nobody has ended;
// see [Instance.Expected].
func (f *Fleet) Alive(context.Context) error {
	for _, i := range f.instances() {
		if i.HasEnded() && !i.Expected() {
			return Stop(i.EndedError())
		}
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
				errs[n] = i.EndedError()
			}
		})
	}
	g.Wait()
	return errors.Join(errs...)
}

// Instance is one `weft run` process, which may have ended: a process group, a metrics port
// and a log file of its own. Instances of one name write to one log file, one after the other.
// Its methods are safe for concurrent use.
type Instance struct {
	*process.Process
	Name string
	Port int    // of metrics and health
	Log  string // file
}

// URL returns the address of a path of the instance's HTTP server.
func (i *Instance) URL(path string) string {
	return "http://127.0.0.1:" + strconv.Itoa(i.Port) + path
}

// Ready waits until the instance says that it is ready.
func (i *Instance) Ready(ctx context.Context) error {
	last := errors.New("no answer")
	err := Await(ctx, readyTimeout, readyPoll, "readiness of instance "+i.Name, func(limited context.Context) error {
		err := i.ReadyNow(limited)
		if err != nil && limited.Err() == nil {
			last = err
		}
		if err != nil && i.HasEnded() {
			err = Stop(i.EndedError())
		}
		return err
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("instance %s is not ready: %w (its last answer: %w)", i.Name, err, last)
	}
	return err
}

// ReadyNow asks once whether the instance is ready; the error has its answer.
func (i *Instance) ReadyNow(ctx context.Context) error {
	_, err := i.Get(ctx, "/health/ready")
	return err
}

// Get asks the instance's HTTP server for a path and returns the body; a status other than
// 200 is an error.
func (i *Instance) Get(ctx context.Context, path string) ([]byte, error) {
	status, body, err := i.Ask(ctx, path)
	return body, Want(err, status == http.StatusOK, "%d %s: %.1000s", status, http.StatusText(status), body)
}

// Ask asks the instance's HTTP server for a path and returns its answer.
func (i *Instance) Ask(ctx context.Context, path string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, i.URL(path), nil)
	if err != nil {
		return 0, nil, err
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, bodyLimit))
	return res.StatusCode, body, err
}

// Kill sends SIGKILL and returns the time just before.
func (i *Instance) Kill() (time.Time, error) { return i.Signal(syscall.SIGKILL) }

// AwaitEnd waits for the end of the process, however it ends; see [Instance.Err].
func (i *Instance) AwaitEnd(ctx context.Context) error {
	select {
	case <-i.Ended():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(exitTimeout):
		return fmt.Errorf("instance %s did not end within %v", i.Name, exitTimeout)
	}
}

// Terminate sends SIGTERM and waits for the end, which must be exit status 0.
func (i *Instance) Terminate(ctx context.Context) error {
	if _, err := i.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := i.AwaitEnd(ctx); err != nil {
		return err
	}
	if i.Err() != nil {
		return i.EndedError()
	}
	return nil
}
