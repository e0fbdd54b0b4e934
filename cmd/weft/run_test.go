package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

type running struct {
	signals chan os.Signal
	hangups chan os.Signal
	code    chan int
	errOut  *buffer
}

// start runs `weft run` with work as its daemon in the background.
func start(t *testing.T, work func(ctx context.Context, cfg config.Config, tel *telemetry.Telemetry, b build, reload daemon.Reload) error, environ ...string) running {
	t.Helper()
	r := running{signals: make(chan os.Signal, 2), hangups: make(chan os.Signal, 2), code: make(chan int, 1), errOut: &buffer{}}
	a := &app{environ: environ, stdin: strings.NewReader(""), stdout: &buffer{}, stderr: r.errOut, daemon: work,
		signals: func(sigs ...os.Signal) (<-chan os.Signal, func()) {
			if sigs[0] == syscall.SIGHUP {
				return r.hangups, func() {}
			}
			return r.signals, func() {}
		}}
	go func() { r.code <- a.execute(context.WithoutCancel(t.Context()), []string{"run"}) }()
	return r
}

const nowhere = "DATABASE_URL=postgres://u:hunter2@127.0.0.1:1/d"

func TestSignalStops(t *testing.T) {
	t.Parallel()
	up := make(chan config.Config, 1)
	r := start(t, func(ctx context.Context, cfg config.Config, _ *telemetry.Telemetry, _ build, _ daemon.Reload) error {
		up <- cfg
		<-ctx.Done()
		return nil
	}, nowhere, "WEFT_GROUP=books")
	if cfg := <-up; cfg.Group != "books" {
		t.Errorf("the daemon got group %q", cfg.Group)
	}
	r.signals <- syscall.SIGTERM
	if got := <-r.code; got != 0 {
		t.Errorf("got code %d, want 0: %s", got, r.errOut)
	}
	for _, want := range []string{`"event":"start"`, `"event":"stop"`, `"signal":"terminated"`, `"event":"stopped"`, "u:*****@"} {
		if !strings.Contains(r.errOut.String(), want) {
			t.Errorf("log lacks %s:\n%s", want, r.errOut)
		}
	}
	if strings.Contains(r.errOut.String(), "hunter2") {
		t.Errorf("log shows the password:\n%s", r.errOut)
	}
}

func TestDaemonThatReturnsItsCause(t *testing.T) {
	t.Parallel()
	r := start(t, func(ctx context.Context, _ config.Config, _ *telemetry.Telemetry, _ build, _ daemon.Reload) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}, nowhere)
	r.signals <- syscall.SIGINT
	if got := <-r.code; got != 0 {
		t.Errorf("got code %d, want 0: %s", got, r.errOut)
	}
}

func TestSecondSignalLeaves(t *testing.T) {
	t.Parallel()
	release, gone := make(chan struct{}), make(chan struct{})
	r := start(t, func(ctx context.Context, _ config.Config, _ *telemetry.Telemetry, _ build, _ daemon.Reload) error {
		defer close(gone)
		<-ctx.Done()
		<-release // work that does not end
		return nil
	}, nowhere)
	r.signals <- syscall.SIGTERM
	r.signals <- syscall.SIGTERM
	if got := <-r.code; got != exitInternal {
		t.Errorf("got code %d, want %d", got, exitInternal)
	}
	if !strings.Contains(r.errOut.String(), `"event":"stop.forced"`) || !strings.Contains(r.errOut.String(), "weft: left at once") {
		t.Errorf("got %s, want a line about it", r.errOut)
	}
	close(release)
	<-gone
}

func TestDaemonErrorIsOneLine(t *testing.T) {
	t.Parallel()
	r := start(t, func(context.Context, config.Config, *telemetry.Telemetry, build, daemon.Reload) error {
		return errors.New("two\nlines")
	}, nowhere)
	if got := <-r.code; got != exitInternal {
		t.Errorf("got code %d, want %d", got, exitInternal)
	}
	if !strings.HasSuffix(r.errOut.String(), "\nweft: two lines\n") {
		t.Errorf("got %q", r.errOut)
	}
}

