package verdict

import "testing"

func TestWhatDidNotGrowWasRead(t *testing.T) {
	t.Parallel()
	one, two := parse(t, "# TYPE x counter\nx 1\n").Samples(), parse(t, "# TYPE x counter\nx 2\n").Samples()
	for name, c := range map[string]struct {
		before, after Metrics
		n             float64
		seen          string
		pass          bool
	}{
		"Same":     {one, one, 0, "0", true},
		"Grew":     {one, two, 0, "1", false},
		"GrewByN":  {one, two, 1, "1", true},
		"None":     {nil, nil, 0, "no metrics", false},
		"NoBefore": {nil, one, 0, "no metrics", false},
		"NoAfter":  {one, nil, 0, "no metrics", false},
	} {
		j := &Judge{Evidence: &Evidence{Before: c.before, After: c.after}}
		j.GrewBy(c.n, "x")
		if got := j.checks[0]; got.Seen != c.seen || got.Pass != c.pass {
			t.Errorf("%s: saw %q, passed %v; want %q, %v", name, got.Seen, got.Pass, c.seen, c.pass)
		}
	}
}
