package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Kind is the kind of a fault.
type Kind uint8

// The kinds. The zero value is an error that is none of the others.
const (
	Unknown       Kind = iota
	Unreachable        // no server answers, or it is starting or stopping
	WrongPassword      // or an unknown role, or no rule that lets it in
	UnknownDatabase
	TLSRefused // the two sides disagree about TLS or a certificate
	TooManyConnections
	MissingMigration // a table or column is not there
	WrongEnvironment // see CheckEnvironment
	Pooler           // a pooler that does not keep a session together
	ReadOnly         // a standby server, or a read-only default
	PermissionDenied
	BadParameter // the URL carries a setting that the server does not know
)

var kindNames = [...]string{"unknown", "unreachable", "wrong_password", "unknown_database", "tls_refused",
	"too_many_connections", "missing_migration", "wrong_environment", "pooler", "read_only", "permission_denied", "bad_parameter"}

// String returns the kind's name.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Sentinels for callers that detect the fault themselves; Diagnose knows them.
var (
	ErrReadOnly  = errors.New("the server is read-only")
	ErrPooler    = errors.New("the connection goes through a pooler that does not keep a session together")
	ErrMigration = errors.New("the schema is not up to date")

	// errReadOnlyDefault is ErrReadOnly of a server that is no standby.
	errReadOnlyDefault = fmt.Errorf("%w by default_transaction_read_only", ErrReadOnly)
)

// SayBusy is what to do when a statement takes too long.
const SayBusy = "look for locks and load in pg_stat_activity, or raise WEFT_DB_TIMEOUT"

const (
	sayLocked  = "pg_locks shows who has it, pg_stat_activity or pg_prepared_xacts since when; wait until that has ended"
	sayPooler  = "weft needs a direct connection: point DATABASE_URL at Postgres itself, or at a pooler in session mode that passes startup parameters on"
	sayPool    = "raise its default_pool_size, or pool_size and max_db_connections where they are set, or lower WEFT_DB_MAX_CONNS"
	sayDefault = "ask who set it (pg_settings.source says where) before you change it, or point DATABASE_URL at the server that takes writes"
	sayRead    = "point DATABASE_URL at the primary, or add target_session_attrs=read-write when it names several hosts"
	sayUp      = "run `weft migrate up`, or correct search_path where the tables are in another schema"
	sayGrant   = "; or run `weft migrate grant`, where the role may not use their schema"
)

// sessionError is an error of a session that was open.
type sessionError struct {
	error
	where, role string // as " at HOST:PORT/DATABASE" and the user
}

func (e *sessionError) Unwrap() error { return e.error }

// In returns err so that [Diagnose] names the servers of the URL raw, and its role, where the error itself does
// not, as that of a statement. A nil err stays nil.
func In(raw string, err error) error {
	cfg, wrong := ParseURL(raw)
	if err == nil || wrong != nil {
		return err
	}
	return in(cfg.ConnConfig, err)
}

func in(cfg *pgx.ConnConfig, err error) error {
	if err == nil {
		return nil
	}
	var all []string
	for _, s := range servers(cfg) {
		all = append(all, Address(&pgconn.Config{Host: s[0].Host, Port: s[0].Port, Database: cfg.Database}))
	}
	return &sessionError{err, " at " + strings.Join(all, " or "), cfg.User}
}

// site is where an error arose.
type site struct {
	where  string         // as " at HOST:PORT/DATABASE"; empty when nobody knows
	role   string         // of a session that was open; empty when nobody knows
	opened *pgconn.Config // of a session that could not be opened; nil for others
}

func siteOf(err error) (s site) {
	if open, ok := errors.AsType[*sessionError](err); ok {
		s.where, s.role = open.where, open.role
	}
	if ce, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		s = site{where: " at " + Address(ce.Config), opened: ce.Config}
	}
	return s
}

// as returns the role after a preposition, or nothing.
func (s site) as(preposition string) string {
	if s.role == "" {
		return ""
	}
	return " " + preposition + " role " + s.role
}

