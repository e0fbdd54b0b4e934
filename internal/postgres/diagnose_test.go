package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

const password = "Zz9hunter2Zz9"

// with returns the URL dsn after change.
func with(t *testing.T, dsn string, change func(u *url.URL, q url.Values)) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	change(u, q)
	u.RawQuery = q.Encode()
	return u.String()
}

// role makes a role with the given attributes and drops it when the test ends.
func role(t *testing.T, dsn, attributes string) string {
	t.Helper()
	name := "weft_e_" + strings.ToLower(rand.Text()[:12])
	pool := testenv.Pool(t, dsn)
	if _, err := pool.Exec(t.Context(), "create role "+name+" login "+attributes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "drop role "+name); err != nil {
			t.Errorf("drop role: %v", err)
		}
	})
	return name
}

// use connects and runs sql, and returns the first error.
func use(t *testing.T, dsn, sql string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := postgres.Connect(ctx, dsn, postgres.Options{})
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(ctx, sql)
	return err
}

func TestDiagnoseRealServer(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		fail func(t *testing.T, dsn string) error
		kind postgres.Kind
		want string
	}{
		{"StatementTimeout", func(t *testing.T, dsn string) error {
			return use(t, dsn, "set statement_timeout = 1; select pg_sleep(60)")
		}, postgres.Unreachable, "Postgres did not end a statement in time: canceling statement due to statement timeout; look for locks"},
		{"Refused", func(t *testing.T, dsn string) error {
			t.Helper()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			addr := ln.Addr().String()
			ln.Close() // nobody listens on it now
			return use(t, with(t, dsn, func(u *url.URL, _ url.Values) { u.Host = addr }), "select 1")
		}, postgres.Unreachable, "start Postgres, or correct host and port in DATABASE_URL"},
		{"UnknownHost", func(t *testing.T, dsn string) error {
			t.Helper()
			return use(t, with(t, dsn, func(u *url.URL, _ url.Values) { u.Host = "nowhere.invalid:5432" }), "select 1")
		}, postgres.Unreachable, "host of Postgres at nowhere.invalid:5432/"},
		{"UnknownDatabase", func(t *testing.T, dsn string) error {
			t.Helper()
			return use(t, with(t, dsn, func(u *url.URL, _ url.Values) { u.Path = "/nowhere" }), "select 1")
		}, postgres.UnknownDatabase, `database "nowhere" does not exist; correct the name in DATABASE_URL`},
		{"ClosedDatabase", func(t *testing.T, dsn string) error { // the attempt with TLS, which the server does not offer, is not the reason
			t.Helper()
			return use(t, with(t, dsn, func(u *url.URL, q url.Values) { u.Path = "/template0"; q.Set("sslmode", "prefer") }), "select 1")
		}, postgres.Unreachable, `database "template0" is not currently accepting connections; open it with`},
		{"UnknownRole", func(t *testing.T, dsn string) error {
			t.Helper()
			return use(t, with(t, dsn, func(u *url.URL, _ url.Values) { u.User = url.UserPassword("weft_nobody", password) }), "select 1")
		}, postgres.WrongPassword, "weft_nobody"},
		{"NoTLS", func(t *testing.T, dsn string) error {
			t.Helper()
			return use(t, with(t, dsn, func(_ *url.URL, q url.Values) { q.Set("sslmode", "require") }), "select 1")
		}, postgres.TLSRefused, "offers no TLS: set sslmode=disable"},
		{"UnknownParameter", func(t *testing.T, dsn string) error {
			t.Helper()
			return use(t, with(t, dsn, func(_ *url.URL, q url.Values) { q.Set("sslmod", "disable") }), "select 1")
		}, postgres.BadParameter, "sslmod"},
		{"TooManyConnections", func(t *testing.T, dsn string) error {
			t.Helper()
			name := role(t, dsn, "connection limit 0")
			return use(t, with(t, dsn, func(u *url.URL, _ url.Values) { u.User = url.UserPassword(name, password) }), "select 1")
		}, postgres.TooManyConnections, "raise the connection limit of the role (alter role … connection limit), or lower WEFT_DB_MAX_CONNS"},
		{"MissingTable", func(t *testing.T, dsn string) error {
			t.Helper()
			return use(t, dsn, "select * from weft_leader")
		}, postgres.MissingMigration, "run `weft migrate up`"},
		{"MissingColumn", func(t *testing.T, dsn string) error {
			t.Helper()
			return use(t, dsn, "create table x(a int); select epoch from x")
		}, postgres.MissingMigration, `column "epoch" does not exist; run`},
		{"ReadOnly", func(t *testing.T, dsn string) error {
			t.Helper()
			return use(t, with(t, dsn, func(_ *url.URL, q url.Values) { q.Set("default_transaction_read_only", "on") }), "create table x(a int)")
		}, postgres.ReadOnly, "point DATABASE_URL at the primary"},
		{"ReadOnlyServers", func(t *testing.T, dsn string) error {
			t.Helper()
			return use(t, with(t, dsn, func(u *url.URL, q url.Values) {
				u.Host += ",localhost:" + u.Port()
				q.Set("default_transaction_read_only", "on")
			}), "select 1")
		}, postgres.ReadOnly, "every Postgres server"},
		{"NotWritable", func(t *testing.T, dsn string) error {
			t.Helper()
			conn := connect(t, with(t, dsn, func(_ *url.URL, q url.Values) { q.Set("default_transaction_read_only", "on") }))
			return postgres.CheckWritable(t.Context(), conn)
		}, postgres.ReadOnly, "takes no writes, although it is no standby: default_transaction_read_only is on"},
		{"PermissionDenied", func(t *testing.T, dsn string) error {
			t.Helper()
			name := role(t, dsn, "")
			return use(t, with(t, dsn, func(u *url.URL, _ url.Values) { u.User = url.UserPassword(name, password) }), "select * from pg_authid")
		}, postgres.PermissionDenied, "grant it to the user of DATABASE_URL"},
		{"NoAnswer", func(t *testing.T, dsn string) error {
			t.Helper()
			ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel and says nothing
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err = postgres.Connect(ctx, with(t, dsn, func(u *url.URL, _ url.Values) { u.Host = ln.Addr().String() }), postgres.Options{})
			return err
		}, postgres.Unreachable, "in time: check the network"},
		{"WrongEnvironment", func(t *testing.T, dsn string) error {
			t.Helper()
			return postgres.CheckEnvironment(t.Context(), connect(t, dsn), "dev")
		}, postgres.WrongEnvironment, "WORDLOOM_ENV is dev, but database"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dsn := with(t, testenv.Schema(t), func(u *url.URL, _ url.Values) { u.User = url.UserPassword(u.User.Username(), password) })
			err := tc.fail(t, dsn)
			if err == nil {
				t.Fatal("got no error to diagnose")
			}
			checkDiagnosis(t, err, tc.kind, tc.want)
		})
	}
}

