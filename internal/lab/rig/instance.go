package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	readyTimeout = 20 * time.Second
	readyPoll    = 20 * time.Millisecond
	getTimeout   = 3 * time.Second
	bodyLimit    = 16 << 20 // of an answer
	// exitTimeout bounds a graceful end, the grace of weft included.
	exitTimeout = 40 * time.Second
)

// Instance is one `weft run` process, which may have ended: a process group, a metrics port
// and a log file of its own. Instances of one name write to one log file, one after the other.
// Its methods are safe for concurrent use.
type Instance struct {
	Name string
	Port int // of metrics and health
	PID  int
	Log  string // file

	expected atomic.Bool
	ended    chan struct{} // closed when it has been waited for
	err      error         // of Wait; valid after ended
}

// URL returns the address of a path of the instance's HTTP server.
func (i *Instance) URL(path string) string {
	return "http://127.0.0.1:" + strconv.Itoa(i.Port) + path
}

// Ended is closed when the process has ended and been waited for.
func (i *Instance) Ended() <-chan struct{} { return i.ended }

// HasEnded reports whether the process has ended and been waited for.
func (i *Instance) HasEnded() bool {
	select {
	case <-i.ended:
		return true
	default:
		return false
	}
}

// Err waits for the end and returns nil for exit status 0.
func (i *Instance) Err() error {
	<-i.ended
	return i.err
}

// Ending waits for the end and returns an error with the exit status and the last lines of
// the log.
func (i *Instance) Ending() error {
	err := i.Err()
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("instance %s ended: %w\n%s", i.Name, err, tail(i.Log))
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
			err = Stop(i.Ending())
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
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d %s: %s", status, http.StatusText(status), body[:min(len(body), 1000)])
	}
	return body, err
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

// Expected reports whether a signal of this process has ended the instance, or is about to.
func (i *Instance) Expected() bool { return i.expected.Load() }

// Kill sends SIGKILL and returns the time just before.
func (i *Instance) Kill() (time.Time, error) { return i.Signal(syscall.SIGKILL) }

// AwaitEnd waits for the end of the process, however it ends; see [Instance.Err].
func (i *Instance) AwaitEnd(ctx context.Context) error {
	select {
	case <-i.ended:
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
		return i.Ending()
	}
	return nil
}

// Signal sends sig to the process group and returns the time just before. After SIGKILL and
// SIGTERM the end of the instance is expected.
func (i *Instance) Signal(sig syscall.Signal) (time.Time, error) {
	if sig == syscall.SIGKILL || sig == syscall.SIGTERM {
		i.expected.Store(true)
	}
	at := time.Now()
	if i.HasEnded() {
		return at, fmt.Errorf("signal %v to %s: %w", sig, i.Name, os.ErrProcessDone)
	}
	if err := syscall.Kill(-i.PID, sig); err != nil {
		return at, fmt.Errorf("signal %v to %s: %w", sig, i.Name, err)
	}
	return at, nil
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
