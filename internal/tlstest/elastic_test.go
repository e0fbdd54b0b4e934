package tlstest

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// sink is one on index at server, under a.
func sink(t *testing.T, server, index string, a elastic.Access) *elastic.Sink {
	t.Helper()
	transport, err := elastic.NewTransport(a)
	if err != nil {
		t.Fatal(err)
	}
	s, err := elastic.New(elastic.Config{URLs: []string{server}, Index: index, Transport: transport}, zaptest.NewLogger(t), prometheus.NewRegistry(), "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// use makes the index and puts one document into it.
func use(t *testing.T, s *elastic.Sink) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.EnsureIndex(ctx); err != nil {
		return err
	}
	ctx = outbox.WithAuthority(ctx, outbox.Authority{Group: "g", Epoch: 1, Check: func() error { return nil }})
	outcomes, err := s.Write(ctx, []elastic.Action{{ID: "d", Version: 1, Body: []byte(`{"text":"x"}`)}})
	if err != nil {
		return err
	}
	if len(outcomes) != 1 || outcomes[0].Verdict != outbox.Done {
		t.Errorf("outcomes: got %v, want done", outcomes)
	}
	return nil
}

// Every way to be refused by Elasticsearch names what, where, and the remedy.
func TestElastic(t *testing.T) {
	t.Parallel()
	keys := shared.keys
	base := elastic.Access{Username: keys.Weft.Name, Password: keys.Weft.Password, CA: keys.Authority.PEM()}
	with := func(change func(a *elastic.Access)) elastic.Access {
		a := base
		change(&a)
		return a
	}
	pair, err := keys.Authority.Issue("weft")
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(shared.ElasticURL(), "https://")
	_, port, _ := strings.Cut(address, ":")
	for _, tc := range []struct {
		name, server, index string
		access              elastic.Access
		want                []string
	}{
		{name: "User", index: "made-user", access: base},
		{name: "Fingerprint", index: "made-print", access: with(func(a *elastic.Access) { a.CA, a.CAFingerprint = nil, keys.Authority.Fingerprint() })},
		{name: "ClientCertificate", index: "made-client", access: with(func(a *elastic.Access) { a.ClientCert, a.ClientKey = pair.Cert, pair.Key })},
		{name: "ServiceToken", index: "search-token", access: elastic.Access{ServiceToken: keys.ServiceToken, CA: keys.Authority.PEM()}},

		{name: "WrongAuthority", access: with(func(a *elastic.Access) { a.CA = authority(t, "another").PEM() }),
			want: []string{"TLS handshake", address, "signed by unknown authority", "ELASTIC_CA_FILE holds another authority"}},
		{name: "SystemAuthorities", access: with(func(a *elastic.Access) { a.CA = nil }),
			want: []string{"TLS handshake", address, "signed by unknown authority", "name the authority", "ELASTIC_CA_FILE", "ELASTIC_CA_FINGERPRINT"}},
		{name: "WrongHost", server: "https://localhost:" + port, access: base,
			want: []string{"TLS handshake", "localhost:" + port, "correct the host name in ELASTIC_URL"}},
		{name: "WrongHostByFingerprint", server: "https://localhost:" + port, access: with(func(a *elastic.Access) { a.CA, a.CAFingerprint = nil, keys.Authority.Fingerprint() }),
			want: []string{"TLS handshake", "localhost:" + port, "correct the host name in ELASTIC_URL"}},
		{name: "WrongFingerprint", access: with(func(a *elastic.Access) { a.CA, a.CAFingerprint = nil, authority(t, "another").Fingerprint() }),
			want: []string{"TLS handshake", address, "fingerprint", "correct ELASTIC_CA_FINGERPRINT"}},
		{name: "PlainHTTP", server: "http://" + address, access: base, want: []string{"elasticsearch at " + address, "https:// in ELASTIC_URL"}},
		{name: "Nobody", access: elastic.Access{CA: keys.Authority.PEM()},
			want: []string{"no access", address, "asks who we are", "401", "ELASTIC_USERNAME"}},
		{name: "WrongPassword", access: with(func(a *elastic.Access) { a.Password = "guess" }),
			want: []string{"no access", address, `user "weft"`, "401", "correct ELASTIC_USERNAME or ELASTIC_PASSWORD"}},
		{name: "WrongToken", access: elastic.Access{ServiceToken: "AAEAAWVsYXN0aWM", CA: keys.Authority.PEM()},
			want: []string{"no access", address, "service token", "401", "correct ELASTIC_SERVICE_TOKEN"}},
		{name: "WrongAPIKey", access: elastic.Access{APIKey: "Zm9vOmJhcg==", CA: keys.Authority.PEM()},
			want: []string{"no access", address, "API key", "401", "correct ELASTIC_API_KEY"}},
		{name: "NoRightToCreate", index: "kept-missing", access: base,
			want: []string{"no access", address, `user "weft"`, "403", `"kept-missing-v1"`, "manage if weft is to create or rebuild the index"}},
		{name: "NoRights", index: "foreign", access: base,
			want: []string{"no access", address, `user "weft"`, "403", `"foreign"`, "grant read, index, delete, view_index_metadata and monitor"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			server, index := tc.server, tc.index
			if server == "" {
				server = shared.ElasticURL()
			}
			if index == "" {
				index = "made-refused"
			}
			err := use(t, sink(t, server, index, tc.access))
			if tc.want == nil {
				if err != nil {
					t.Errorf("got %v, want a document written", err)
				}
				return
			}
			if err == nil {
				t.Fatal("got no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want %q in it", err, want)
				}
			}
			if got, want := elastic.IsAccess(err), tc.name != "PlainHTTP"; got != want {
				t.Errorf("taken for a matter of access: got %v, want %v of %v", got, want, err)
			}
			if strings.Contains(err.Error(), "guess") || strings.Contains(err.Error(), keys.Weft.Password) {
				t.Errorf("the password is shown: %v", err)
			}
		})
	}
}

