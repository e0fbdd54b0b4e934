package daemon_test

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// Two instances of one name say so once, and go on; one of another name does not.
func TestTwoInstancesOfOneNameSaySo(t *testing.T) {
	t.Parallel()
	r := setup(t)
	other := r.start("b")
	other.awaitReady(200)
	for _, in := range []*instance{r.start("a"), r.start("a")} {
		in.awaitReady(200)
		testenv.Eventually(t, func() bool { return len(in.logs.with("event", "presence.twin")) > 0 }, "the warning")
	}
	if lines := other.logs.with("event", "presence.twin"); len(lines) > 0 {
		t.Errorf("an instance with a name of its own says %v", lines)
	}
}
