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

func TestNumber(t *testing.T) {
	t.Parallel()
	for in, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 123456: "123,456", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		if got := Number(in); got != want {
			t.Errorf("Number(%d): got %q, want %q", in, got, want)
		}
	}
}
