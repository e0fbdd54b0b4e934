package postgres_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

func TestNormalize(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"postgres://h/d":                       "postgres://h/d",
		"postgresql://h/d":                     "postgres://h/d",
		"postgresql+psycopg://u:p@h/d?x=1":     "postgres://u:p@h/d?x=1",
		"POSTGRESQL+asyncpg://h/d":             "postgres://h/d",
		"host=h dbname=d":                      "host=h dbname=d",
		"host=h options='-c x=http://e' user=": "host=h options='-c x=http://e' user=",
	} {
		if got, err := postgres.Normalize(raw); err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", raw, got, err, want)
		}
	}
	for _, raw := range []string{"", " ", "mysql://h/d", "h:5432"} {
		if got, err := postgres.Normalize(raw); err == nil {
			t.Errorf("%q: got %q, want an error", raw, got)
		}
	}
}

func TestParseURL(t *testing.T) {
	t.Setenv("PGCONNECT_TIMEOUT", "") // tests wait for longer than the default
	cfg, err := postgres.ParseURL("postgresql+psycopg://u:p@h:6000/d?target_session_attrs=primary&pool_max_conns=3")
	if err != nil {
		t.Fatal(err)
	}
	cc := cfg.ConnConfig
	if cc.Host != "h" || cc.Port != 6000 || cc.Database != "d" || cc.User != "u" || cc.Password != "p" {
		t.Errorf("got %s:%d/%s as %s", cc.Host, cc.Port, cc.Database, cc.User)
	}
	if cc.ConnectTimeout != 5*time.Second {
		t.Errorf("connect timeout: got %v, want 5s", cc.ConnectTimeout)
	}
	if cc.ValidateConnect == nil {
		t.Error("target_session_attrs is lost")
	}
	if got := postgres.Address(&cc.Config); got != "h:6000/d" {
		t.Errorf("address: got %q", got)
	}
}

func TestParseURLServers(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]bool{ // whether a read-only server is refused
		"postgres://h/d?sslmode=disable":                               false,
		"postgres://h/d?sslmode=prefer":                                false, // the fallback is the same server
		"postgres://a,b/d?sslmode=disable":                             true,
		"postgres://a:1,a:2/d?sslmode=disable":                         true,
		"postgres://a,b/d?sslmode=disable&target_session_attrs=any":    false,
		"host=a,b dbname=d sslmode=disable target_session_attrs = any": false,
	} {
		cfg, err := postgres.ParseURL(url)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		if got := cfg.ConnConfig.ValidateConnect != nil; got != want {
			t.Errorf("%s: refuses read-only is %v, want %v", url, got, want)
		}
	}
}

func TestParseURLErrors(t *testing.T) {
	t.Parallel()
	const password = "Zz9hunter2Zz9"
	for url, want := range map[string]string{
		"postgres://u:" + password + "@h:x/d":                                "the port must be a number",
		"postgres://u:" + password + "%zz@h/d":                               "percent-encoded",
		"postgres://u:p@" + password + "@h/d":                                "percent-encoded",
		"postgres://u:p@x," + password + "@h/d":                              "percent-encoded",
		"postgres://u:" + password + "@h/d?sslmode=maybe":                    "sslmode must be one of",
		"postgres://u:" + password + "@h/d?target_session_attrs=x":           "target_session_attrs must be one of",
		"postgres://u:" + password + "@h/d?connect_timeout=soon":             "connect_timeout must be",
		"postgres://u:" + password + "@h/d?pool_max_conns=many":              "WEFT_DB_MAX_CONNS",
		"postgres://u:" + password + "@h/d?sslrootcert=/x&sslmode=verify-ca": "sslrootcert",
		"postgres://u:" + password + "@h/d?sslcert=/x":                       "sslcert",
		"postgres://u:" + password + "@h/d?default_query_exec_mode=exec":     "cache_describe",
		"host=a,b port=1,2,3 password=" + password:                           "one port, or one for each host",
		"host=h password='" + password:                                       "not a valid Postgres URL",
	} {
		_, err := postgres.ParseURL(url)
		if err == nil {
			t.Errorf("%s: got no error", strings.ReplaceAll(url, password, "…"))
			continue
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q, want %q in it", strings.ReplaceAll(url, password, "…"), err, want)
		}
		if strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error shows the password, or has several lines: %v", err)
		}
	}
}

func TestPoolSession(t *testing.T) {
	t.Parallel()
	pool, err := postgres.NewPool(t.Context(), testenv.Schema(t), postgres.Options{
		AppName: "weft/g/i/work", MaxConns: 2, Statement: 7 * time.Second, Lock: 1500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if got := pool.Config().MaxConns; got != 2 {
		t.Errorf("MaxConns: got %d, want 2", got)
	}
	for name, want := range map[string]string{
		"application_name": "weft/g/i/work", "statement_timeout": "7s", "lock_timeout": "1500ms",
		"idle_in_transaction_session_timeout": "5s", "tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2",
		"tcp_keepalives_count": "3", "tcp_user_timeout": "10000", "TimeZone": "UTC",
	} {
		var got string
		if err := pool.QueryRow(t.Context(), "select current_setting($1)", name).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestDialOptions(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := postgres.Dial(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	checkSocket(t, conn)
}
