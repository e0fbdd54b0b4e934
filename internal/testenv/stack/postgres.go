package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
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

	// The longest path a unix socket may have, less the socket's name.
	socketDirLimit = 85
)

var errAnother = errors.New("another server answers on this port")

// postgres is one cluster; start and stop may be repeated and keep data and port.
type postgres struct {
	home    string
	major   int
	logical bool   // its WAL can be decoded
	quick   bool   // it does not wait for the disk
	dir     string // holds data, log and socket
	who     *account
	onEnd   func(*process.Process)

	secured   *securedSpec // nil: trust is all that is asked
	clientDir string       // with the superuser's certificate

	port    int // 0 until the first start
	process *process.Process
	copied  bool // made as a replica: the database comes with the data
}

func (p *postgres) data() string { return filepath.Join(p.dir, "data") }

func (p *postgres) url(database string) string {
	if p.secured != nil {
		return p.securedURL(database)
	}
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", p.port, database)
}

// prepare makes the cluster. Nothing of it outlives the guardian, so it is not synced;
// the server itself runs with fsync unless it is quick.
func (p *postgres) prepare(ctx context.Context) error {
	argv := []string{
		filepath.Join(p.home, "bin", "initdb"), "-D", p.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync",
		"--locale=C",
	}
	if p.major >= 17 { // older ones know no order of characters that every machine has, but bytes
		argv = append(argv, "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
	}
	if p.secured != nil {
		password := filepath.Join(p.dir, "password")
		if err := p.write(password, []byte(p.secured.Password)); err != nil {
			return explainDisk(err, p.dir)
		}
		argv = append(argv, "--pwfile", password)
	}
	initdb, err := process.Start(process.Server{
		Name: "initdb", Dir: p.dir, Log: filepath.Join(p.dir, "initdb.log"), Argv: argv, As: p.who.credential(), DeathSignal: syscall.SIGKILL,
	})
	if err != nil {
		return explainDisk(err, p.dir)
	}
	select {
	case <-ctx.Done():
		initdb.Stop()
		return context.Cause(ctx)
	case <-initdb.Ended():
	}
	if initdb.Err() != nil {
		return explainDisk(initdb.EndedError(), p.dir)
	}
	if p.secured != nil {
		return p.secure()
	}
	return p.askForPasswords()
}

// PasswordRoles is the beginning of the names of the roles that need a password;
// everybody else on the loopback address is let in. A PostgreSQL before 16 lets all in.
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
	ctx, cancel := context.WithTimeoutCause(ctx, postgresBound, fmt.Errorf("PostgreSQL %w within %v", process.ErrTimeout, postgresBound))
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

func (p *postgres) startOnce(ctx context.Context) (err error) {
	socketDir := p.dir
	if len(socketDir) > socketDirLimit {
		socketDir = "" // loopback only
	}
	argv := []string{
		filepath.Join(p.home, "bin", "postgres"),
		"-D", p.data(), "-p", strconv.Itoa(p.port),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=" + socketDir,
		"-c", "max_connections=300",
		"-c", "wal_level=" + map[bool]string{false: "replica", true: "logical"}[p.logical],
		"-c", "track_commit_timestamp=on",
		"-c", "dynamic_shared_memory_type=mmap", // in the data directory, and removed with it
		"-c", "wal_keep_size=" + walKept,
		"-c", "wal_retrieve_retry_interval=100ms",
	}
	if p.quick { // a killed server loses nothing by it, only a killed machine does
		argv = append(argv, "-c", "fsync=off", "-c", "max_wal_size=512MB")
	}
	p.process, err = process.Start(process.Server{
		Name: "PostgreSQL", Dir: p.dir, Log: filepath.Join(p.dir, serverLog), Argv: append(argv, p.sslSettings()...), As: p.who.credential(), OnEnd: p.onEnd,
		DeathSignal: syscall.SIGQUIT, // the postmaster takes its backends, which are in sessions of their own, along
	})
	if err != nil {
		return err
	}
	if err = p.process.Await(ctx, p.ready); err != nil {
		p.stop()
	}
	return err
}

// ready also asks whose data this is: on the port may be another server.
func (p *postgres) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.url("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var data string
	if err := conn.QueryRow(ctx, "show data_directory").Scan(&data); err != nil || data == p.data() {
		return err
	}
	return errAnother
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
	for _, pid := range process.Descendants(p.process.PID()) {
		backends = append(backends, identify(pid))
	}
	p.process.Stop()
	for _, backend := range backends {
		if backend.Alive() {
			_ = syscall.Kill(backend.PID, syscall.SIGKILL)
		}
	}
}
