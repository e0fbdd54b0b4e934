package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// ErrInterrupted is the error of a run whose context ended.
var ErrInterrupted = errors.New("interrupted; what was started is down again")

// RunE returns a cobra.Command's RunE whose context ends with Ctrl-C, too. The main function
// handles the other signals.
func RunE(run func(ctx context.Context, cmd *cobra.Command) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
		defer stop()
		return run(ctx, cmd)
	}
}

// Dir says where a run leaves its files.
type Dir struct {
	Path    string // given by the user; empty means a temporary directory
	Program string // in the name of a temporary directory
	Holds   string // what a failed run leaves there: logs, evidence
	// Keep is set by a run that wants its temporary directory to stay.
	Keep bool
}

// Run makes the directory, calls work with its path, and removes a temporary one unless work
// has failed. It returns [ErrInterrupted] when ctx has ended, and otherwise work's error with
// the directory's name.
func (d *Dir) Run(ctx context.Context, work func(ctx context.Context, path string) error) (err error) {
	path := d.Path
	if path == "" {
		path, err = os.MkdirTemp("", "weft-"+d.Program+"-")
	} else if path, err = filepath.Abs(path); err == nil {
		err = os.MkdirAll(path, 0o755)
	}
	if err != nil {
		return fmt.Errorf("directory for %s: %w", d.Holds, err)
	}
	switch err = work(ctx, path); {
	case err != nil && ctx.Err() != nil:
		err = ErrInterrupted
	case err != nil:
		return fmt.Errorf("%w\n%s: %s", err, d.Holds, path)
	}
	if d.Path == "" && !d.Keep {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// Screen shows a run to people: lines, and below them one status line. On a terminal the
// status line is rewritten in place and cut to the width. A Screen is an [io.Writer] of whole
// lines, safe for concurrent use. It does not report errors of its output.
type Screen struct {
	mu     sync.Mutex
	out    io.Writer
	fd     int           // of the terminal; -1 when out is none
	quiet  time.Duration // between two status lines where they cannot be rewritten
	status string
	last   time.Time
	step   string
	part   []byte // of a line that has not ended
}

// NewScreen returns a Screen on out. Where out is no terminal, it prints at most one status
// line in each period of quiet.
func NewScreen(out io.Writer, quiet time.Duration) *Screen {
	s := &Screen{out: out, fd: -1, quiet: quiet}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.fd = int(f.Fd())
	}
	return s
}

// Write implements io.Writer: the lines of p appear above the status line, each once it has
// ended, because the status line would overwrite a part of one.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.part = append(s.part, p...)
	end := bytes.LastIndexByte(s.part, '\n') + 1
	if end == 0 {
		return len(p), nil
	}
	s.draw("")
	_, err := s.out.Write(s.part[:end])
	s.part = append(s.part[:0], s.part[end:]...)
	s.draw(s.status)
	return len(p), err
}

// Line prints one line.
func (s *Screen) Line(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// Refresh shows status; the empty one removes the status line.
func (s *Screen) Refresh(status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
	if s.fd >= 0 {
		s.draw(status)
	} else if now := time.Now(); status != "" && now.Sub(s.last) >= s.quiet {
		s.last = now
		fmt.Fprintln(s.out, status)
	}
}

// Enter notes the step that a run is in, for its status line and its errors.
func (s *Screen) Enter(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step = fmt.Sprintf(format, args...)
}

// Step returns the step that was entered last.
func (s *Screen) Step() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.step
}

func (s *Screen) draw(status string) {
	if s.fd < 0 {
		return
	}
	// A line that wraps cannot be rewritten.
	if width, _, err := term.GetSize(s.fd); err == nil && width > 1 {
		if r := []rune(status); len(r) >= width {
			status = string(r[:width-1])
		}
	}
	fmt.Fprint(s.out, "\r\x1b[K"+status)
}

// Number writes n with a comma after every third digit from the right.
func Number(n int) string { return message.NewPrinter(language.English).Sprint(n) }

// Millis writes d in milliseconds; below ten with one digit after the point.
func Millis(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if ms < 10 {
		return strconv.FormatFloat(ms, 'f', 1, 64) + " ms"
	}
	return strconv.FormatFloat(ms, 'f', 0, 64) + " ms"
}

// WriteResult writes the figures of a run to a file, as JSON for scripts; an empty name means
// none.
func WriteResult(file string, v any) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		err = os.WriteFile(file, append(text, '\n'), 0o644)
	}
	return Wrap("write result", err)
}

