package daemon_test

import (
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// ear is the service manager's end of the socket.
type ear struct {
	path string

	mu    sync.Mutex
	words []string // lines of all messages
}

// listen hears what is sent to a socket.
func listen(t *testing.T) *ear {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	e, done := &ear{path: path}, make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			n, err := socket.Read(buf)
			if err != nil {
				return
			}
			e.mu.Lock()
			e.words = append(e.words, strings.Split(string(buf[:n]), "\n")...)
			e.mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = socket.Close(); <-done })
	return e
}

// heard reports whether a line begins with pattern.
func (e *ear) heard(pattern string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.words, regexp.MustCompile("^"+pattern).MatchString)
}

func (e *ear) await(t *testing.T, pattern string) {
	t.Helper()
	testenv.Eventually(t, func() bool { return e.heard(pattern) }, "the service manager to hear "+pattern)
}

// TestServiceManager is the life of an instance as its service manager hears of it. It
// sets the environment of this process, so nothing runs beside it.
func TestServiceManager(t *testing.T) {
	r := setup(t)
	way := newLink(t, host(t, r.url))
	way.cut()
	e := listen(t)
	t.Setenv("NOTIFY_SOCKET", e.path)
	t.Setenv("WATCHDOG_USEC", "4000000")
	r.url = way.through(r.url)
	reload := r.reloadable()
	a := r.start("a")
	e.await(t, "STATUS=starting;.* postgres: nothing listens at ") // other servers may be named before it
	e.await(t, "EXTEND_TIMEOUT_USEC=30000000")
	if e.heard("READY=1") || e.heard("WATCHDOG=1") {
		t.Errorf("without a database it says %q", e.words)
	}
	way.heal()
	e.await(t, "READY=1")
	e.await(t, "STATUS=leader, epoch 1")
	e.await(t, "WATCHDOG=1")

	way.cut()
	e.await(t, "STATUS=disconnected, epoch 1;.* postgres: ")
	if e.heard("STATUS=stalled") {
		t.Error("an outage passes for a stall")
	}
	way.heal()
	e.await(t, "STATUS=leader, epoch 2")

	reload(a, "config.reloaded", r.environ("a")...)
	e.await(t, "RELOADING=1")
	e.await(t, "MONOTONIC_USEC=")

	if err := a.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	e.await(t, "STOPPING=1")
	e.await(t, "EXTEND_TIMEOUT_USEC=35000000")
}
