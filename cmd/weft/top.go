package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/leader"
)

const (
	topCounts  = 10_000 // rows of each kind that are counted
	topTerms   = 3
	topEntries = 3 // batches, waiting events and quarantines of a projection
	topFastest = 500 * time.Millisecond
)

func (a *app) topCommand() *cobra.Command {
	var (
		every time.Duration
		once  bool
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch who leads and how far the projections are",
		Long: `Show who leads, the instances, the last terms and the state of every projection, as the
database has it, and again every two seconds until q, Escape or Ctrl-C. Counts end at ` + fmt.Sprint(topCounts) + `,
so that it costs the same with any backlog; lag shows how fast it grows or shrinks. It works
from any host, and when it loses Postgres it says so and goes on.

Where the output is no terminal it prints once. For JSON use weft status and weft history.`,
		Example: `  weft top
  weft top --every 10s
  weft top --once | head -20`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				v := &topView{cfg: cfg, pool: pool, every: every}
				first, err := v.read(ctx)
				if err != nil {
					return err
				}
				s := a.terminal()
				if once || s == nil {
					return printLines(a.stdout, topLines(first, nil, 0))
				}
				return v.watch(ctx, s, first)
			})
		},
	}
	durationFlag(cmd, &every, "every", 2*time.Second, topFastest, "read again after this long")
	cmd.Flags().BoolVar(&once, "once", false, "print once and end")
	databaseFlags(cmd, "group", "projections", "outbox.max_processing")
	return cmd
}

// screen is the terminal of a person.
type screen struct {
	in   io.Reader
	out  io.Writer
	size func() (width, height int, err error)
	raw  func() (restore func(), err error) // keys arrive one by one, and are not shown
}

// terminal returns the screen; nil when the output is no terminal.
func (a *app) terminal() *screen {
	w := a.stdout
	if c, ok := w.(*checked); ok {
		w = c.Writer
	}
	out, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(out.Fd())) {
		return nil
	}
	s := &screen{in: a.stdin, out: out, size: func() (int, int, error) { return term.GetSize(int(out.Fd())) }}
	s.raw = func() (func(), error) {
		in, ok := a.stdin.(*os.File)
		if !ok || !term.IsTerminal(int(in.Fd())) {
			return func() {}, nil
		}
		old, err := term.MakeRaw(int(in.Fd()))
		return func() { _ = term.Restore(int(in.Fd()), old) }, err
	}
	return s
}

// topState is one reading.
type topState struct {
	at     time.Time // clock of this host
	status records.Status
	terms  []pastTerm
	queues map[string]records.Queue
	every  time.Duration
	err    string // why it is older than that
}

type topView struct {
	cfg   config.Config
	pool  *pgxpool.Pool
	every time.Duration
}

func (v *topView) read(ctx context.Context) (*topState, error) {
	sc := scope(v.cfg)
	sc.Most = topCounts
	st := &topState{at: time.Now(), every: v.every, queues: map[string]records.Queue{}}
	var err error
	if st.status, err = records.ReadStatus(ctx, v.pool, sc); err != nil {
		return nil, err
	}
	past, err := leader.History(ctx, v.pool, v.cfg.Group, time.Time{}, topTerms)
	if err != nil {
		return nil, err
	}
	st.terms = describeTerms(past)
	for _, t := range sc.Tables {
		if st.queues[t.Projection], err = records.ReadQueue(ctx, v.pool, sc, t, topEntries); err != nil {
			return nil, err
		}
	}
	return st, nil
}

// watch draws a reading after the other until the person leaves or ctx ends.
func (v *topView) watch(ctx context.Context, s *screen, now *topState) error {
	restore, err := s.raw()
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	defer restore()
	fmt.Fprint(s.out, "\x1b[?1049h\x1b[?25l") // a screen of its own, without a cursor
	defer fmt.Fprint(s.out, "\x1b[?25h\x1b[?1049l")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process, or with the input
		if left(s.in) {
			cancel()
		}
	}()
	ticker := time.NewTicker(v.every)
	defer ticker.Stop()
	var before *topState
	for {
		if err := s.draw(now, before); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		next, err := v.read(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			_, text := postgres.Diagnose(postgres.In(v.cfg.Database.URL.Reveal(), err))
			old := *now
			old.err = text
			now = &old
		default:
			before, now = now, next
		}
	}
}

// left reads keys until one says to leave; false when the input ends before.
func left(in io.Reader) bool {
	for key := make([]byte, 64); ; {
		n, err := in.Read(key)
		if text := string(key[:n]); strings.ContainsAny(text, "qQ\x03") || text == "\x1b" {
			return true
		}
		if err != nil {
			return false
		}
	}
}

// draw puts a reading on the screen, cut to its size.
func (s *screen) draw(now, before *topState) error {
	width, height, err := s.size()
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	lines := topLines(now, before, max(width, 1))
	if height = max(height, 1); len(lines) > height {
		more := line{text: records.Counted(len(lines)-height+1, "… 1 more line: a taller window shows it", "… %d more lines: a taller window shows them")}
		lines = append(lines[:height-1], more.cut(width))
	}
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, l := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if l.strong {
			b.WriteString("\x1b[1m")
		}
		b.WriteString(l.text)
		b.WriteString("\x1b[0m\x1b[K")
	}
	b.WriteString("\x1b[J")
	_, err = io.WriteString(s.out, b.String())
	return err
}

func printLines(w io.Writer, lines []line) error {
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, l.text); err != nil {
			return err
		}
	}
	return nil
}
