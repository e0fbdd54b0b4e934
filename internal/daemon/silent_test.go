package daemon_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// A PostgreSQL that stands still, so that connections are accepted and no call is answered, is named with its address from the
// first line on, by a leader and by a standby.
func TestPostgresThatStandsStillIsNamed(t *testing.T) {
	t.Parallel()
	r := setup(t)
	way := newLink(t, host(t, r.url))
	environ := []string{"DATABASE_URL=" + way.through(testenv.As(t, r.url, r.runner)), "WEFT_LEADER_TRUST=3s", "WEFT_LEADER_IDLE_SESSION=5s", "WEFT_DB_TIMEOUT=3s"}
	pair := []*instance{r.start("a", environ...)}
	pair[0].awaitReady(http.StatusOK, `"role": "leader"`)
	pair = append(pair, r.start("b", environ...))
	pair[1].awaitReady(http.StatusOK, `"role": "standby"`)
	if err := way.HalfOpen(); err != nil {
		t.Fatal(err)
	}
	events := []string{"dependency.down", "leader.lost", "leader.disconnected", "presence.fault", "gauges.fault"}
	for n, in := range pair {
		in.awaitReady(http.StatusServiceUnavailable, "no answer from Postgres at "+way.Addr())
		told := map[string]bool{}
		testenv.Eventually(t, func() bool {
			for _, event := range events {
				for _, line := range in.logs.with("event", event) {
					if line["dependency"] == "elasticsearch" { // on a busy machine
						continue
					}
					told[event] = true
					if !strings.Contains(fmt.Sprint(line["error"]), way.Addr()) {
						t.Fatalf("%s: no address in %v", in.name, line)
					}
				}
			}
			return told["dependency.down"] && (n == 0) == told["leader.lost"] && told["leader.disconnected"] && told["presence.fault"] && told["gauges.fault"]
		}, "lines of "+in.name)
	}
}
