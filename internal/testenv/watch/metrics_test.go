//go:build observability

package watch_test

import (
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
)

// The metrics of a leader and of a standby follow Prometheus' rules.
func TestPromtoolAcceptsTheMetrics(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("promtool is missing: install it (Debian, Ubuntu: apt-get install --no-install-recommends prometheus): %v", err)
	}
	p := startPair(t)
	if err := p.write(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	for _, i := range p.instances {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.URL("/metrics"), nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || !strings.Contains(string(body), "outbox_lag_events") {
			t.Fatalf("got %d bytes, %v, want metrics", len(body), err)
		}
		cmd := exec.CommandContext(t.Context(), promtool, "check", "metrics")
		cmd.Stdin = strings.NewReader(string(body))
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("promtool check metrics of %s: %v\n%s", i.Name, err, out)
		}
	}
}
