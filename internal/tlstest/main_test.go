package tlstest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/samuelhu324-dev/weft/internal/testenv/pki"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const heapMB = 400

// shared is what all tests use: the servers, set before the first test and never changed.
var shared struct {
	*stack.Stack
	keys *stack.Secured
}

func TestMain(m *testing.M) {
	stack.GuardIfAsked()
	_ = os.Setenv("PGCONNECT_TIMEOUT", "60") // a server that stands still for seconds has not gone
	var err error
	if shared.Stack, err = stack.Start(context.Background(), stack.Options{Secured: true, HeapMB: heapMB, Quick: true}); err != nil {
		fmt.Fprintln(os.Stderr, "secured servers:", err)
		os.Exit(1)
	}
	shared.keys = shared.Secured()
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent(), goleak.Cleanup(func(code int) {
		if err := shared.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "secured servers:", err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}

// write puts text into a file of its own, for nobody else to read.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func issue(t *testing.T, authority *pki.Authority, name string) (cert, key string) {
	t.Helper()
	pair, err := authority.Issue(name)
	if err == nil {
		cert, key, err = pair.Write(t.TempDir(), name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func authority(t *testing.T, name string) *pki.Authority {
	t.Helper()
	a, err := pki.New(name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// exec runs statements as the superuser in database.
func exec(t *testing.T, database string, statements ...string) {
	t.Helper()
	if err := execOn(t.Context(), superuser(t, database), statements...); err != nil {
		t.Fatal(err)
	}
}

func execOn(ctx context.Context, dsn string, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func superuser(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(shared.DatabaseURL())
	if err != nil {
		t.Fatal(err)
	}
	if database != "" {
		u.Path = "/" + database
	}
	return u.String()
}

// role makes a role with a password and a certificate.
func role(t *testing.T, name string) account {
	t.Helper()
	a := account{name: name, password: "pw&of=" + name, ca: write(t, "ca.pem", string(shared.keys.Authority.PEM()))}
	a.cert, a.key = issue(t, shared.keys.Authority, name)
	exec(t, "", "create role "+name+" login password '"+a.password+"'")
	t.Cleanup(func() {
		if err := execOn(context.Background(), superuser(t, ""), "drop role "+name); err != nil {
			t.Error(err)
		}
	})
	return a
}

// account is how a role of PostgreSQL logs in.
type account struct{ name, password, ca, cert, key string }

// url is that of database, without the password; change may be nil.
func (a account) url(t *testing.T, database string, change func(u *url.URL, q url.Values)) string {
	t.Helper()
	u, err := url.Parse(superuser(t, database))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(a.name)
	q := u.Query()
	q.Set("sslrootcert", a.ca)
	q.Set("sslcert", a.cert)
	q.Set("sslkey", a.key)
	if change != nil {
		change(u, q)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// unique is a name for a role or a database.
func unique(t *testing.T, prefix string) string {
	t.Helper()
	return prefix + "_" + strings.ToLower(strings.NewReplacer("/", "_", "Test", "").Replace(t.Name()))
}
