package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

const hostile = "\x1b[31mred\x1b]0;title\a \u202egnp.exe\u2066 \u200b\r\n\x9b2J 漢字"

// sampleTop is a reading with every kind of line, and with ids that would do harm to a terminal.
func sampleTop() (now, before *topState) {
	at := time.Date(2026, 5, 4, 1, 2, 30, 0, time.UTC)
	since := records.Since{By: "alice", Why: hostile, At: at.Add(-time.Hour), Secs: 3600}
	st := sample()
	p := &st.Projections[0]
	p.Pause, p.Throttle = &records.Pause{Since: since}, &records.Throttle{Rate: 12.5, Since: since}
	for n := range 5 {
		p.Quarantine = append(p.Quarantine, records.Quarantine{EntityType: "block", EntityID: fmt.Sprint(n, hostile), Since: since})
	}
	p.Rebuild = &records.Rebuild{Projection: p.Projection, Phase: "filling", NewIndex: hostile}
	finished := at.Add(-time.Minute)
	now = &topState{at: at, every: 2 * time.Second, status: st, terms: []pastTerm{{Epoch: 7, Instance: "a" + hostile, AcquiredAt: at.Add(-time.Hour), Cause: "not ended"}},
		queues: map[string]records.Queue{p.Projection: {
			Batches: []records.Batch{{ID: "01a2", Owner: "a", Epoch: 7, Events: 10, LeasedAt: at.Add(-400 * time.Millisecond)}},
			Waiting: []records.Waiting{{EntityType: "block", EntityID: hostile, EventVersion: 3, Attempts: 2, Reason: "es_5xx", NextRetryAt: &finished, Behind: 4}, {EntityType: "tag", EntityID: "1"}},
			Verify:  []records.Verify{{Part: "scrub", Entity: "block:" + hostile}, {Part: "command", FinishedAt: &finished}, {Part: "command", BeganAt: finished}},
		}}}
	old := *now
	old.at, old.status = at.Add(-2*time.Second), sample()
	old.status.Projections[0].Lag = 8
	return now, &old
}

// What weft top shows fits the terminal at any width, and no id can control it.
func TestTopLinesAreInertAndFitTheTerminal(t *testing.T) {
	t.Parallel()
	now, before := sampleTop()
	now.err = "no route " + hostile
	for _, width := range []int{0, 1, 2, 10, 36, 80, 200} {
		for _, l := range topLines(now, before, width) {
			if width > 0 && cells(l.text) > width {
				t.Errorf("%d cells at width %d: %q", cells(l.text), width, l.text)
			}
			if i := strings.IndexFunc(l.text, func(r rune) bool { return unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r) }); i >= 0 {
				t.Errorf("control character in %q", l.text)
			}
		}
	}
	var wide bytes.Buffer
	if err := printLines(&wide, topLines(now, before, 0)); err != nil {
		t.Fatal(err)
	}
	golden(t, "top.txt", wide.String())
	narrow := topLines(now, before, 36)
	if len(narrow) <= strings.Count(wide.String(), "\n") {
		t.Errorf("%d lines at 36 cells, want the counts on more lines than at full width", len(narrow))
	}
}

func TestTopShowsTheGrowthOfALagThatIsWhollyCounted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*records.Projection)
		want   string
	}{
		"ManyDiscarded": {func(p *records.Projection) { p.Discarded = 100 }, "lag 28 (+10.0 a second)"},
		"ManyReady":     {func(p *records.Projection) { p.Pending, p.Lag = 100, 105 }, "lag 105 ·"},
	} {
		now, before := sampleTop()
		p := &now.status.Projections[0]
		p.Most, p.Capped = 100, true
		tc.change(p)
		var text strings.Builder
		if err := printLines(&text, topLines(now, before, 0)); err != nil || !strings.Contains(text.String(), tc.want) {
			t.Errorf("%s: got %s, %v, want %q in it", name, &text, err, tc.want)
		}
	}
}

// On a terminal weft top draws until a key says to leave, and puts the screen back; a screen that
// is too low says so.
func TestTopDrawsUntilItIsLeft(t *testing.T) {
	t.Parallel()
	dsn := testenv.Database(t)
	v := &topView{cfg: config.Config{Group: "weft"}, pool: testenv.Pool(t, dsn), every: 20 * time.Millisecond}
	v.cfg.Database.Timeout = 10 * time.Second
	first, err := v.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"q", "xQ", "\x03", "\x1b"} {
		in, keys := io.Pipe()
		var out buffer
		restored := false
		s := &screen{in: in, out: &out, size: func() (int, int, error) { return 30, 2, nil }, raw: func() (func(), error) { return func() { restored = true }, nil }}
		done := make(chan error, 1)
		go func() { done <- v.watch(t.Context(), s, first) }()
		testenv.Eventually(t, func() bool { return strings.Count(out.String(), "\x1b[H") >= 3 }, "three frames")
		if _, err := keys.Write([]byte(key)); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || !restored {
			t.Errorf("%q: got %v, restored %v, want an end and the terminal as before", key, err, restored)
		}
		got := out.String()
		if !strings.HasPrefix(got, "\x1b[?1049h\x1b[?25l\x1b[H\x1b[1mweft top") || !strings.HasSuffix(got, "\x1b[?25h\x1b[?1049l") || !strings.Contains(got, "… 2 more lines: a taller") {
			t.Errorf("%q: got %q", key, got)
		}
		_ = in.Close()
	}
}

// Without a terminal weft top prints once, with the rights of an instance alone.
func TestTopWithoutTerminal(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.fill()
	r := weft(t, runnerOf(t, m), "top")
	for _, want := range []string{"weft top · group weft", "leader    nobody, ever", "instance  none was seen", "search_index_to_elastic\n  lag 0 · oldest - ·", "failed 7", "chronicle_events_to_entries\n"} {
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("got %+v, want %q in it", r, want)
		}
	}
	if strings.Contains(r.out, "\x1b") {
		t.Errorf("escapes without a terminal: %q", r.out)
	}
	if r := weft(t, m.env, "top", "--every=1ms"); r.code != exitUsage || !strings.Contains(r.errOut, `--every "1ms": want at least 500ms`) {
		t.Errorf("got %+v, want a refusal", r)
	}
}