// Diagnose returns one line with the meaning of err and its remedy. The message
// never holds a password. An error that it does not know is Unknown with its own
// text on one line; nil is Unknown with no text.
func Diagnose(err error) (Kind, string) {
	if err == nil {
		return Unknown, ""
	}
	at := siteOf(err)
	for _, diagnose := range []func(error, site) (Kind, string){diagnoseOwn, diagnoseServer, diagnoseClient} {
		if k, msg := diagnose(err, at); k != Unknown {
			return k, msg
		}
	}
	return Unknown, oneLine(err.Error())
}

func diagnoseOwn(err error, at site) (Kind, string) {
	if e, ok := errors.AsType[*EnvironmentError](err); ok {
		return WrongEnvironment, e.Error()
	}
	switch {
	case errors.Is(err, errReadOnlyDefault):
		return ReadOnly, "Postgres" + at.where + " takes no writes, although it is no standby: default_transaction_read_only is on; " + sayDefault
	case errors.Is(err, ErrReadOnly):
		return ReadOnly, "Postgres" + at.where + " is read-only (a standby server, or default_transaction_read_only is on): " + sayRead
	case errors.Is(err, ErrPooler):
		return Pooler, "a transaction-pooling proxy stands before Postgres: " + sayPooler
	case errors.Is(err, ErrMigration):
		return MissingMigration, oneLine(err.Error()) + ": " + sayUp + sayGrant
	}
	return Unknown, ""
}

