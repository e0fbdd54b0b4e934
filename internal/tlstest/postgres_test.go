package tlstest

import (
	"context"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/postgres"
)

// Every way to be refused by PostgreSQL names what, where, and the remedy.
func TestPostgres(t *testing.T) {
	t.Parallel()
	a := role(t, unique(t, "weft"))
	other := authority(t, "another authority")
	otherCA := write(t, "other.pem", string(other.PEM()))
	otherCert, otherKey := issue(t, other, a.name)
	strangerCert, strangerKey := issue(t, shared.keys.Authority, "stranger")
	with := func(key, value string) func(*url.URL, url.Values) {
		return func(_ *url.URL, q url.Values) { q.Set(key, value) }
	}
	for _, tc := range []struct {
		name     string
		password string
		change   func(*url.URL, url.Values)
		kind     postgres.Kind
		want     []string // of the diagnosis
	}{
		{name: "LetIn"},
		{name: "WrongAuthority", change: with("sslrootcert", otherCA), kind: postgres.TLSRefused,
			want: []string{"TLS handshake", "signed by unknown authority", "sslrootcert"}},
		{name: "SystemAuthorities", change: func(_ *url.URL, q url.Values) { q.Del("sslrootcert") }, kind: postgres.TLSRefused,
			want: []string{"TLS handshake", "signed by unknown authority", "sslrootcert"}},
		{name: "WrongHost", change: func(u *url.URL, _ url.Values) { u.Host = "localhost:" + u.Port() }, kind: postgres.TLSRefused,
			want: []string{"localhost:", "correct the host in DATABASE_URL, or have the server's certificate made for it"}},
		{name: "NoTLS", change: with("sslmode", "disable"), kind: postgres.TLSRefused,
			want: []string{"no encryption", "sslmode=require"}},
		{name: "NoCertificate", change: func(_ *url.URL, q url.Values) { q.Del("sslcert"); q.Del("sslkey") }, kind: postgres.TLSRefused,
			want: []string{"asks for a client's certificate", "sslcert and sslkey in DATABASE_URL"}},
		{name: "CertificateOfAnotherAuthority", change: func(_ *url.URL, q url.Values) { q.Set("sslcert", otherCert); q.Set("sslkey", otherKey) }, kind: postgres.TLSRefused,
			want: []string{"does not take our certificate", "sslcert and sslkey in DATABASE_URL", "ssl_ca_file"}},
		{name: "CertificateOfAnotherUser", change: func(_ *url.URL, q url.Values) { q.Set("sslcert", strangerCert); q.Set("sslkey", strangerKey) }, kind: postgres.WrongPassword,
			want: []string{a.name, "a certificate whose common name is the user"}},
		{name: "WrongPassword", password: "guess", kind: postgres.WrongPassword,
			want: []string{a.name, "correct the password in DATABASE_URL"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dsn := a.url(t, "", tc.change)
			u, err := url.Parse(dsn)
			if err != nil {
				t.Fatal(err)
			}
			password := a.password
			if tc.password != "" {
				password = tc.password
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			conn, err := postgres.Connect(ctx, dsn+"&password="+url.QueryEscape(password), postgres.Options{})
			if tc.want == nil {
				if err != nil {
					t.Fatalf("got %v, want a connection", err)
				}
				defer func() { _ = conn.Close(ctx) }()
				var encrypted bool
				if err := conn.QueryRow(ctx, "select ssl from pg_stat_ssl where pid = pg_backend_pid()").Scan(&encrypted); err != nil || !encrypted {
					t.Errorf("encrypted: got %v, %v", encrypted, err)
				}
				return
			}
			if err == nil {
				_ = conn.Close(ctx)
				t.Fatal("got a connection, want none")
			}
			kind, text := postgres.Diagnose(err)
			if kind != tc.kind {
				t.Errorf("kind: got %s, want %s", kind, tc.kind)
			}
			for _, want := range append(tc.want, net.JoinHostPort(u.Hostname(), u.Port())) {
				if !strings.Contains(text, want) {
					t.Errorf("got %q, want %q in it", text, want)
				}
			}
			if strings.Contains(text, password) || strings.Contains(text, "\n") {
				t.Errorf("the password, or several lines: %q", text)
			}
		})
	}
}
