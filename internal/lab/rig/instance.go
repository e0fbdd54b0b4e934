package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
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
	*process.Process
	Name string
	Port int // of metrics and health
	PID  int
	Log  string // file
}

// URL returns the address of a path of the instance's HTTP server.
func (i *Instance) URL(path string) string {
	return "http://127.0.0.1:" + strconv.Itoa(i.Port) + path
}

// Ending waits for the end and returns an error with the exit status and the last lines of
// the log.
func (i *Instance) Ending() error { return i.EndedError() }

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
		return i.Ending()
	}
	return nil
}
