package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	buildTimeout = 10 * time.Minute // cold caches on a slow machine
	readyTimeout = 20 * time.Second
	stopGrace    = 10 * time.Second
	readyPoll    = 20 * time.Millisecond
	mainPackage  = "github.com/samuelhu324-dev/weft/cmd/weft"
)

// buildWeft compiles the production binary into dir and returns its path.
func buildWeft(ctx context.Context, dir string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	binary := filepath.Join(dir, "weft")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, mainPackage)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build weft: %w\n%s", err, out)
	}
	return binary, nil
}

// instance is one `weft run` process, or one that has ended.
type instance struct {
	name  string
	port  int
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has been waited for
	err   error         // of Wait; valid after ended
	log   string
}

// fleet starts weft processes and ends them. Its methods are for one goroutine.
type fleet struct {
	binary string
	dir    string   // logs
	env    []string // of all processes
	keep   bool     // processes may outlive this one
	all    []*instance
}

// environment returns environ without the names of weft's settings, and own: a shell
// that is set up for another deployment must not change what the demo shows. The
// credentials of a user's Elasticsearch stay.
func environment(environ []string, keepElastic bool, own ...string) []string {
	kept := slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		for _, prefix := range []string{"WEFT_", "OUTBOX_", "WORDLOOM_", "CHRONICLE_", "OTEL_"} {
			if strings.HasPrefix(e, prefix) {
				return true
			}
		}
		return strings.HasPrefix(e, "ELASTIC_") && !keepElastic
	})
	return append(kept, own...) // of two values of a name the last counts
}

// run runs one command of weft to its end.
func (f *fleet) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, f.binary, args...)
	cmd.Env = f.env
	cmd.Dir = f.dir
	cmd.SysProcAttr = childAttributes(false)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("weft %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// start starts an instance; its log is appended to the one of its name.
func (f *fleet) start(ctx context.Context, name string) (*instance, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	log := filepath.Join(f.dir, "weft-"+name+".jsonl")
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer file.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), f.binary, "run") // stop ends it
	cmd.Env = append(slices.Clone(f.env), "WEFT_INSTANCE="+name, "OUTBOX_METRICS_PORT="+strconv.Itoa(port))
	cmd.Dir = f.dir // no weft.yaml of the user's
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = childAttributes(f.keep)
	i := &instance{name: name, port: port, cmd: cmd, ended: make(chan struct{}), log: log}
	started := make(chan error)
	go func() {
		// The kernel's signal at the parent's death comes when the thread that forked
		// ends: it must be one that lasts as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		i.err = cmd.Wait()
		close(i.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	f.all = append(f.all, i)
	return i, nil
}

func freePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("address %v is not TCP", l.Addr())
	}
	return addr.Port, nil
}

func (i *instance) url(path string) string {
	return "http://127.0.0.1:" + strconv.Itoa(i.port) + path
}

func (i *instance) pid() int { return i.cmd.Process.Pid }

func (i *instance) hasEnded() bool {
	select {
	case <-i.ended:
		return true
	default:
		return false
	}
}

// ending says how an instance ended, with the last lines of its log.
func (i *instance) ending() error {
	err := i.err
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("instance %s ended: %w\n%s", i.name, err, tail(i.log))
}

// ready waits until the instance says that it is.
func (i *instance) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	last := errors.New("no answer")
	for {
		err := get(ctx, client, i.url("/health/ready"))
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-i.ended:
			return i.ending()
		case <-ctx.Done():
			return fmt.Errorf("instance %s is not ready: %w (its last answer: %w)", i.name, context.Cause(ctx), last)
		case <-time.After(readyPoll):
		}
	}
}

func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 1000))
		return fmt.Errorf("%s: %s", res.Status, body)
	}
	return nil
}

// kill sends SIGKILL to the process group and returns the time just before.
func (i *instance) kill() (time.Time, error) {
	at := time.Now()
	if err := syscall.Kill(-i.pid(), syscall.SIGKILL); err != nil {
		return at, fmt.Errorf("kill %s: %w", i.name, err)
	}
	return at, nil
}

// died returns an error when an instance that nobody killed has ended.
func (f *fleet) died(killed func(*instance) bool) error {
	for _, i := range f.all {
		if i.hasEnded() && !killed(i) {
			return i.ending()
		}
	}
	return nil
}

// stop ends all instances, with SIGTERM first, and reports those that did not end
// well by it. It may be called again.
func (f *fleet) stop() error {
	var running []*instance
	for _, i := range f.all {
		if !i.hasEnded() {
			running = append(running, i)
			_ = syscall.Kill(-i.pid(), syscall.SIGTERM)
		}
	}
	var errs []error
	grace := time.After(stopGrace)
	for _, i := range running {
		select {
		case <-i.ended:
			if i.err != nil {
				errs = append(errs, i.ending())
			}
		case <-grace:
			errs = append(errs, fmt.Errorf("instance %s did not stop within %v and was killed", i.name, stopGrace))
			for _, i := range running {
				_ = syscall.Kill(-i.pid(), syscall.SIGKILL)
			}
			<-i.ended
			grace = nil // the others have been killed, too
		}
	}
	return errors.Join(errs...)
}

// tail returns the last lines of a log.
func tail(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}
