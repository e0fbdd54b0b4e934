package testenv

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Terminal returns both ends of a new terminal that has 24 lines and so many columns; 0 leaves its size unknown. They are closed
// when the test ends.
func Terminal(t testing.TB, columns uint16) (screen, tty *os.File) {
	t.Helper()
	open := func(name string) *os.File {
		f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	screen = open("/dev/ptmx")
	fd := int(screen.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil && columns > 0 {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns})
	}
	if err != nil {
		t.Fatal(err)
	}
	return screen, open("/dev/pts/" + strconv.Itoa(n))
}
