package telemetry_test

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/samuelhu324-dev/weft/internal/telemetry"
)

// terminal returns both ends of a new terminal.
func terminal(t *testing.T) (screen, tty *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	fd := int(screen.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	return screen, tty
}

// A person who watches reads lines; where the format is set, it is what was asked for.
func TestTerminal(t *testing.T) {
	t.Parallel()
	for format, wantJSON := range map[string]bool{"": false, "auto": false, "console": false, "json": true} {
		screen, tty := terminal(t)
		tel, err := telemetry.New(tty, telemetry.Options{Format: format})
		if err != nil {
			t.Fatal(err)
		}
		tel.Log.Info("hello", zap.Int("n", 1))
		line, err := bufio.NewReader(screen).ReadString('\n')
		if err != nil || !strings.Contains(line, "hello") {
			t.Fatalf("%q: got %q, %v, want the line", format, line, err)
		}
		if got := json.Valid([]byte(line)); got != wantJSON {
			t.Errorf("%q: JSON is %v on a terminal, want %v: %s", format, got, wantJSON, line)
		}
	}
}
