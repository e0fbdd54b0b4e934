package elastic

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"sync"
	"time"
)

// Access says how to verify the server and how to log in. The zero value trusts the
// system's certificate authorities and sends no credentials. At most one kind of
// credentials may be given.
type Access struct {
	Username, Password string
	APIKey             string // base64, as Elasticsearch hands it out
	ServiceToken       string

	// CA is the PEM of the authorities to trust instead of the system's.
	CA []byte
	// CAFingerprint is the SHA-256, in hex, of the authority's certificate, which the server
	// must send along; instead of CA. All else is checked as ever, the host name included.
	CAFingerprint string
	// ClientCert and ClientKey are PEM; both or none.
	ClientCert, ClientKey []byte
}

// header returns the value of Authorization, empty without credentials.
func (a Access) header() (string, error) {
	var given []string
	if a.Username != "" {
		given = append(given, "Basic "+base64.StdEncoding.EncodeToString([]byte(a.Username+":"+a.Password)))
	}
	if a.APIKey != "" {
		given = append(given, "ApiKey "+a.APIKey)
	}
	if a.ServiceToken != "" {
		given = append(given, "Bearer "+a.ServiceToken)
	}
	switch len(given) {
	case 0:
		return "", nil
	case 1:
		return given[0], nil
	default:
		return "", errors.New("several ways to log in: give a user, an API key or a service token")
	}
}

// who names the credentials for messages.
func (a Access) who() string {
	switch {
	case a.Username != "":
		return fmt.Sprintf("user %q", a.Username)
	case a.APIKey != "":
		return "the API key"
	case a.ServiceToken != "":
		return "the service token"
	case len(a.ClientCert) > 0:
		return "the client certificate"
	default:
		return "a client without credentials"
	}
}

func (a Access) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case a.CAFingerprint != "":
		want, err := hex.DecodeString(a.CAFingerprint)
		if err != nil || len(want) != sha256.Size {
			return nil, errors.New("fingerprint: want the 64 hexadecimal digits of a SHA-256")
		}
		c.InsecureSkipVerify = true // by the library, which does not know the authority; pinned does it
		c.VerifyConnection = func(s tls.ConnectionState) error { return pinned(s, want) }
	case len(a.CA) > 0:
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(a.CA) {
			return nil, errors.New("authorities: no PEM certificate among them")
		}
	}
	if len(a.ClientCert) > 0 || len(a.ClientKey) > 0 {
		pair, err := tls.X509KeyPair(a.ClientCert, a.ClientKey)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// errFingerprint means that no certificate of the server's chain is the one that is trusted.
var errFingerprint = errors.New("no certificate that the server sends has the configured fingerprint")

// pinned verifies the chain against the one certificate of it that has the fingerprint.
func pinned(s tls.ConnectionState, want []byte) error {
	opts := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), DNSName: s.ServerName}
	found := false
	for _, cert := range s.PeerCertificates {
		if sum := sha256.Sum256(cert.Raw); bytes.Equal(sum[:], want) {
			opts.Roots.AddCert(cert)
			found = true
		} else {
			opts.Intermediates.AddCert(cert)
		}
	}
	if !found || len(s.PeerCertificates) == 0 {
		return errFingerprint
	}
	_, err := s.PeerCertificates[0].Verify(opts)
	return err
}

// Transport is an [http.RoundTripper] for Config whose Access may be replaced while it is in
// use. Requests in flight end under the old one.
type Transport struct {
	mu      sync.RWMutex
	access  Access
	header  string
	through *http.Transport
}

// NewTransport connects to nothing yet.
func NewTransport(a Access) (*Transport, error) {
	t := &Transport{}
	if err := t.Change(a); err != nil {
		return nil, err
	}
	return t, nil
}

// Differs reports whether [Transport.Change] to a would change anything.
func (t *Transport) Differs(a Access) bool {
	_, _, now := t.current()
	return !reflect.DeepEqual(now, a)
}

// Change makes all later requests use a. It changes nothing when it returns an error.
func (t *Transport) Change(a Access) error {
	header, err := a.header()
	if err != nil {
		return fmt.Errorf("access to Elasticsearch: %w", err)
	}
	config, err := a.tls()
	if err != nil {
		return fmt.Errorf("access to Elasticsearch: %w", err)
	}
	next := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		OnProxyConnectResponse: connected,
		DialContext:            dial,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    5 * time.Second,
		ExpectContinueTimeout:  time.Second,
		MaxIdleConns:           32,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        60 * time.Second,
		DisableCompression:     true, // answers are small, and both ends pay for gzip in CPU
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         32 << 10,
	}
	t.mu.Lock()
	old := t.through
	t.access, t.header, t.through = a, header, next
	t.mu.Unlock()
	if old != nil {
		old.CloseIdleConnections()
	}
	return nil
}

// connected names the proxy of the environment that does not connect weft to Elasticsearch: the words of its answer alone
// read as those of the server.
func connected(_ context.Context, proxy *url.URL, _ *http.Request, answer *http.Response) error {
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	return &net.OpError{Op: "proxyconnect", Net: proxy.Host, Err: fmt.Errorf("the proxy answers %s: correct HTTPS_PROXY, or name the host in NO_PROXY", answer.Status)}
}

func (t *Transport) current() (*http.Transport, string, Access) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.through, t.header, t.access
}

// RoundTrip implements [http.RoundTripper]. A handshake that fails is explained, and a redirect is an error.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	through, header, access := t.current()
	if header != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", header)
	}
	res, err := through.RoundTrip(req)
	if err != nil {
		return nil, explained(err, req.URL.Host, access)
	}
	if err := redirected(res); err != nil {
		_ = res.Body.Close()
		return nil, err
	}
	return res, nil
}

// redirected returns an error for an answer that points to another address. weft does not follow it: the credentials are
// for the configured one, and a request to write must not become a GET. The path and the query may hold secrets.
func redirected(res *http.Response) error {
	to, err := res.Location()
	if res.StatusCode < 300 || res.StatusCode > 399 || err != nil {
		return nil
	}
	return fmt.Errorf("%w: %s redirects to %s://%s (status %d), and weft follows no redirect; write the address of the search server itself in ELASTIC_URL, or correct the proxy that it leads to",
		ErrProduct, res.Request.URL.Host, to.Scheme, to.Host, res.StatusCode)
}

// CloseIdleConnections closes connections that a caller believes to be dead.
func (t *Transport) CloseIdleConnections() {
	through, _, _ := t.current()
	through.CloseIdleConnections()
}
