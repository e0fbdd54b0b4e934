package desk

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/testenv/pki"
)

func TestRequestForAnotherHostIsRefusedOnEveryPath(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for host, want := range map[string]int{
		"localhost": 200, "localhost:9109": 200, "LOCALHOST:1": 200, "127.0.0.1": 200, "[::1]:9109": 200, "[::1]": 200, "desk.example": 200, "Desk.Example:80": 200,
		"evil.example": 421, "evil.example:9109": 421, "localhost.evil.example": 421, "127.0.0.1.nip.io:9109": 421, "127.0.0.2": 421, "0.0.0.0:9109": 421, "[::]": 421, "": 421, "desk.example.": 421,
	} {
		for _, path := range paths {
			code, header, _ := r.get(t, path, func(req *http.Request) { req.Host = host })
			if path == "/nowhere" && want == 200 {
				want = 404
			}
			if code != want {
				t.Errorf("%s of host %q: got %d, want %d", path, host, code, want)
			}
			if header.Get("Content-Security-Policy") != policy || header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s of host %q: got header %v", path, host, header)
			}
		}
	}
}

func TestOtherMethodsThanGetAreRefused(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT"} {
		for _, path := range paths {
			code, header, _ := r.get(t, path, func(req *http.Request) { req.Method = method })
			if code != http.StatusMethodNotAllowed || header.Get("Allow") != "GET" {
				t.Errorf("%s %s: got %d and %q", method, path, code, header.Get("Allow"))
			}
		}
	}
}

func TestPolicyAllowsNothingInline(t *testing.T) {
	t.Parallel()
	if strings.Contains(policy, "unsafe") || !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("policy: %s", policy)
	}
	r := setup(t)
	r.lead(t, "a", 1)
	for _, path := range paths[:5] {
		body := r.page(t, path)
		for _, inline := range []string{"<script>", " style=", " onclick=", "javascript:", "<style"} {
			if strings.Contains(body, inline) {
				t.Errorf("%s holds %q", path, inline)
			}
		}
	}
}

// users is a web configuration for the user alice with the password fakepassword.
const users = "basic_auth_users:\n  alice: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi\n"

func TestAddressOffLoopbackNeedsTLSAndLogin(t *testing.T) {
	t.Parallel()
	certs := "tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n"
	for _, tc := range []struct{ name, listen, file, want string }{
		{"NoFile", "0.0.0.0:0", "", "needs desk.web_config"},
		{"AllAddresses", ":0", "", "needs desk.web_config"},
		{"UsersOnly", "0.0.0.0:0", users, "no tls_server_config"},
		{"CertificateOnly", "0.0.0.0:0", certs, "neither basic_auth_users nor RequireAndVerifyClientCert"},
		{"CertificatesAreAsked", "0.0.0.0:0", certs + "  client_auth_type: RequestClientCert\n", "neither basic_auth_users"},
		{"Both", "0.0.0.0:0", certs + users, ""},
		{"Loopback", "127.0.0.1:0", "", ""},
		{"LoopbackSix", "[::1]:0", "", ""},
		{"UnknownKey", "127.0.0.1:0", "no_such_key: 1\n", "desk.web_config"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := Options{Listen: tc.listen, Health: admin.NewHealth("g", "a"), Log: zap.NewNop()}
			if tc.file != "" {
				o.WebConfig = webConfig(t, tc.file)
			}
			s, err := Listen(t.Context(), o)
			if err == nil {
				s.Close()
			}
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// webConfig writes the file beside a certificate for 127.0.0.1.
func webConfig(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	authority, err := pki.New("desk")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue("desk", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := pair.Write(dir, "server"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "web.yml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDeskOffLoopbackAsksForTheLoginUntilItIsSwitchedOff(t *testing.T) {
	t.Parallel()
	file := webConfig(t, "tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n"+users)
	r := setup(t, func(o *Options) { o.Listen, o.WebConfig = "0.0.0.0:0", file })
	url, _ := r.running(t)
	url = "https://127.0.0.1" + url[strings.LastIndexByte(url, ':'):]
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	ask := func(user, password string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/settings", nil)
		if err != nil {
			t.Fatal(err)
		}
		if user != "" {
			req.SetBasicAuth(user, password)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for _, tc := range []struct {
		user, password string
		want           int
	}{{"", "", 401}, {"alice", "wrong", 401}, {"mallory", "fakepassword", 401}, {"alice", "fakepassword", 200}} {
		if got := ask(tc.user, tc.password); got != tc.want {
			t.Errorf("user %q: got %d, want %d", tc.user, got, tc.want)
		}
	}
	if err := os.WriteFile(file, []byte("tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ask("alice", "fakepassword"); got != http.StatusServiceUnavailable {
		t.Errorf("without users in the file: got %d, want 503", got)
	}
}