// TestRun is the whole program against real servers: it leads, says so, and hands
// over.
func TestRun(t *testing.T) {
	t.Parallel()
	db := "DATABASE_URL=" + testenv.Database(t)
	env := []string{db, "ELASTIC_URL=" + testenv.ElasticURL(t), "ELASTIC_INDEX=" + testenv.Index(t),
		"WEFT_GROUP=g", "WEFT_INSTANCE=a", "OUTBOX_METRICS_PORT=0", "WEFT_HTTP_HOST=127.0.0.1", longTrust, longIdle}
	r := start(t, runDaemon, env...)
	var st result
	testenv.Eventually(t, func() bool {
		st = weft(t, []string{db, "WEFT_GROUP=g"}, "status")
		return st.code == 0 && strings.Contains(st.out, "127.0.0.1:")
	}, "a leader in weft status")
	if !strings.Contains(st.out, "leader  a, epoch 1, since ") {
		t.Errorf("status: got\n%s", st.out)
	}
	addr := st.out[strings.Index(st.out, "127.0.0.1:"):]
	addr = addr[:strings.IndexAny(addr, " \n")]
	testenv.Eventually(t, func() bool { return ready(t, addr) == http.StatusOK }, "ready")

	r.signals <- syscall.SIGTERM
	if got := <-r.code; got != 0 {
		t.Errorf("got code %d, want 0:\n%s", got, r.errOut)
	}
	st = weft(t, []string{db, "WEFT_GROUP=g"}, "status")
	if st.code != exitBad || !strings.Contains(st.out, "nobody; the last was a, epoch 1, which ended with a hand-over at ") {
		t.Errorf("after the stop: got code %d and\n%s", st.code, st.out)
	}
}

func ready(t *testing.T, addr string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr+"/health/ready", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestRunRefusals(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		env  func(t *testing.T) []string
		code int
		want string
	}{
		{"MissingMigration", func(t *testing.T) []string {
			t.Helper()
			return []string{"DATABASE_URL=" + testenv.Schema(t)}
		}, exitTryAgain, "of database weft_test: run `weft migrate up`, or correct DATABASE_URL"},
		{"WrongEnvironment", func(t *testing.T) []string {
			t.Helper()
			return []string{"DATABASE_URL=" + testenv.Schema(t), "WORDLOOM_ENV=dev"}
		}, exitRefused, "weft: WORDLOOM_ENV is dev, but database "},
		{"UnknownDatabase", func(t *testing.T) []string {
			t.Helper()
			return []string{"DATABASE_URL=" + strings.Replace(os.Getenv("DATABASE_URL"), "/weft_test", "/nowhere", 1)}
		}, exitConfig, "correct the name in DATABASE_URL"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			env := append(tc.env(t), "ELASTIC_URL="+testenv.ElasticURL(t), "ELASTIC_INDEX="+testenv.Index(t), "OUTBOX_METRICS_PORT=0")
			r := start(t, runDaemon, env...)
			if got := <-r.code; got != tc.code {
				t.Errorf("got code %d, want %d", got, tc.code)
			}
			lines := strings.Split(strings.TrimSpace(r.errOut.String()), "\n")
			last := lines[len(lines)-1]
			if !strings.HasPrefix(last, "weft: ") || !strings.Contains(last+"\n", tc.want) {
				t.Errorf("last line: got %q, want %q in it", last, tc.want)
			}
		})
	}
}

// TestHangupReloads holds that SIGHUP reaches the daemon, which reads all layers anew.
func TestHangupReloads(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("old")
	up, loaded := make(chan config.Config, 1), make(chan string, 1)
	r := start(t, func(ctx context.Context, cfg config.Config, _ *telemetry.Telemetry, _ build, reload daemon.Reload) error {
		up <- cfg
		<-reload.Asked
		next, err := reload.Load()
		if err != nil {
			return err
		}
		loaded <- next.Elastic.Password.Reveal()
		<-ctx.Done()
		return nil
	}, nowhere, "ELASTIC_USERNAME=u", "ELASTIC_PASSWORD_FILE="+file)
	if cfg := <-up; cfg.Elastic.Password.Reveal() != "old" {
		t.Errorf("at the start: got %q", cfg.Elastic.Password.Reveal())
	}
	put("new")
	r.hangups <- syscall.SIGHUP
	if got := <-loaded; got != "new" {
		t.Errorf("after SIGHUP: got %q, want the new one", got)
	}
	r.signals <- syscall.SIGTERM
	if got := <-r.code; got != 0 {
		t.Errorf("got code %d, want 0: %s", got, r.errOut)
	}
}
