package postgres_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv/pki"
)

// A login sees what is new in a URL and behind it, takes it for new connections, and does
// not follow it to another place.
func TestLogin(t *testing.T) {
	t.Parallel()
	authority, err := pki.New("a")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	renew := func() (cert, key string) {
		t.Helper()
		pair, err := authority.Issue("weft")
		if err == nil {
			cert, key, err = pair.Write(dir, "weft")
		}
		if err == nil {
			err = os.WriteFile(ca, authority.PEM(), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return cert, key
	}
	cert, key := renew()
	url := "postgres://u:old@h:1,i:2/d?sslmode=verify-full&sslrootcert=" + ca + "&sslcert=" + cert + "&sslkey=" + key
	login, err := postgres.NewLogin(url)
	if err != nil {
		t.Fatal(err)
	}
	differs := func(raw string, want bool) {
		t.Helper()
		if got, err := login.Differs(raw); err != nil || got != want {
			t.Errorf("%s differs: got %v, %v, want %v", raw, got, err, want)
		}
	}
	differs(url, false)
	for _, change := range []string{"u:old@ u:new@", "u:old@ v:old@", "verify-full require", "&sslkey=" + key + " &sslpassword=x&sslkey=" + key} {
		from, to, _ := strings.Cut(change, " ")
		differs(strings.Replace(url, from, to, 1), !strings.Contains(to, "sslpassword"))
	}
	renew()
	differs(url, true)
	if err := login.Change(url); err != nil {
		t.Fatal(err)
	}
	differs(url, false)
	if authority, err = pki.New("a"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ca, authority.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	differs(url, true)

	for _, change := range []string{"@h:1 @g:1", ":2/ :3/", "/d? /e?", "?ssl ?search_path=s&ssl"} {
		from, to, _ := strings.Cut(change, " ")
		elsewhere := strings.Replace(url, from, to, 1)
		if err := login.Change(elsewhere); !errors.Is(err, postgres.ErrPlace) || strings.Contains(err.Error(), "old") {
			t.Errorf("%s: got %v, want ErrPlace", to, err)
		}
	}
	if err := login.Change(strings.Replace(url, ca, "/nowhere", 1)); err == nil || !strings.Contains(err.Error(), "sslrootcert cannot be read") {
		t.Errorf("missing file: got %v", err)
	}

	if err := login.Change(strings.Replace(url, "u:old", "v:new", 1)); err != nil {
		t.Fatal(err)
	}
	cfg, err := postgres.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	conn := cfg.ConnConfig
	if err := login.Apply(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if conn.User != "v" || conn.Password != "new" || conn.Host != "h" || len(conn.Fallbacks) != 1 {
		t.Errorf("got %s with %q at %s and %d more, want v, new, h and 1", conn.User, conn.Password, conn.Host, len(conn.Fallbacks))
	}
	first := conn.TLSConfig
	if first == nil || len(first.Certificates) != 1 || first.ServerName != "h" {
		t.Errorf("TLS: got %+v, want the client's certificate, and h as the server", first)
	}
}