// Script is a sequence of steps of which the first that fails ends all, as FailNow ends a test. Only
// the goroutine of the steps calls its methods.
type Script struct {
	Ctx    context.Context
	failed error
}

// Play calls steps on a goroutine of their own, waits for it, and returns the error that has ended them.
func (s *Script) Play(ctx context.Context, steps func()) error {
	s.Ctx, s.failed = ctx, nil
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if v := recover(); v != nil { // whoever plays the script still has to stop what it has started
				s.failed = errors.Join(s.failed, fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
			}
		}()
		steps()
	}()
	<-ended
	return s.failed
}

// Must ends the script when err is not nil. What the steps have deferred is still done. The error of
// the first that fails is returned as it is.
func (s *Script) Must(err error) {
	if err == nil {
		return
	}
	if s.failed != nil {
		err = errors.Join(s.failed, err)
	}
	s.failed = err
	runtime.Goexit()
}

// MustDo is Must with a noun for what failed.
func (s *Script) MustDo(noun string, err error) { s.Must(Wrap(noun, err)) }

// Tried is what a call has returned.
type Tried[T any] struct {
	value T
	err   error
}

// Try takes what a call returns: rig.Try(f()).Must(s) is the value, or ends the script.
func Try[T any](value T, err error) Tried[T] { return Tried[T]{value, err} }

// Must is [Script.Must] of the call's error. It returns the value.
func (t Tried[T]) Must(s interface{ Must(err error) }) T {
	s.Must(t.err)
	return t.value
}

// MustDo is [Script.MustDo] of the call's error. It returns the value.
func (t Tried[T]) MustDo(s interface{ MustDo(noun string, err error) }, noun string) T {
	s.MustDo(noun, t.err)
	return t.value
}

// Expect ends the script, with what there is instead, unless ok.
func (s *Script) Expect(ok bool, format string, args ...any) {
	if !ok {
		s.Must(fmt.Errorf(format, args...))
	}
}

// Part calls steps that have to be over within bound, where that is not 0. It names them in the error
// of the one that fails.
func (s *Script) Part(name string, bound time.Duration, steps func()) {
	whole, done := s.Ctx, false
	if bound > 0 {
		limited, cancel := context.WithTimeoutCause(whole, bound, fmt.Errorf("not over within %v", bound))
		defer cancel()
		s.Ctx = limited
	}
	defer func() {
		if s.Ctx = whole; !done && s.failed != nil {
			s.failed = fmt.Errorf("%s: %w", name, s.failed)
		}
	}()
	steps()
	done = true
}

// Pause waits for d.
func (s *Script) Pause(d time.Duration) { s.Must(Sleep(s.Ctx, d)) }

// Await calls check, with a pause of period between, until it returns nil or an error that
// [Stop] has made. After bound it fails with check's last error; when ctx ends it returns
// the cause.
func Await(ctx context.Context, bound, period time.Duration, what string, check func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var last error
	_, err := backoff.Retry(limited, func() (struct{}, error) {
		err := check(limited)
		if limited.Err() == nil || last == nil {
			last = err
		}
		return struct{}{}, err
	}, backoff.WithBackOff(backoff.NewConstantBackOff(period)), backoff.WithMaxElapsedTime(0))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() == nil:
		return err
	default:
		return fmt.Errorf("no %s within %v: %w", what, bound, last)
	}
}

// Want returns err, and where there is none, an error with what there is instead, unless ok.
func Want(err error, ok bool, format string, args ...any) error {
	if err == nil && !ok {
		return fmt.Errorf(format, args...)
	}
	return err
}

// Wrap returns err with a noun for what failed, and nil for nil.
func Wrap(noun string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", noun, err)
	}
	return nil
}

// Map returns what of says of each, in their order.
func Map[T, U any](all []T, of func(T) U) []U {
	out := make([]U, len(all))
	for n, one := range all {
		out[n] = of(one)
	}
	return out
}

// Stop returns err as one that ends [Await] at once.
func Stop(err error) error { return backoff.Permanent(err) }

// During runs work until the function that it returns is called, which may be called again.
func During(ctx context.Context, work func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var g sync.WaitGroup
	g.Go(func() { work(ctx) })
	return func() {
		cancel()
		g.Wait()
	}
}

// Sleep waits for d or the end of ctx, whose cause it returns.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
