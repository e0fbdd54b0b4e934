package console

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/term"
)

// Console is where a run is shown. It is an [io.Writer] of whole lines.
type Console struct {
	mu     sync.Mutex
	out    io.Writer
	fd     int           // of the terminal; -1 when out is none
	quiet  time.Duration // between two status lines where they cannot be rewritten
	status string
	last   time.Time
}

// New returns a Console on out. Where out is no terminal, status lines are at least
// quiet apart.
func New(out io.Writer, quiet time.Duration) *Console {
	c := &Console{out: out, fd: -1, quiet: quiet}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		c.fd = int(f.Fd())
	}
	return c
}

// Write implements io.Writer: p appears above the status line.
func (c *Console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draw("")
	n, err := c.out.Write(p)
	c.draw(c.status)
	return n, err
}

// Line prints one line.
func (c *Console) Line(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

// Refresh shows status; the empty one takes it away.
func (c *Console) Refresh(status string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
	if c.fd >= 0 {
		c.draw(status)
	} else if now := time.Now(); status != "" && now.Sub(c.last) >= c.quiet {
		c.last = now
		fmt.Fprintln(c.out, status)
	}
}

func (c *Console) draw(status string) {
	if c.fd < 0 {
		return
	}
	// A line that wraps cannot be rewritten.
	if width, _, err := term.GetSize(c.fd); err == nil && width > 1 {
		if r := []rune(status); len(r) >= width {
			status = string(r[:width-1])
		}
	}
	fmt.Fprint(c.out, "\r\x1b[K"+status)
}

// Number writes n with a comma after every third digit from the right.
func Number(n int) string {
	s := strconv.Itoa(n)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// Millis writes d in milliseconds; below ten with one digit after the point.
func Millis(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if ms < 10 {
		return strconv.FormatFloat(ms, 'f', 1, 64) + " ms"
	}
	return strconv.FormatFloat(ms, 'f', 0, 64) + " ms"
}
