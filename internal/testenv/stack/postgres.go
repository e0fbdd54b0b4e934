package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

const (
	databaseName = "weft_test"

	postgresBound = time.Minute
	portAttempts  = 3
	readyPoll     = 20 * time.Millisecond

	// The longest path a unix socket may have, less the socket's name.
	socketDirLimit = 85
)

var errTimeout = errors.New("does not answer")

// postgres is one cluster; start and stop may be repeated and keep data and port.
type postgres struct {
	home    string
	dir     string // holds data, log and socket
	who     *account
	spawner *process.Spawner
	onEnd   func(*process.Process)

	secured   *securedSpec // nil: trust is all that is asked
	clientDir string       // with the superuser's certificate

	port    int // 0 until the first start
	process *process.Process
	copied  bool // made as a replica: the database comes with the data
}

func (p *postgres) data() string { return filepath.Join(p.dir, "data") }
func (p *postgres) log() string  { return filepath.Join(p.dir, "server.log") }

func (p *postgres) url(database string) string {
	if p.secured != nil {
		return p.securedURL(database)
	}
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", p.port, database)
}

// prepare makes the cluster. Nothing of it outlives the guardian, so it is not synced;
// the server itself runs with fsync.
func (p *postgres) prepare(ctx context.Context) error {
	output, err := os.Create(filepath.Join(p.dir, "initdb.log"))
	if err != nil {
		return explainDisk(err, p.dir)
	}
	defer func() { _ = output.Close() }()
	cmd := exec.Command(filepath.Join(p.home, "bin", "initdb"),
		"-D", p.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync",
		"--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
	if p.secured != nil {
		password := filepath.Join(p.dir, "password")
		if err := p.write(password, []byte(p.secured.Password)); err != nil {
			return explainDisk(err, p.dir)
		}
		cmd.Args = append(cmd.Args, "--pwfile", password)
	}
	cmd.Dir, cmd.Env = p.dir, process.Env(p.dir)
	cmd.Stdout, cmd.Stderr = output, output
	initdb, err := p.spawner.Start(cmd, p.who.credential(), syscall.SIGKILL, nil)
	if err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	select {
	case <-ctx.Done():
		initdb.Stop()
		return context.Cause(ctx)
	case <-initdb.Ended():
	}
	if initdb.Err() != nil {
		return explainDisk(initdb.EndedError("initdb", output.Name()), p.dir)
	}
	if p.secured != nil {
		return p.secure()
	}
	return p.askForPasswords()
}

// PasswordRoles is the beginning of the names of the roles that need a password;
// everybody else on the loopback address is let in.
const PasswordRoles = "weft_password"

// askForPasswords puts a rule for [PasswordRoles] before those of initdb.
func (p *postgres) askForPasswords() error {
	file := filepath.Join(p.data(), "pg_hba.conf")
	rules, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	rule := "host all \"/^" + PasswordRoles + "\" 127.0.0.1/32 scram-sha-256\n"
	return os.WriteFile(file, append([]byte(rule), rules...), 0o600) // keeps its owner
}

// start returns when the server answers, or with the reason why it does not.
func (p *postgres) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, postgresBound, fmt.Errorf("PostgreSQL %w within %v", errTimeout, postgresBound))
	defer cancel()
	first := p.port == 0
	for attempt := 1; ; attempt++ {
		if first {
			port, err := process.FreePort()
			if err != nil {
				return fmt.Errorf("free port: %w", err)
			}
			p.port = port
		}
		err := p.startOnce(ctx)
		if err == nil {
			break
		}
		if !first && strings.Contains(err.Error(), "shared memory block") {
			continue // of a killed server, whose last backend is about to notice
		}
		if !first || attempt == portAttempts || !strings.Contains(err.Error(), "could not bind") {
			return explainDisk(err, p.dir)
		}
	}
	if !first || p.copied {
		return nil
	}
	return p.createDatabase(ctx)
}

func (p *postgres) startOnce(ctx context.Context) error {
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()

	socketDir := p.dir
	if len(socketDir) > socketDirLimit {
		socketDir = "" // loopback only
	}
	cmd := exec.Command(filepath.Join(p.home, "bin", "postgres"),
		"-D", p.data(), "-p", strconv.Itoa(p.port),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories="+socketDir,
		"-c", "max_connections=300",
		"-c", "wal_level=replica",
		"-c", "track_commit_timestamp=on",
		"-c", "dynamic_shared_memory_type=mmap", // in the data directory, and removed with it
		"-c", "wal_keep_size="+walKept,
		"-c", "wal_retrieve_retry_interval=100ms",
	)
	cmd.Args = append(cmd.Args, p.sslSettings()...)
	cmd.Dir, cmd.Env = p.dir, process.Env(p.dir)
	cmd.Stdout, cmd.Stderr = log, log
	// SIGQUIT: the postmaster takes its backends, which are in sessions of their own, along.
	p.process, err = p.spawner.Start(cmd, p.who.credential(), syscall.SIGQUIT, p.onEnd)
	if err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	err = p.await(ctx)
	if err != nil {
		p.stop()
	}
	return err
}

func (p *postgres) await(ctx context.Context) error {
	for {
		if p.ready(ctx) {
			return nil
		}
		select {
		case <-p.process.Ended():
			return p.process.EndedError("PostgreSQL", p.log())
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errTimeout) {
				return fmt.Errorf("%w\n%s", context.Cause(ctx), process.Tail(p.log()))
			}
			return context.Cause(ctx)
		case <-time.After(readyPoll):
		}
	}
}

// ready also asks whose data this is: on the port may be another server.
func (p *postgres) ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.url("postgres"))
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close(ctx) }()
	var data string
	return conn.QueryRow(ctx, "show data_directory").Scan(&data) == nil && data == p.data()
}

func (p *postgres) createDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.url("postgres"))
	if err == nil {
		_, err = conn.Exec(ctx, "create database "+databaseName)
		_ = conn.Close(ctx)
	}
	if err != nil {
		return fmt.Errorf("create database %s: %w", databaseName, explainDisk(err, p.dir))
	}
	return nil
}

// stop is a fast shutdown, then an immediate one, then the end.
func (p *postgres) stop() {
	if p.process != nil {
		p.process.Stop(process.Step{Signal: syscall.SIGINT, Wait: 5 * time.Second}, process.Step{Signal: syscall.SIGQUIT, Wait: 6 * time.Second})
	}
}

// quit is an immediate shutdown: backends end without a word to anybody, nothing is
// checkpointed, and the next start recovers from the log.
func (p *postgres) quit() {
	if p.process != nil {
		p.process.Stop(process.Step{Signal: syscall.SIGQUIT, Wait: 6 * time.Second})
	}
}

// kill ends the postmaster and its backends, which are in sessions of their own, as a
// crash of the machine would.
func (p *postgres) kill() {
	if p.process == nil || p.process.HasEnded() {
		return
	}
	var backends []ProcessID
	for _, pid := range descendants(p.process.PID()) {
		backends = append(backends, identify(pid))
	}
	p.process.Stop()
	for _, backend := range backends {
		if backend.Alive() {
			_ = syscall.Kill(backend.PID, syscall.SIGKILL)
		}
	}
}
