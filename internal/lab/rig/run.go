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
	"strconv"
	"sync"
	"time"

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