func diagnoseServer(err error, at site) (Kind, string) {
	pe, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return Unknown, ""
	}
	said, where, cfg := oneLine(pe.Message), at.where, at.opened
	switch pe.Code {
	case "28P01":
		remedy := "correct the password in DATABASE_URL, or in the file that it is read from, which running instances read at SIGHUP"
		if showsCertificate(cfg) { // the server blames the password for a certificate of another name, too
			remedy += ", or show a certificate whose common name is the user"
		}
		return WrongPassword, fmt.Sprintf("Postgres%s refuses the password: %s; %s", where, said, remedy)
	case "28000":
		if noTLS(said) {
			return TLSRefused, fmt.Sprintf("Postgres%s accepts no unencrypted connection: %s; set sslmode=require (or stricter) in DATABASE_URL", where, said)
		}
		switch {
		case strings.Contains(said, "valid client certificate") && showsCertificate(cfg):
			return TLSRefused, fmt.Sprintf("Postgres%s does not take our certificate: %s; name one as sslcert and sslkey in DATABASE_URL that an authority in its ssl_ca_file has made", where, said)
		case strings.Contains(said, "valid client certificate"):
			return TLSRefused, fmt.Sprintf("Postgres%s asks for a client's certificate: %s; name it and its key as sslcert and sslkey in DATABASE_URL", where, said)
		}
		return WrongPassword, fmt.Sprintf("Postgres%s does not let this user in: %s; correct the user in DATABASE_URL, or pg_hba.conf", where, said)
	case "3D000":
		return UnknownDatabase, fmt.Sprintf("Postgres%s: %s; correct the name in DATABASE_URL, or create the database", where, said)
	case "53300":
		return TooManyConnections, fmt.Sprintf("Postgres%s has no connection left: %s; raise %s, or lower WEFT_DB_MAX_CONNS", where, said, connectionLimit(pe))
	case "55000":
		if cfg != nil {
			return Unreachable, fmt.Sprintf("Postgres%s lets nobody in: %s; open it with `alter database … allow_connections true`", where, said)
		}
	case "53000":
		return Unreachable, fmt.Sprintf("Postgres%s cannot take a connection: %s; free memory on its host, or raise the limit on its processes", where, said)
	case "53100", "53200":
		if pe.File == "lock.c" {
			return Unreachable, fmt.Sprintf("Postgres%s has no room for another lock: %s; raise max_locks_per_transaction and restart it, or remove days of a long history with `weft prune`", where, said)
		}
		return Unreachable, fmt.Sprintf("Postgres%s has run out of disk or memory: %s; free some on its host", where, said)
	case "53400":
		return Unreachable, fmt.Sprintf("Postgres%s ended a statement at a limit of its settings: %s; raise that limit", where, said)
	case "57P01", "57P02":
		return Unreachable, fmt.Sprintf("Postgres%s has ended the session: %s; try again, or look at its log", where, said)
	case "57P03":
		return Unreachable, fmt.Sprintf("Postgres%s is not accepting connections: %s; wait for it, or look at its log", where, said)
	case "57014":
		return Unreachable, fmt.Sprintf("Postgres%s did not end a statement in time: %s; %s", where, said, SayBusy)
	case "55P03":
		return Unreachable, fmt.Sprintf("Postgres%s did not grant a lock in time: %s; %s", where, said, sayLocked)
	case "42703":
		return MissingMigration, fmt.Sprintf("the schema is not up to date: %s; %s", said, sayUp)
	case "42P01", "3F000": // PostgreSQL also calls what is in a schema without usage missing
		return MissingMigration, fmt.Sprintf("the schema is not up to date: %s; %s", said, sayUp+sayGrant)
	case "25006":
		return ReadOnly, fmt.Sprintf("Postgres%s is read-only (a standby server, or default_transaction_read_only is on): %s; %s", where, said, sayRead)
	case "42501":
		if pe.Routine == "check_enable_rls" {
			return PermissionDenied, fmt.Sprintf("Postgres%s would hide rows%s: %s; let the role bypass row security, as in `alter role … bypassrls`, or disable it for the table", where, at.as("from"), said)
		}
		grant := "weft migrate grant"
		if strings.Contains(said, "weft_mend") {
			grant += " ROLE --verify-repair repair"
		}
		return PermissionDenied, fmt.Sprintf("Postgres%s denies permission%s: %s; grant it to the user of DATABASE_URL, as with `%s`, or use the owner of the tables", where, at.as("to"), said, grant)
	case "26000", "42P05":
		return Pooler, fmt.Sprintf("a transaction-pooling proxy stands before Postgres (%s): %s", said, sayPooler)
	case "08P01":
		if strings.Contains(said, "startup parameter") {
			return Pooler, fmt.Sprintf("a connection pooler%s refuses the session's settings (%s): point DATABASE_URL at Postgres itself, or name the setting in ignore_startup_parameters of a PgBouncer in session mode", where, said)
		}
	}
	if cfg != nil && (pe.Code == "42704" || pe.Code == "22023") {
		return BadParameter, fmt.Sprintf("Postgres%s refuses a parameter of DATABASE_URL: %s; correct it or leave it out", where, said)
	}
	if cfg != nil { // PgBouncer has its own texts, under the codes of a broken protocol
		switch {
		case strings.Contains(said, "no such database"):
			return UnknownDatabase, fmt.Sprintf("the pooler%s does not know the database: %s; correct the name in DATABASE_URL", where, said)
		case strings.Contains(said, "password authentication failed"), strings.Contains(said, "no such user"):
			return WrongPassword, fmt.Sprintf("the pooler%s refuses the password: %s; correct DATABASE_URL", where, said)
		case strings.Contains(said, "max_client_conn"):
			return TooManyConnections, fmt.Sprintf("the pooler%s takes no more clients: %s; raise its max_client_conn, or lower WEFT_DB_MAX_CONNS", where, said)
		case strings.Contains(said, "query_wait_timeout"):
			return TooManyConnections, fmt.Sprintf("the pooler%s has no connection to PostgreSQL left: %s; %s", where, said, sayPool)
		}
	}
	return Unknown, ""
}

// connectionLimit names the limit that the server means, in whatever language its messages are.
func connectionLimit(pe *pgconn.PgError) string {
	switch pe.Routine {
	case "InitializeSessionUserId":
		return "the connection limit of the role (alter role … connection limit)"
	case "CheckMyDatabase":
		return "the connection limit of the database (alter database … connection limit)"
	default:
		return "max_connections"
	}
}

