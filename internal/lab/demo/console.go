package demo

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/term"
)

// quietPeriod is between two status lines where they cannot be rewritten in place.
const quietPeriod = 2 * time.Second

// console prints lines, and below them, on a terminal, one status line that is
// rewritten. It is safe for concurrent use.
type console struct {
	mu     sync.Mutex
	out    io.Writer
	fd     int // of the terminal; -1 when out is none
	shown  bool
	last   time.Time // of the last status line that was printed for good
	status string
}

func newConsole(out io.Writer) *console {
	c := &console{out: out, fd: -1}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		c.fd = int(f.Fd())
	}
	return c
}

// Write implements io.Writer: p appears above the status line.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.erase()
	n, err := c.out.Write(p)
	c.draw()
	return n, err
}

// line prints one line.
func (c *console) line(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

// refresh shows status. Without a terminal it is a line like others, at most one in
// [quietPeriod].
func (c *console) refresh(status string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd >= 0 {
		c.erase()
		c.status = status
		c.draw()
		return
	}
	if now := time.Now(); now.Sub(c.last) >= quietPeriod {
		c.last = now
		fmt.Fprintln(c.out, status)
	}
}

// clear takes the status line away.
func (c *console) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.erase()
	c.status = ""
}

func (c *console) erase() {
	if c.shown {
		fmt.Fprint(c.out, "\r\x1b[K")
		c.shown = false
	}
}

func (c *console) draw() {
	if c.fd < 0 || c.status == "" {
		return
	}
	status := c.status
	// A line that wraps cannot be rewritten.
	if width, _, err := term.GetSize(c.fd); err == nil && width > 1 {
		if r := []rune(status); len(r) >= width {
			status = string(r[:width-1])
		}
	}
	fmt.Fprint(c.out, status)
	c.shown = true
}

// number writes n with a comma after every third digit from the right.
func number(n int) string {
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

// millis writes d in milliseconds; below ten with one digit after the point.
func millis(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if ms < 10 {
		return strconv.FormatFloat(ms, 'f', 1, 64) + " ms"
	}
	return strconv.FormatFloat(ms, 'f', 0, 64) + " ms"
}
