package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	binaries     = "/usr/lib/postgresql/15/bin"
	startTimeout = time.Minute
	connections  = 4
)

// serverSettings returns the settings of PostgreSQL that are not its defaults.
func serverSettings() []string {
	return []string{"wal_level=logical", "max_connections=200", "shared_buffers=512MB", "max_wal_size=4GB"}
}

// postgres is a server of Debian's package in a directory of its own.
type postgres struct {
	server *program
	port   int
	admin  *pgxpool.Pool
}

// startPostgres makes a cluster below dir and starts it; root does it as the user postgres.
func startPostgres(ctx context.Context, dir string) (*postgres, error) {
	as, err := ordinaryUser()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "postgres")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	if as != nil {
		if err := errors.Join(os.Chmod(dir, 0o711), os.Chown(data, int(as.Uid), int(as.Gid))); err != nil {
			return nil, err
		}
	}
	initdb := exec.CommandContext(ctx, filepath.Join(binaries, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
	initdb.Dir, initdb.SysProcAttr = data, &syscall.SysProcAttr{Credential: as}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb of Debian's postgresql-15: %w\n%s", err, out)
	}
	p := &postgres{}
	if p.port, err = freePort(); err != nil {
		return nil, err
	}
	argv := []string{filepath.Join(binaries, "postgres"), "-D", data, "-k", data, "-c", "listen_addresses=127.0.0.1", "-p", strconv.Itoa(p.port)}
	for _, s := range serverSettings() {
		argv = append(argv, "-c", s)
	}
	if p.server, err = start(command{name: "postgres", dir: data, log: filepath.Join(dir, "postgres.log"), argv: argv, as: as}); err != nil {
		return nil, err
	}
	if p.admin, err = pgxpool.New(ctx, p.url("postgres")); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	if err := await(ctx, startTimeout, "start of PostgreSQL", func() (bool, error) { return p.admin.Ping(ctx) == nil, nil }); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// ordinaryUser returns whom root runs PostgreSQL as, and nil for everybody else.
func ordinaryUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("user of Debian's postgresql-15: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

func (p *postgres) url(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", p.port, database)
}

// stop ends the server: its data is worth nothing.
func (p *postgres) stop() error {
	if p.admin != nil {
		p.admin.Close()
	}
	return p.server.stop(syscall.SIGQUIT)
}

// database is a new database with a table item.
type database struct {
	*pgxpool.Pool
	name, url string
	port      int
}

// create makes a database for one measurement. Nobody drops it: the server goes soon.
func (p *postgres) create(ctx context.Context, name string) (*database, error) {
	db := &database{name: strings.ReplaceAll(name, "-", "_"), port: p.port}
	db.url = p.url(db.name)
	if _, err := p.admin.Exec(ctx, "create database "+pgx.Identifier{db.name}.Sanitize()); err != nil {
		return nil, fmt.Errorf("create database: %w", err)
	}
	config, err := pgxpool.ParseConfig(db.url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	if db.Pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	_, err = db.Exec(ctx, `create table item (id bigint primary key, title text not null, body text not null,
		price numeric(10,2) not null, updated_at timestamptz not null)`)
	return db, err
}

// insert writes the rows from first to last.
func (db *database) insert(ctx context.Context, first, last int64) error {
	_, err := db.Exec(ctx, `insert into item
		select n, 'item ' || n, repeat('the body of item ' || n || ' ', 9), (n % 100000) / 100.0, date_trunc('milliseconds', clock_timestamp())
		from generate_series($1::bigint, $2::bigint) n`, first, last)
	return err
}

// rows returns all rows.
func (db *database) rows(ctx context.Context) ([]row, error) {
	rows, err := db.Query(ctx, "select id, title, body, price::text, updated_at from item")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (i row, err error) {
		err = r.Scan(&i.id, &i.title, &i.body, &i.price, &i.updatedAt)
		return i, err
	})
}

// none returns whether a query counts nothing.
func (db *database) none(ctx context.Context, query string) (bool, error) {
	var n int
	err := db.QueryRow(ctx, query).Scan(&n)
	return n == 0, err
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}