func checkDiagnosis(t *testing.T, err error, kind postgres.Kind, want string) {
	t.Helper()
	got, msg := postgres.Diagnose(fmt.Errorf("some work: %w", err))
	if got != kind {
		t.Errorf("kind: got %s, want %s, of %v", got, kind, err)
	}
	if !strings.Contains(msg, want) {
		t.Errorf("message: got %q, want %q in it", msg, want)
	}
	if strings.Contains(msg, password) || strings.Contains(msg, "\n") {
		t.Errorf("message shows the password or has several lines: %q", msg)
	}
}

// TestDiagnoseScripted plays servers that the test stack does not have.
func TestDiagnoseScripted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, code, message string
		kind                postgres.Kind
		want                string
	}{
		{"WrongPassword", "28P01", `password authentication failed for user "weft"`, postgres.WrongPassword, "correct the password in DATABASE_URL, or in the file that it is read from, which running instances read at SIGHUP"},
		{"NoRule", "28000", `no pg_hba.conf entry for host "10.0.0.1", user "weft", database "d", SSL encryption`, postgres.WrongPassword, "pg_hba.conf"},
		{"TLSWanted", "28000", `no pg_hba.conf entry for host "10.0.0.1", user "weft", database "d", no encryption`, postgres.TLSRefused, "sslmode=require"},
		{"Starting", "57P03", "the database system is starting up", postgres.Unreachable, "wait for it"},
		{"Full", "53300", "sorry, too many clients already", postgres.TooManyConnections, "raise max_connections"},
		{"PgBouncerParameter", "08P01", "unsupported startup parameter: statement_timeout", postgres.Pooler, "name the setting in ignore_startup_parameters"},
		{"PgBouncerDatabase", "3D000", "no such database: d", postgres.UnknownDatabase, "no such database: d"},
		{"PgBouncerOldDatabase", "08P01", "no such database: d", postgres.UnknownDatabase, "the pooler"},
		{"PgBouncerPassword", "08P01", "password authentication failed", postgres.WrongPassword, "the pooler"},
		{"PgBouncerClients", "08P01", "no more connections allowed (max_client_conn)", postgres.TooManyConnections, "raise its max_client_conn, or lower WEFT_DB_MAX_CONNS"},
		{"PgBouncerPool", "08P01", "query_wait_timeout", postgres.TooManyConnections, "raise its default_pool_size"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			addr := refuse(t, tc.code, tc.message)
			_, err := postgres.Connect(t.Context(), "postgres://weft:"+password+"@"+addr+"/d?sslmode=disable", postgres.Options{})
			if err == nil {
				t.Fatal("got no error")
			}
			checkDiagnosis(t, err, tc.kind, tc.want)
		})
	}
}

// refuse serves one connection: it reads the start of a session and answers with an
// error.
func refuse(t *testing.T, code, message string) string {
	t.Helper()
	return play(t, &pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: message})
}

// play is a server that answers one login with messages, and nothing more until the client goes.
func play(t *testing.T, messages ...pgproto3.BackendMessage) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		b := pgproto3.NewBackend(conn, conn)
		if _, err := b.ReceiveStartupMessage(); err != nil {
			return
		}
		for _, m := range messages {
			b.Send(m)
		}
		_ = b.Flush()
		_, _ = io.Copy(io.Discard, conn)
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

