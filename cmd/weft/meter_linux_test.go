package main

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/replay"
)

// A bar that takes two lines of a narrow terminal would leave one behind each time it is drawn.
func TestMeterDrawsNoBarOnANarrowTerminal(t *testing.T) {
	t.Parallel()
	for columns, want := range map[uint16]string{40: "2 done, 0 failed again", 80: "%"} {
		screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer screen.Close()
		fd := int(screen.Fd())
		n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
		if err == nil {
			err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
		}
		if err == nil {
			err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns})
		}
		if err != nil {
			t.Fatal(err)
		}
		tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer tty.Close()
		m := newMeter(tty, "p")
		m.last = m.last.Add(-meterEvery - time.Second)
		m.replayed(replay.Progress{Matched: 10, Sent: 4, Done: 2, Open: 2})
		m.note("end")
		shown, err := bufio.NewReader(screen).ReadString('\n')
		if err != nil || !strings.Contains(shown, want) {
			t.Errorf("%d columns: got %q, %v, want %q", columns, shown, err, want)
		}
	}
}

// The line of a fill names its projection once.
func TestMeterNamesAProjectionOnce(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	m := newMeter(&out, "products")
	m.last = m.last.Add(-meterEvery - time.Second)
	m.rebuilt(records.Rebuild{Projection: "products", Phase: "filling", Filled: 3, Rows: 10})
	if want := "weft: products: filling; 3 of about 10 rows\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
