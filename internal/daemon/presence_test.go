package daemon_test

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// Two instances of one name say so, and go on.
func TestTwoInstancesOfOneNameSaySo(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, in := range []*instance{r.start("a"), r.start("a")} {
		in.awaitReady(200)
		testenv.Eventually(t, func() bool { return len(in.logs.with("event", "presence.twin")) > 0 }, "the warning")
	}
}
