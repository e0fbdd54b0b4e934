package main

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/replay"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/verify"
)

// A bar that takes two lines of a narrow terminal would leave one behind each time it is drawn.
func TestMeterDrawsNoBarOnANarrowTerminal(t *testing.T) {
	t.Parallel()
	for columns, want := range map[uint16]string{40: "2 done, 0 failed again", 80: "%"} {
		screen, tty := testenv.Terminal(t, columns)
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

// A comparison that has read all waits as long as --settle says.
func TestMeterTellsWhatAComparisonWaitsFor(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	m := newMeter(&out, "products")
	m.last = m.last.Add(-meterEvery - time.Second)
	m.verified(verify.Report{Seen: 9, Total: 10, Open: 2}, time.Minute)
	if want := "weft: products: 0 differ; 2 entities are looked at again once events have settled\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