func noTLS(said string) bool {
	return strings.Contains(said, "no encryption") || strings.Contains(said, "SSL off")
}

func diagnoseClient(err error, at site) (Kind, string) {
	var (
		dns *net.DNSError
		op  *net.OpError
	)
	where, opening := at.where, at.opened != nil
	if remedy := handshakeRemedy(err); remedy != "" {
		return TLSRefused, fmt.Sprintf("the TLS handshake with Postgres%s fails: %s; %s", where, cause(err), remedy)
	}
	_, answered := errors.AsType[*pgconn.PgError](err) // without TLS
	switch {
	case !answered && strings.Contains(err.Error(), "server refused TLS connection"):
		return TLSRefused, fmt.Sprintf("Postgres%s offers no TLS: set sslmode=disable in DATABASE_URL, or turn ssl on in postgresql.conf", where)
	case errors.Is(err, pgconn.ErrReadOnlyConnection), errors.Is(err, pgconn.ErrStandbyConnection):
		return ReadOnly, fmt.Sprintf("every Postgres server%s is read-only: %s", where, sayRead)
	case errors.As(err, &dns):
		return Unreachable, fmt.Sprintf("the host of Postgres%s is not known: correct it in DATABASE_URL, or the name service", where)
	case errors.Is(err, syscall.ECONNREFUSED):
		return Unreachable, fmt.Sprintf("nothing listens%s: start Postgres, or correct host and port in DATABASE_URL", where)
	case opening && strings.Contains(err.Error(), "AfterConnect") && errors.Is(err, context.DeadlineExceeded):
		return Unreachable, fmt.Sprintf("Postgres%s lets weft in and answers no statement: look at the server; where a pooler stands before it that has no connection left, %s", where, sayPool)
	case opening && (errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err)):
		return Unreachable, fmt.Sprintf("no answer from Postgres%s in time: check the network, the firewall and the server", where)
	case errors.As(err, &op), opening && !errors.Is(err, context.Canceled):
		return Unreachable, fmt.Sprintf("Postgres%s cannot be reached: %s", where, cause(err))
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, pgconn.ErrConnClosed):
		return Unreachable, fmt.Sprintf("the connection to Postgres%s%s was closed on the way (%s): look at its log, or at a proxy before it", where, at.as("as"), cause(err))
	}
	return Unknown, ""
}

// handshakeRemedy returns the remedy for a TLS handshake that failed; nothing for other
// errors.
func handshakeRemedy(err error) string {
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		verify  *tls.CertificateVerificationError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &name):
		return "correct the host in DATABASE_URL, or have the server's certificate made for it"
	case errors.As(err, &unknown):
		return "name the authority that signed the server's certificate as sslrootcert in DATABASE_URL"
	case errors.As(err, &verify):
		return "the server needs another certificate, or DATABASE_URL another sslrootcert"
	case strings.Contains(err.Error(), "remote error: tls: "): // an alert, whose type is not exported
		return "the server does not take our certificate: correct sslcert and sslkey in DATABASE_URL"
	case errors.As(err, &record), strings.Contains(err.Error(), "tls: "):
		return "correct sslmode and sslrootcert in DATABASE_URL"
	}
	return ""
}

func showsCertificate(cfg *pgconn.Config) bool {
	return cfg != nil && cfg.TLSConfig != nil && len(cfg.TLSConfig.Certificates) > 0
}

// cause returns the text of the innermost error of a chain, which holds neither
// the user nor the settings of a connection.
func cause(err error) string {
	for {
		if j, ok := err.(interface{ Unwrap() []error }); ok {
			es := j.Unwrap()
			if len(es) == 0 {
				return oneLine(err.Error())
			}
			err = es[len(es)-1]
			continue
		}
		next := errors.Unwrap(err)
		if next == nil {
			return oneLine(err.Error())
		}
		err = next
	}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
