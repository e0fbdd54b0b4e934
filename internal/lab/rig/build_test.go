package rig

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// clocks builds the program and returns how far its wall clock is off, and
// what is wrong with its monotonic one.
func clocks(t *testing.T, dir string, v *Variant) (binary string, off time.Duration) {
	t.Helper()
	binary, err := build(t.Context(), dir, "./testdata/clock", "clock", v)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), binary).Output()
	if err != nil {
		t.Fatalf("%s: %v", binary, err)
	}
	var passed, left time.Duration
	if _, err := fmt.Sscan(string(out), (*int64)(&off), (*int64)(&passed), (*int64)(&left)); err != nil {
		t.Fatalf("output %q: %v", out, err)
	}
	if passed < 20*time.Millisecond || passed > 30*time.Second || left > time.Hour-passed || left < time.Hour-2*passed-time.Second {
		t.Errorf("20 ms took %v and left %v of an hour: the monotonic clock is off", passed, left)
	}
	return binary, off
}

func TestSkewedClock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	binaries := map[string]bool{}
	for _, by := range []time.Duration{0, 5 * time.Minute, -(5*time.Minute + 300*time.Millisecond)} {
		var v *Variant
		if by != 0 {
			var err error
			if v, err = SkewedClock(t.Context(), by); err != nil {
				t.Fatal(err)
			}
		}
		binary, off := clocks(t, dir, v)
		binaries[binary] = true
		if (off - by).Abs() > 150*time.Millisecond {
			t.Errorf("wall clock: off by %v, want %v", off, by)
		}
	}
	if len(binaries) != 3 {
		t.Errorf("binaries: got %v, want one per variant", binaries)
	}
}

func TestVariantThatDoesNotApply(t *testing.T) {
	t.Parallel()
	const good = "outbox/settle.go"
	for name, c := range map[string]struct {
		file, old, want string
	}{
		"NoSuchFile":    {"outbox/none.go", "x", "none.go: no such file"},
		"NoneOfGo":      {"GOROOT:time/none.go", "x", "time/none.go: no such file"},
		"OutsideOfRoot": {"../settle.go", "x", "not below a root"},
		"NotThere":      {good, "no such text", "occurs 0 times, want once"},
		"Ambiguous":     {good, "\n", "times, want once"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := Replaced(t.Context(), c.file, c.old, ""); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Replaced: got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestBuildReportsTheCompiler(t *testing.T) {
	t.Parallel()
	v, err := Replaced(t.Context(), "cmd/weft/main.go", "func main() {", "func main() { nothing()")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Build(t.Context(), t.TempDir(), v); err == nil || !strings.Contains(err.Error(), "undefined: nothing") || !strings.Contains(err.Error(), "build weft-") {
		t.Errorf("Build: got %v, want the compiler's words", err)
	}
}
