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
	instance         // its directory holds data, log and socket
	clientDir string // with the superuser's certificate, where that is asked for
	copied    bool   // made as a replica: the database comes with the data
}

func (p *postgres) data() string { return filepath.Join(p.dir, "data") }

func (p *postgres) url() string { return p.database(databaseName) }

func (p *postgres) database(database string) string {
	if p.Secured != nil {
		return p.securedURL(database)
	}
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", p.port, database)
}

// prepare makes the cluster. Nothing of it outlives the guardian, so it is not synced;
// the server itself runs with fsync unless it is quick.
func (p *postgres) prepare(ctx context.Context) error {
	argv := []string{
		filepath.Join(p.PostgresHome, "bin", "initdb"), "-D", p.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync",
		"--locale=C",
	}
	if p.PostgresMajor >= 17 { // older ones know no order of characters that every machine has, but bytes
		argv = append(argv, "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
	}
	if p.Secured != nil {
		password := filepath.Join(p.dir, "password")
		if err := p.write(password, []byte(p.Secured.Password)); err != nil {
			return explainDisk(err, p.dir)
		}
		argv = append(argv, "--pwfile", password)
	}
	initdb, err := process.Start(process.Server{
		Name: "initdb", Dir: p.dir, Log: filepath.Join(p.dir, "initdb.log"), Argv: argv, As: p.Account.credential(), DeathSignal: syscall.SIGKILL,
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
	if p.Secured != nil {
		return p.secure()
	}
	return p.askForPasswords()
}

// passwordRoles is the beginning of the names of the roles that need a password;
// everybody else on the loopback address is let in. A PostgreSQL before 16 lets all in.
const passwordRoles = "weft_password"

// askForPasswords puts a rule for passwordRoles before those of initdb.
func (p *postgres) askForPasswords() error {
	file := filepath.Join(p.data(), "pg_hba.conf")
	rules, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	rule := "host all \"/^" + passwordRoles + "\" 127.0.0.1/32 scram-sha-256\n"
	return os.WriteFile(file, append([]byte(rule), rules...), 0o600) // keeps its owner
}

// start returns when the server answers, or with the reason why it does not.
func (p *postgres) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, postgresBound, fmt.Errorf("PostgreSQL %w within %v", process.ErrTimeout, postgresBound))
	defer cancel()
	first := p.port == 0
	var err error
	p.process, err = process.StartReady(ctx, func() (process.Server, error) {
		if first {
			if err := process.FreePorts(&p.port); err != nil {
				return process.Server{}, err
			}
		}
		return p.server(), nil
	}, p.ready, func(try int, reason string) bool {
		if !first { // the memory of a killed server, whose last backend is about to notice
			return strings.Contains(reason, "shared memory block")
		}
		return try < portAttempts && strings.Contains(reason, "could not bind")
	})
	if err == nil && first && !p.copied {
		if err = p.session(ctx, func(conn *pgx.Conn) error { return execute(ctx, conn, "create database "+databaseName) }); err != nil {
			err = fmt.Errorf("database %s: %w", databaseName, err)
		}
	}
	return explainDisk(err, p.dir)
}

func (p *postgres) server() process.Server {
	socketDir := p.dir
	if len(socketDir) > socketDirLimit {
		socketDir = "" // loopback only
	}
	argv := []string{
		filepath.Join(p.PostgresHome, "bin", "postgres"),
		"-D", p.data(), "-p", strconv.Itoa(p.port),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=" + socketDir,
		"-c", "max_connections=300",
		"-c", "wal_level=" + map[bool]string{false: "replica", true: "logical"}[p.Logical],
		"-c", "track_commit_timestamp=on",
		"-c", "dynamic_shared_memory_type=mmap", // in the data directory, and removed with it
		"-c", "wal_keep_size=" + walKept,
		"-c", "wal_retrieve_retry_interval=100ms",
	}
	if p.Quick { // a killed server loses nothing by it, only a killed machine does
		argv = append(argv, "-c", "fsync=off", "-c", "max_wal_size=512MB")
	}
	return process.Server{
		Name: "PostgreSQL", Dir: p.dir, Log: filepath.Join(p.dir, serverLog), Argv: append(argv, p.sslSettings()...), As: p.Account.credential(), OnEnd: p.onEnd,
		DeathSignal: syscall.SIGQUIT, // the postmaster takes its backends, which are in sessions of their own, along
		Ask:         stopInOrder(),
	}
}

// ready also asks whose data this is: on the port may be another server.
func (p *postgres) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return p.session(ctx, func(conn *pgx.Conn) error {
		var data string
		if err := conn.QueryRow(ctx, "show data_directory").Scan(&data); err != nil || data == p.data() {
			return err
		}
		return errAnother
	})
}

// session calls do with a session of the superuser.
func (p *postgres) session(ctx context.Context, do func(*pgx.Conn) error) error {
	return Session(ctx, p.database("postgres"), do)
}

// Session calls do with a session of its own.
func Session(ctx context.Context, url string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return do(conn)
}

// Answers returns an error unless a PostgreSQL accepts a session.
func Answers(ctx context.Context, url string) error {
	return Session(ctx, url, func(*pgx.Conn) error { return nil })
}

func execute(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// stopInOrder is a fast shutdown, then an immediate one.
func stopInOrder() []process.Step {
	return []process.Step{{Signal: syscall.SIGINT, Wait: 5 * time.Second}, {Signal: syscall.SIGQUIT, Wait: 6 * time.Second}}
}

func (p *postgres) stop() { p.end(stopInOrder()...) }

// quit is an immediate shutdown: backends end without a word to anybody, nothing is
// checkpointed, and the next start recovers from the log.
func (p *postgres) quit() { p.end(process.Step{Signal: syscall.SIGQUIT, Wait: 6 * time.Second}) }

// kill ends the postmaster and its backends, which are in sessions of their own, as a
// crash of the machine would.
func (p *postgres) kill() {
	if !p.runs() {
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
