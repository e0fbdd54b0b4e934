package rig

import (
	"strings"
	"testing"
	"time"
)

func TestScreenWithoutTerminal(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	c := NewScreen(&out, time.Hour)
	c.Line("one %d", 1)
	c.Refresh("status")
	c.Refresh("left out: too soon")
	c.Refresh("")
	c.Line("two")
	if got, want := out.String(), "one 1\nstatus\ntwo\n"; got != want {
		t.Errorf("output: got %q, want %q", got, want)
	}
}

// A table comes in parts, between which a status line would overwrite the part before it.
func TestScreenWritesWholeLines(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := NewScreen(&out, time.Hour)
	for _, part := range []string{"leader", "  ", "a\nstand", "by  b", "\n"} {
		if n, err := s.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("Write(%q): got %d, %v", part, n, err)
		}
		if text := out.String(); text != "" && !strings.HasSuffix(text, "\n") {
			t.Errorf("after %q: a part of a line was written: %q", part, text)
		}
	}
	if got, want := out.String(), "leader  a\nstandby  b\n"; got != want {
		t.Errorf("output: got %q, want %q", got, want)
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for in, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 123456: "123,456", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		if got := Number(in); got != want {
			t.Errorf("Number(%d): got %q, want %q", in, got, want)
		}
	}
}
