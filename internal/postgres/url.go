package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// defaultConnectTimeout bounds one attempt to connect when the URL does not.
const defaultConnectTimeout = 5 * time.Second

var errURL = errors.New("not a valid Postgres URL: want postgres://user:password@host:5432/database, special characters of the password percent-encoded")

// Normalize turns SQLAlchemy's spelling (postgresql+psycopg://) into Postgres's
// own. libpq's keyword form is returned unchanged.
func Normalize(raw string) (string, error) {
	if strings.TrimSpace(raw) == "" {
		return "", errors.New("must not be empty")
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		if strings.Contains(raw, "=") {
			return raw, nil
		}
		return "", errURL
	}
	base, _, _ := strings.Cut(scheme, "+")
	switch strings.ToLower(base) {
	case "postgres", "postgresql":
		return "postgres://" + rest, nil
	}
	if strings.ContainsAny(scheme, " =") {
		return raw, nil // keyword form with a URL in one of its values
	}
	return "", errURL
}

// errExecMode refuses modes in which a parameter's type is guessed instead of asked for.
var errExecMode = errors.New("default_query_exec_mode must be one of cache_statement, cache_describe, describe_exec")

// ParseURL reads a URL or libpq's keyword form, with the PG* environment of libpq
// filling what is absent. The connections it describes use [Dial]. Its errors name
// no part of the password.
func ParseURL(raw string) (*pgxpool.Config, error) {
	norm, err := Normalize(raw)
	if err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(norm)
	if err != nil {
		return nil, parseError(err)
	}
	cc := cfg.ConnConfig
	if cutPassword(&cc.Config) {
		return nil, errURL
	}
	if m := cc.DefaultQueryExecMode; m == pgx.QueryExecModeExec || m == pgx.QueryExecModeSimpleProtocol {
		return nil, errExecMode
	}
	cc.DialFunc = readRefusals(Dial)
	cc.AfterConnect = begin
	cc.ConnectTimeout = cmp.Or(cc.ConnectTimeout, defaultConnectTimeout)
	if !namesTarget(norm) && severalHosts(&cc.Config) {
		cc.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return cfg, nil
}

// begin sets what a PgBouncer would refuse, or drop, in the start-up packet.
//
// What row security would hide is an error: a fence without a row would be that of a newer term, an outbox without events
// an idle one. Names of types are compared as they are written without quotes.
//
// The server translates texts where the database, or a setting of the role, has another encoding: weft would take them for
// UTF-8. A database in SQL_ASCII has no encoding, and would only refuse what is no UTF-8.
//
// A transaction_timeout, which servers before PostgreSQL 17 do not know, ends the session with the statement: weft bounds its
// statements itself, and repeats with less what took too long. An idle_session_timeout, unknown before PostgreSQL 14, would end
// the sessions of a pool between two statements; the lock session sets its own afterwards.
func begin(ctx context.Context, c *pgconn.PgConn) error {
	sql := "set row_security = off; set quote_all_identifiers = off; " +
		"select set_config(name, '0', false) from unnest(array['transaction_timeout', 'idle_session_timeout']) name where current_setting(name, true) is not null"
	if c.ParameterStatus("client_encoding") != "UTF8" && c.ParameterStatus("server_encoding") != "SQL_ASCII" {
		sql += "; set client_encoding to 'UTF8'"
	}
	_, err := c.Exec(ctx, sql).ReadAll()
	return err
}

// parseError answers with a text of our own: pgx masks the passwords it recognises,
// and what it cannot parse may hold one that it does not.
func parseError(err error) error {
	msg := err.Error()
	msg = msg[strings.LastIndex(msg, "`: ")+1:]
	for _, t := range []struct{ contains, say string }{
		{"sslmode is invalid", "sslmode must be one of disable, allow, prefer, require, verify-ca, verify-full"},
		{"target_session_attrs", "target_session_attrs must be one of any, read-write, read-only, primary, standby, prefer-standby"},
		{"connect_timeout", "connect_timeout must be a whole number of seconds"},
		{"invalid port", "the port must be a number from 1 to 65535, and special characters of the password percent-encoded"},
		{"port numbers to", "give one port, or one for each host"},
		{"CA", "the file of sslrootcert cannot be read, or holds no PEM certificate"},
		{`both "sslcert" and "sslkey"`, "sslcert and sslkey belong together; one of them is missing"},
		{"cert", "the files of sslcert and sslkey cannot be read"},
		{"sslkey", "the file of sslkey cannot be read, or sslpassword does not open it"},
		{"pool_", "a pool_ parameter cannot be read; leave it out and set WEFT_DB_MAX_CONNS"},
		{"service", "the service is not in the service file"},
	} {
		if strings.Contains(msg, t.contains) {
			return errors.New(t.say)
		}
	}
	return errURL
}

var targetParam = regexp.MustCompile(`(?:^|[?&\s])target_session_attrs\s*=`)

func namesTarget(norm string) bool {
	return targetParam.MatchString(norm) || os.Getenv("PGTARGETSESSIONATTRS") != ""
}

// severalHosts reports whether cfg names more than one server; the fallbacks of
// sslmode=prefer name the same one again.
func severalHosts(cfg *pgconn.Config) bool {
	for _, f := range cfg.Fallbacks {
		if f.Host != cfg.Host || f.Port != cfg.Port {
			return true
		}
	}
	return false
}

// cutPassword reports whether an unescaped @ of a password has made its rest the name of a host. A socket's name begins with one.
func cutPassword(cfg *pgconn.Config) bool {
	cut := strings.LastIndexByte(cfg.Host, '@') > 0
	for _, f := range cfg.Fallbacks {
		cut = cut || strings.LastIndexByte(f.Host, '@') > 0
	}
	return cut
}

// Address returns host:port/database for messages: no user, no password.
func Address(cfg *pgconn.Config) string {
	host := cfg.Host
	if strings.HasPrefix(host, "/") {
		return fmt.Sprintf("%s (port %d), database %s", host, cfg.Port, cfg.Database)
	}
	u := url.URL{Host: fmt.Sprintf("%s:%d", bracket(host), cfg.Port)}
	return u.Host + "/" + cfg.Database
}

func bracket(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}
