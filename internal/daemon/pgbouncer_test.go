//go:build pgbouncer

package daemon_test

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

// sessionParameters are what weft sets on its sessions; a pooler that lets clients
// through in session mode has to pass or ignore them.
const sessionParameters = "application_name,statement_timeout,lock_timeout,idle_in_transaction_session_timeout,idle_session_timeout," +
	"tcp_keepalives_idle,tcp_keepalives_interval,tcp_keepalives_count,tcp_user_timeout,timezone,default_transaction_read_only,default_transaction_isolation,enable_sort,synchronous_commit,enable_incremental_sort,enable_seqscan,plan_cache_mode,jit,extra_float_digits"

// pgbouncer runs a real PgBouncer before the server of url until the test ends, and
// returns url through it.
func pgbouncer(t *testing.T, raw, mode, ignore string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "weft-pgbouncer-") // not t.TempDir: another user must reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	users := filepath.Join(dir, "users.txt")
	ini := filepath.Join(dir, "pgbouncer.ini")
	conf := fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
auth_file = %s
pool_mode = %s
max_client_conn = 100
default_pool_size = 20
ignore_startup_parameters = %s
`, u.Hostname(), u.Port(), port, users, mode, ignore)
	conf = strings.Replace(conf, "* = host", "* = user=postgres host", 1)
	for name, text := range map[string]string{users: "\"postgres\" \"\"\n", ini: conf} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{ini}
	if os.Geteuid() == 0 { // it refuses to run as root
		args = []string{"-u", "nobody", ini}
	}
	cmd := exec.Command("pgbouncer", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out := &strings.Builder{}
	cmd.Stderr = out
	if err := cmd.Start(); err != nil {
		t.Fatalf("start pgbouncer: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("pgbouncer: %s", out)
		}
	})
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	testenv.Eventually(t, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, "pgbouncer to listen")
	u.Host = addr
	return u.String()
}

// A transaction pooler is refused with one line, whether or not it swallows the
// session parameters that give it away; a session pooler will do.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	refused := func(t *testing.T, ignore string) {
		t.Helper()
		r := setup(t)
		r.url = pgbouncer(t, r.url, "transaction", ignore)
		said := &logs{}
		tel, err := telemetry.New(said, telemetry.Options{})
		if err != nil {
			t.Fatal(err)
		}
		cfg := r.config("a")
		done := make(chan error, 1)
		go func() { done <- daemon.Run(t.Context(), cfg, tel, "test", daemon.Reload{}) }()
		select {
		case err := <-done:
			if kind, text := postgres.Diagnose(daemon.Cause(err)); kind != postgres.Pooler || strings.Contains(text, "\n") {
				t.Errorf("ended with %v (%v: %s), want one line about the pooler", err, kind, text)
			}
			for _, line := range said.with("event", "dependency.down") {
				if text := fmt.Sprint(line["error"]); !strings.Contains(text, "a transaction-pooling proxy") {
					t.Errorf("got %v, want the pooler blamed", line)
				}
			}
		case <-time.After(testenv.Limit):
			t.Error("still running behind a transaction pooler")
		}
	}
	t.Run("TransactionModeRefusesParameters", func(t *testing.T) { t.Parallel(); refused(t, "extra_float_digits") })
	t.Run("TransactionModeIgnoresParameters", func(t *testing.T) { t.Parallel(); refused(t, sessionParameters) })
	t.Run("SessionModeWorks", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		r.url = pgbouncer(t, r.url, "session", sessionParameters)
		a := r.start("a")
		a.awaitReady(200, `"role": "leader"`)
		r.upsert(newKey(), 1, "x")
		r.await(map[string]int{"done": 1})
	})
}
