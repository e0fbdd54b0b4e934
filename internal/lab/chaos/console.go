package chaos

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// quietPeriod is between two status lines where they cannot be rewritten in place.
const quietPeriod = 10 * time.Second

// console prints lines, and on a terminal a status line below them. It is safe for
// concurrent use.
type console struct {
	mu     sync.Mutex
	out    io.Writer
	fd     int // of the terminal; -1 when out is none
	status string
	last   time.Time
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
	c.draw("")
	n, err := c.out.Write(p)
	c.draw(c.status)
	return n, err
}

func (c *console) line(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

// refresh shows status; the empty one takes it away.
func (c *console) refresh(status string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
	if c.fd >= 0 {
		c.draw(status)
	} else if now := time.Now(); status != "" && now.Sub(c.last) >= quietPeriod {
		c.last = now
		fmt.Fprintln(c.out, status)
	}
}

func (c *console) draw(status string) {
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
