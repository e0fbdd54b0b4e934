package systemd

import (
	"errors"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// heard is a manager that keeps what it is told.
type heard struct {
	messages []string
	fault    error
}

func (h *heard) take() []string {
	got := h.messages
	h.messages = nil
	return got
}

func newManager(every time.Duration) (*Manager, *heard, *observer.ObservedLogs) {
	core, logs := observer.New(zapcore.DebugLevel)
	h := &heard{}
	return &Manager{log: zap.New(core), every: every, send: func(s string) (bool, error) {
		if h.fault != nil {
			return false, h.fault
		}
		h.messages = append(h.messages, s)
		return true, nil
	}}, h, logs
}

const extension = "EXTEND_TIMEOUT_USEC=30000000"

func TestStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, h, _ := newManager(5 * time.Second)
		waiting := State{Status: "starting; postgres: refused", Parts: []Part{{Name: "start", Silent: time.Second, Limit: time.Minute}}}
		var got []string
		for range 13 { // a server that is away for long does not end the start
			m.Tell(waiting)
			got = append(got, h.take()...)
			time.Sleep(time.Second)
		}
		want := []string{"STATUS=starting; postgres: refused\n" + extension, extension, extension}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("while the start waits (-want +got):\n%s", diff)
		}
		m.Tell(State{Ready: true, Status: "standby, epoch 7"})
		m.Tell(State{Ready: true, Status: "standby, epoch 7"})
		time.Sleep(5 * time.Second)
		m.Tell(State{Ready: false, Status: "disconnected"}) // later trouble is no second start
		want = []string{"READY=1\nSTATUS=standby, epoch 7", "STATUS=disconnected\nWATCHDOG=1"}
		if diff := cmp.Diff(want, h.take()); diff != "" {
			t.Errorf("when it is ready (-want +got):\n%s", diff)
		}
	})
}

func TestWatchdog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, h, logs := newManager(5 * time.Second)
		var work Pulse
		fed := func(seconds int) (n int) {
			for range seconds * 4 {
				m.Tell(State{Ready: true, Status: "leader", Parts: []Part{{Name: "work", Silent: work.Silent(), Limit: time.Minute}, {Name: "election"}}})
				for _, s := range h.take() {
					if strings.Contains(s, "WATCHDOG=1") {
						n++
					}
				}
				time.Sleep(250 * time.Millisecond)
			}
			return n
		}
		if n := fed(60); n != 12 {
			t.Errorf("fed %d times in a minute with nothing to do, want 12", n)
		}
		work.Beat()
		if n := fed(60); n != 12 {
			t.Errorf("fed %d times within the limit, want 12", n)
		}
		if n := fed(600); n > 1 {
			t.Errorf("fed %d times in ten minutes of a stall", n)
		}
		stalls := logs.FilterField(zap.String("event", "systemd.stalled")).All()
		if len(stalls) != 1 || stalls[0].ContextMap()["part"] != "work" {
			t.Errorf("logged %v, want the stall of work once", stalls)
		}
		work.Beat()
		if n := fed(30); n < 6 {
			t.Errorf("fed %d times in half a minute after the stall, want 6", n)
		}
		if n := logs.FilterField(zap.String("event", "systemd.progress")).Len(); n != 1 {
			t.Errorf("%d lines that it goes on, want 1", n)
		}
		work.Rest()
		if n := fed(600); n != 120 {
			t.Errorf("fed %d times in ten minutes of rest, want 120", n)
		}
	})
}

func TestStallIsInStatus(t *testing.T) {
	t.Parallel()
	m, h, _ := newManager(0)
	m.Tell(State{Ready: true, Status: "leader, epoch 2", Parts: []Part{{Name: "election", Silent: 2, Limit: 1}}})
	if diff := cmp.Diff([]string{"READY=1\nSTATUS=stalled: election; leader, epoch 2"}, h.take()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStatusIsOneShortLine(t *testing.T) {
	t.Parallel()
	m, h, _ := newManager(0)
	m.Tell(State{Ready: true, Status: "leader\nREADY=0 " + strings.Repeat("ä", 500)})
	got := h.take()
	if len(got) != 1 || strings.Count(got[0], "\n") != 1 || !strings.HasSuffix(got[0], "ä…") || len([]rune(got[0])) > 260 {
		t.Errorf("got %q", got)
	}
}

func TestReload(t *testing.T) {
	t.Parallel()
	m, h, _ := newManager(0)
	during := []string{}
	m.Reload(func() { during = h.take() })
	if len(during)+len(h.take()) != 0 {
		t.Errorf("a reload during the start says %q", during)
	}
	m.Tell(State{Ready: true, Status: "leader"})
	h.take()
	m.Reload(func() { during = h.take() })
	if len(during) != 1 || !regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=[1-9]\d+$`).MatchString(during[0]) {
		t.Errorf("while it reloads: %q", during)
	}
	if diff := cmp.Diff([]string{"READY=1"}, h.take()); diff != "" {
		t.Errorf("when it has (-want +got):\n%s", diff)
	}
}

func TestStopping(t *testing.T) {
	t.Parallel()
	m, h, _ := newManager(0)
	m.Stopping(25 * time.Second)
	if diff := cmp.Diff([]string{"STOPPING=1\nEXTEND_TIMEOUT_USEC=35000000"}, h.take()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUnreachedManagerIsToldLater(t *testing.T) {
	t.Parallel()
	m, h, logs := newManager(0)
	h.fault = errors.New("connection refused")
	for range 5 {
		m.Tell(State{Ready: true, Status: "leader"})
	}
	if n := logs.FilterField(zap.String("event", "systemd.mute")).Len(); n != 1 {
		t.Errorf("%d lines about it, want 1", n)
	}
	h.fault = nil
	m.Tell(State{Ready: true, Status: "leader"})
	if diff := cmp.Diff([]string{"READY=1\nSTATUS=leader"}, h.take()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The environment of the process names the socket and the watchdog's limit.
func TestEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", strconv.Itoa(int((20 * time.Second).Microseconds())))
	m := New(zap.NewNop())
	if m.every != 5*time.Second {
		t.Errorf("feeds every %v, want a quarter of the limit", m.every)
	}
	m.Tell(State{Ready: true, Status: "leader, epoch 1"})
	buf := make([]byte, 4096)
	if err := socket.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, err := socket.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(buf[:n]), "\n")
	for _, want := range []string{"READY=1", "STATUS=leader, epoch 1", "WATCHDOG=1"} {
		if !slices.Contains(lines, want) {
			t.Errorf("the socket got %q, want %s in it", lines, want)
		}
	}

	t.Setenv("WATCHDOG_PID", "1") // of another process
	if m := New(zap.NewNop()); m.every != 0 {
		t.Errorf("feeds another one's watchdog every %v", m.every)
	}
	t.Setenv("NOTIFY_SOCKET", "")
	core, logs := observer.New(zapcore.DebugLevel)
	New(zap.New(core)).Tell(State{Ready: true, Status: "alone"})
	if logs.Len() != 0 {
		t.Errorf("without a manager it logs %v", logs.All())
	}
}