// recorder is a proxy before Elasticsearch that keeps the credentials of each request.
type recorder struct {
	mu   sync.Mutex
	seen []string
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// proxy passes requests on as the administrator, over TLS of its own that asks for a
// client's certificate.
func proxy(t *testing.T) (*httptest.Server, *recorder) {
	t.Helper()
	keys := shared.keys
	upstream, err := url.Parse(shared.ElasticURL())
	if err != nil {
		t.Fatal(err)
	}
	rec := &recorder{}
	pass := &httputil.ReverseProxy{
		Transport: keys.Client().Transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(upstream)
			r.Out.SetBasicAuth(keys.Admin.Name, keys.Admin.Password)
		},
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec.mu.Lock()
		rec.seen = append(rec.seen, r.Header.Get("Authorization"))
		rec.mu.Unlock()
		pass.ServeHTTP(w, r)
	}))
	pair, err := keys.Authority.Issue("proxy", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(keys.Authority.PEM())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert}
	server.Config.ErrorLog = zap.NewStdLog(zap.NewNop())
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, rec
}

// Elasticsearch's build for tests hands out no API keys: what is sent is seen at a proxy,
// from the first request on and, after a change, from the next one on.
func TestCredentialsOnTheWire(t *testing.T) {
	t.Parallel()
	server, rec := proxy(t)
	pair, err := shared.keys.Authority.Issue("weft")
	if err != nil {
		t.Fatal(err)
	}
	known := elastic.Access{CA: shared.keys.Authority.PEM(), ClientCert: pair.Cert, ClientKey: pair.Key}
	access := known
	access.APIKey = "b2xkOmtleQ=="
	transport, err := elastic.NewTransport(access)
	if err != nil {
		t.Fatal(err)
	}
	s, err := elastic.New(elastic.Config{URLs: []string{server.URL}, Index: "made-wire", Transport: transport}, zaptest.NewLogger(t), prometheus.NewRegistry(), "p")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := use(t, s); err != nil {
		t.Fatal(err)
	}
	before := rec.all()
	if len(before) < 3 || slices.ContainsFunc(before, func(h string) bool { return h != "ApiKey b2xkOmtleQ==" }) {
		t.Errorf("credentials: got %q, want the API key with each request", before)
	}
	for header, change := range map[string]func(a *elastic.Access){
		"ApiKey bmV3OmtleQ==": func(a *elastic.Access) { a.APIKey = "bmV3OmtleQ==" },
		"Bearer token":        func(a *elastic.Access) { a.ServiceToken = "token" },
		"Basic dTpw":          func(a *elastic.Access) { a.Username, a.Password = "u", "p" },
		"":                    func(*elastic.Access) {},
	} {
		next := known
		change(&next)
		if err := transport.Change(next); err != nil {
			t.Fatal(err)
		}
		n := len(rec.all())
		if err := use(t, s); err != nil {
			t.Fatal(err)
		}
		if after := rec.all()[n:]; len(after) == 0 || slices.ContainsFunc(after, func(h string) bool { return h != header }) {
			t.Errorf("credentials after the change: got %q, want %q", after, header)
		}
	}
	if err := transport.Change(elastic.Access{APIKey: "k", ServiceToken: "t"}); err == nil {
		t.Error("two ways to log in: got no error")
	}
	if err := transport.Change(elastic.Access{CA: []byte("no PEM")}); err == nil {
		t.Error("no authority: got no error")
	}
	if err := use(t, s); err != nil {
		t.Errorf("after a change that was refused: %v", err)
	}
}

// A server that asks for a client's certificate says so to one that has none, or one that
// it does not know.
func TestClientCertificateIsAskedFor(t *testing.T) {
	t.Parallel()
	server, _ := proxy(t)
	stranger, err := authority(t, "another").Issue("weft")
	if err != nil {
		t.Fatal(err)
	}
	for want, a := range map[string]elastic.Access{
		"name one in ELASTIC_CLIENT_CERT_FILE":                      {CA: shared.keys.Authority.PEM()},
		"does not take the certificate of ELASTIC_CLIENT_CERT_FILE": {CA: shared.keys.Authority.PEM(), ClientCert: stranger.Cert, ClientKey: stranger.Key},
	} {
		err := use(t, sink(t, server.URL, "made-refused", a))
		if err == nil || !strings.Contains(err.Error(), want) || !elastic.IsAccess(err) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

// The fingerprint of the server's own certificate is as good as that of its authority.
func TestFingerprintOfTheServer(t *testing.T) {
	t.Parallel()
	address := strings.TrimPrefix(shared.ElasticURL(), "https://")
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	leaf := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
	_ = conn.Close()
	if text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}); strings.Contains(string(shared.keys.Authority.PEM()), string(text)) {
		t.Fatal("the server shows its authority's certificate as its own")
	}
	sum := sha256.Sum256(leaf.Raw)
	keys := shared.keys
	s := sink(t, shared.ElasticURL(), "made-leaf", elastic.Access{Username: keys.Weft.Name, Password: keys.Weft.Password, CAFingerprint: hex.EncodeToString(sum[:])})
	if err := use(t, s); err != nil {
		t.Error(err)
	}
}
