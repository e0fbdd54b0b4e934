package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	readyTimeout = 20 * time.Second
	readyPoll    = 20 * time.Millisecond
)

// Instance is one `weft run` process, or one that has ended. Its methods are safe for
// concurrent use.
type Instance struct {
	Name string
	Port int // of metrics and health
	PID  int
	Log  string // file

	ended chan struct{} // closed when it has been waited for
	err   error         // of Wait; valid after ended
}

// URL returns the address of a path of the instance's HTTP server.
func (i *Instance) URL(path string) string {
	return "http://127.0.0.1:" + strconv.Itoa(i.Port) + path
}

// Ended is closed when the process has ended and been waited for.
func (i *Instance) Ended() <-chan struct{} { return i.ended }

// HasEnded reports whether it has.
func (i *Instance) HasEnded() bool {
	select {
	case <-i.ended:
		return true
	default:
		return false
	}
}

// Err waits for the end and returns what it was: nil for exit status 0.
func (i *Instance) Err() error {
	<-i.ended
	return i.err
}

// Ending waits for the end and says how it was, with the last lines of the log.
func (i *Instance) Ending() error {
	err := i.Err()
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("instance %s ended: %w\n%s", i.Name, err, tail(i.Log))
}

// Ready waits until the instance says that it is.
func (i *Instance) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	last := errors.New("no answer")
	for {
		err := get(ctx, client, i.URL("/health/ready"))
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-i.ended:
			return i.Ending()
		case <-ctx.Done():
			return fmt.Errorf("instance %s is not ready: %w (its last answer: %w)", i.Name, context.Cause(ctx), last)
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

// Kill sends SIGKILL and returns the time just before.
func (i *Instance) Kill() (time.Time, error) { return i.Signal(syscall.SIGKILL) }

// Signal sends sig to the process group and returns the time just before.
func (i *Instance) Signal(sig syscall.Signal) (time.Time, error) {
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
