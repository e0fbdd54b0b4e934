package main

import (
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

func TestServersAreStoppedKilledAndStartedAgain(t *testing.T) {
	t.Parallel()

	var progress strings.Builder
	s, err := stack.Start(t.Context(), stack.Options{
		Progress:   &progress,
		ElasticURL: testenv.ElasticURL(t),
	})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := s.Do(t.Context(), stack.KillServer, stack.Postgres); err == nil {
			t.Error("kill after close: got no error, want one")
		}
	})
	ask := func(statement string) (answer string, err error) {
		conn, err := pgx.Connect(t.Context(), s.DatabaseURL())
		if err != nil {
			return "", err
		}
		defer func() { _ = conn.Close(t.Context()) }()
		err = conn.QueryRow(t.Context(), statement).Scan(&answer)
		return answer, err
	}
	if _, err := testenv.Pool(t, s.DatabaseURL()).Exec(t.Context(), "create table kept as select 'here' as word"); err != nil {
		t.Fatalf("create table: %v", err)
	}

	url, pid := s.DatabaseURL(), s.PID(stack.Postgres)
	for name, end := range map[string]func() error{
		"stop": func() error { return s.Do(t.Context(), stack.StopServer, stack.Postgres) },
		"immediate stop": func() error {
			return s.Do(t.Context(), stack.StopServerImmediately, stack.Postgres)
		},
		"kill": func() error { return s.Do(t.Context(), stack.KillServer, stack.Postgres) },
	} {
		if err := end(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := ask("select 'x'"); err == nil {
			t.Errorf("after %s: got an answer, want none", name)
		}
		if err := s.Do(t.Context(), stack.StartServer, stack.Postgres); err != nil {
			t.Fatalf("start after %s: %v", name, err)
		}
		if got, err := ask("select word from kept"); err != nil || got != "here" {
			t.Errorf("data after %s and start: got %q (%v), want it back", name, got, err)
		}
	}
	log, err := ask("select pg_read_file(current_setting('data_directory') || '/../server.log')")
	if n := strings.Count(log, "received immediate shutdown request"); err != nil || n != 1 {
		t.Errorf("server log: got %d immediate shutdowns (%v), want one", n, err)
	}
	if s.DatabaseURL() != url || s.PID(stack.Postgres) == pid {
		t.Errorf("after the restarts: got %s of process %d, want %s of another process", s.DatabaseURL(), s.PID(stack.Postgres), url)
	}
	if err := s.Do(t.Context(), stack.StartServer, stack.Postgres); err != nil {
		t.Errorf("start of a running server: got %v, want none", err)
	}
	if err := s.Do(t.Context(), stack.KillServer, stack.Elastic); err == nil {
		t.Error("kill of a server that is not ours: got no error, want one")
	}
	if err := s.Close(); err != nil { // then nothing more is said
		t.Errorf("close: %v", err)
	}
	if strings.Contains(progress.String(), "by itself") {
		t.Errorf("progress: got %q, want no surprise at an end that was asked for", &progress)
	}
}

// The guardian is the last process one expects to be killed; then the kernel ends the
// servers, and the next start removes their data.
func TestServersDieWithTheirGuardian(t *testing.T) {
	t.Parallel()

	w := newWeftlab(t, postgresOnly(t), append([]string{"stack", "--"}, readyCommand()...)...)
	w.start(t)
	w.awaitReady(t)
	var guardian int
	for _, line := range w.left(t) {
		process, arguments, _ := strings.Cut(line, " ")
		if strings.Contains(arguments, "stack guardian") {
			guardian, _ = strconv.Atoi(strings.TrimPrefix(process, "/proc/"))
		}
	}
	if guardian == 0 {
		t.Fatalf("guardian: got none in %q, want one", w.left(t))
	}
	if err := syscall.Kill(guardian, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool {
		return !strings.Contains(strings.Join(w.left(t), "\n"), "bin/postgres")
	}, "PostgreSQL is gone")
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got, want := w.wait(t), 128+int(syscall.SIGTERM); got != want {
		t.Errorf("exit code: got %d, want %d\n%s", got, want, w.stderr)
	}
	if !strings.Contains(w.stderr.String(), "the guardian is gone") {
		t.Errorf("stderr: got %q, want that the guardian is gone", w.stderr)
	}

	next := newWeftlab(t, postgresOnly(t), "stack", "--", "true")
	next.cmd.Env = append(next.cmd.Env, "TMPDIR="+w.temp)
	next.start(t)
	if got := next.wait(t); got != 0 {
		t.Errorf("next start: got exit code %d, want 0\n%s", got, next.stderr)
	}
	w.wantNothingLeft(t)
}

// What is not there is told in one line, before anything is started.
func TestStackWithoutJavaAndMaven(t *testing.T) {
	t.Parallel()

	w := newWeftlab(t, nil, "stack", "--", "true")
	cache := t.TempDir()
	w.cmd.Env = append(w.cmd.Env, "PATH="+filepath.Join(cache, "none"), "JAVA_HOME=", "ES_JAVA_HOME=", "XDG_CACHE_HOME="+cache)
	w.start(t)
	if got := w.wait(t); got != exitUnavailable {
		t.Errorf("exit code: got %d, want %d", got, exitUnavailable)
	}
	got := w.stderr.String()
	for _, want := range []string{"no JDK 17 or newer", "apt install default-jdk-headless maven", "set DATABASE_URL and ELASTIC_URL"} {
		if !strings.Contains(got, want) {
			t.Errorf("stderr: got %q, want %q in it", got, want)
		}
	}
	if strings.Count(got, "\n") != 1 {
		t.Errorf("stderr: got %q, want one line", got)
	}
	w.wantNothingLeft(t)
}