// A pooler lets clients in before it has a connection for them.
func TestLoginThatIsAnsweredAndNoStatement(t *testing.T) {
	t.Parallel()
	addr := play(t, &pgproto3.AuthenticationOk{}, &pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // dial and login included
	defer cancel()
	_, err := postgres.Connect(ctx, "postgres://weft:"+password+"@"+addr+"/d?sslmode=disable", postgres.Options{})
	if err == nil {
		t.Fatal("got no error")
	}
	checkDiagnosis(t, err, postgres.Unreachable, "lets weft in and answers no statement: look at the server; where a pooler stands before it that has no connection left, raise its default_pool_size")
}

func TestDiagnoseErrors(t *testing.T) {
	t.Parallel()
	pg := func(code, msg string) error { return &pgconn.PgError{Code: code, Message: msg} }
	checkDiagnosis(t, pg("26000", `prepared statement "stmtcache_1" does not exist`), postgres.Pooler, "point DATABASE_URL at Postgres itself")
	checkDiagnosis(t, pg("42P05", `prepared statement "stmtcache_1" already exists`), postgres.Pooler, "transaction-pooling")
	checkDiagnosis(t, postgres.ErrPooler, postgres.Pooler, "direct connection")
	checkDiagnosis(t, postgres.ErrReadOnly, postgres.ReadOnly, "primary")
	checkDiagnosis(t, postgres.ErrMigration, postgres.MissingMigration, "run `weft migrate up`, or correct search_path")
	checkDiagnosis(t, pg("40001", "could not serialize"), postgres.Unknown, "could not serialize")
	checkDiagnosis(t, pg("55P03", "canceling statement due to lock timeout"), postgres.Unreachable, "pg_stat_activity or pg_prepared_xacts since when; wait until that has ended")
	for want, german := range map[string]*pgconn.PgError{ // whatever the lc_messages of the server
		"raise max_locks_per_transaction":            {Code: "53200", File: "lock.c", Message: "Shared Memory erschöpft"},
		"did not end a statement in time":            {Code: "57014", Message: "storniere Anfrage wegen Zeitüberschreitung der Anfrage"},
		"raise the connection limit of the database": {Code: "53300", Routine: "CheckMyDatabase", Message: "zu viele Verbindungen für Datenbank »d«"},
	} {
		if kind, said := postgres.Diagnose(german); kind == postgres.Unknown || !strings.Contains(said, want) {
			t.Errorf("got %s %q, want %q", kind, said, want)
		}
	}
	checkDiagnosis(t, pg("53400", "temporary file size exceeds temp_file_limit (0kB)"), postgres.Unreachable, "temp_file_limit (0kB); raise that limit")
	checkDiagnosis(t, pg("53200", "out of memory"), postgres.Unreachable, "free some on its host")
	checkDiagnosis(t, pg("42501", "permission denied for function weft_mend"), postgres.PermissionDenied, "`weft migrate grant ROLE --verify-repair repair`")
	checkDiagnosis(t, errors.Join(errors.New("server refused TLS connection"), pg("P0001", "closed at night")), postgres.Unknown, "closed at night")
	checkDiagnosis(t, errors.New("two\nlines"), postgres.Unknown, "some work: two lines")
	checkDiagnosis(t, context.Canceled, postgres.Unknown, "canceled")
	if k, msg := postgres.Diagnose(nil); k != postgres.Unknown || msg != "" {
		t.Errorf("nil: got %s %q", k, msg)
	}
}

// A fault of an open session does not tell of which server and role it was.
func TestDiagnoseNamesServersAndRoleOfASession(t *testing.T) {
	t.Parallel()
	const dsn = "postgresql+psycopg://weft:" + password + "@a:5432,[::1]:5433/books?sslmode=prefer"
	for want, err := range map[string]error{
		"the connection to Postgres at a:5432/books or [::1]:5433/books as role weft was closed on the way (unexpected EOF)": io.ErrUnexpectedEOF,
		"Postgres at a:5432/books or [::1]:5433/books denies permission to role weft: no; grant it":                          &pgconn.PgError{Code: "42501", Message: "no"},
		"Postgres at a:5432/books or [::1]:5433/books did not end a statement in time":                                       &pgconn.PgError{Code: "57014", Message: "statement timeout"},
		"Postgres at a:5432/books or [::1]:5433/books is read-only":                                                          postgres.ErrReadOnly,
	} {
		if _, msg := postgres.Diagnose(fmt.Errorf("some work: %w", postgres.In(dsn, err))); !strings.HasPrefix(msg, want) || strings.Contains(msg, password) {
			t.Errorf("got %q, want %q", msg, want)
		}
	}
	if err := postgres.In(dsn, nil); err != nil {
		t.Errorf("no error: got %v", err)
	}
}

func TestKindNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for k := postgres.Unknown; k <= postgres.BadParameter; k++ {
		if n := k.String(); seen[n] || k != postgres.Unknown && n == "unknown" {
			t.Errorf("kind %d has the name %q of another", k, n)
		} else {
			seen[n] = true
		}
	}
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := postgres.Connect(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}
