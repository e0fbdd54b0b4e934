// Package deploy_test holds what is shipped beside the binary against the tools that
// will read it, and against the binary.
package deploy_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/config"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// unit returns the values of a key, in order.
func unit(t *testing.T, path, key string) (values []string) {
	t.Helper()
	for line := range strings.Lines(read(t, path)) {
		if v, ok := strings.CutPrefix(line, key+"="); ok {
			values = append(values, strings.TrimSpace(v))
		}
	}
	return values
}

func span(t *testing.T, path, key string) time.Duration {
	t.Helper()
	values := unit(t, path, key)
	if len(values) != 1 {
		t.Fatalf("%s: %s=%q, want one value", path, key, values)
	}
	d, err := time.ParseDuration(values[0])
	if err != nil {
		t.Fatalf("%s: %s: %v", path, key, err)
	}
	return d
}

// TestTemplateUnit holds that weft@.service is weft.service with a name.
func TestTemplateUnit(t *testing.T) {
	t.Parallel()
	const own = "# Of this one alone: WEFT_GROUP, OUTBOX_METRICS_PORT, WEFT_CONFIG …\nEnvironmentFile=-/etc/weft/%i.env\n"
	got := read(t, "systemd/weft@.service")
	if strings.Count(got, own) != 1 {
		t.Errorf("weft@.service has no environment of its own")
	}
	got = strings.NewReplacer(own, "", "Description=weft %i:", "Description=weft:", "WEFT_INSTANCE=%H-%i ", "WEFT_INSTANCE=%H ").Replace(got)
	if diff := cmp.Diff(read(t, "systemd/weft.service"), got); diff != "" {
		t.Errorf("weft@.service differs in more (-weft.service +weft@.service):\n%s", diff)
	}
}

// TestUnitTimes holds that the times of the unit fit the ones of the daemon.
func TestUnitTimes(t *testing.T) {
	t.Parallel()
	const path = "systemd/weft.service"
	c := config.Default()
	if stop := span(t, path, "TimeoutStopSec"); stop <= c.Outbox.ShutdownGrace+5*time.Second {
		t.Errorf("TimeoutStopSec is %v, and the shutdown grace %v", stop, c.Outbox.ShutdownGrace)
	}
	// Postgres has freed the lock, and somebody else leads, when the frozen one is killed.
	if dog := span(t, path, "WatchdogSec"); dog < 2*c.Leader.IdleSession {
		t.Errorf("WatchdogSec is %v, and the idle timeout of the lock session %v", dog, c.Leader.IdleSession)
	}
	if got := unit(t, path, "StartLimitIntervalSec"); len(got) != 1 || got[0] != "0" {
		t.Errorf("StartLimitIntervalSec=%q: failures in a row may strand it", got)
	}
	if got := unit(t, path, "Restart"); len(got) != 1 || got[0] != "always" {
		t.Errorf("Restart=%q", got)
	}
}

// TestUnitExitCodes holds that systemd gives up on errors of usage and configuration, and
// on nothing else.
func TestUnitExitCodes(t *testing.T) {
	t.Parallel()
	got := unit(t, "systemd/weft.service", "RestartPreventExitStatus")
	if diff := cmp.Diff([]string{"64 78"}, got); diff != "" {
		t.Errorf("RestartPreventExitStatus (-want +got):\n%s", diff)
	}
	code := read(t, "../cmd/weft/exit.go")
	for name, number := range map[string]string{"exitUsage": "64", "exitConfig": "78"} {
		if !strings.Contains(strings.Join(strings.Fields(code), " "), name+" = "+number) {
			t.Errorf("%s is not %s any more", name, number)
		}
	}
}
