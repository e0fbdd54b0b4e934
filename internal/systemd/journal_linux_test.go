package systemd

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"
)

// The manager names the stream that it has connected by device and inode.
func TestToJournal(t *testing.T) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(os.Stderr.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", stat.Dev, stat.Ino))
	if !ToJournal(os.Stderr) {
		t.Error("standard error goes to the journal: got false")
	}
	other, err := os.Open(os.DevNull) // standard output may well be the same stream
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if ToJournal(&bytes.Buffer{}) || ToJournal(other) {
		t.Error("something else: got true")
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", stat.Dev, stat.Ino+1))
	if ToJournal(os.Stderr) {
		t.Error("standard error was sent elsewhere: got true")
	}
	for _, none := range []string{"", "nonsense"} {
		t.Setenv("JOURNAL_STREAM", none)
		if ToJournal(os.Stderr) {
			t.Errorf("JOURNAL_STREAM=%q: got true", none)
		}
	}
}
