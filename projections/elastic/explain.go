package elastic

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
)

// handshakeError is a TLS handshake that failed, and what to do about it.
type handshakeError struct {
	host, remedy string
	err          error
}

func (e *handshakeError) Error() string {
	return fmt.Sprintf("the TLS handshake with Elasticsearch at %s fails: %s: %s", e.host, innermost(e.err), e.remedy)
}

func (e *handshakeError) Unwrap() error { return e.err }

func innermost(err error) string {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err.Error()
}

// explained adds what to do to the errors of a handshake, and leaves others alone.
func explained(err error, host string, a Access) error {
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
		op      *net.OpError
	)
	alert := errors.As(err, &op) && op.Op == "remote error" // the type of an alert is not exported
	failed := func(remedy string) error { return &handshakeError{host: host, remedy: remedy, err: err} }
	switch {
	case errors.Is(err, errFingerprint):
		return failed("correct ELASTIC_CA_FINGERPRINT (openssl x509 -fingerprint -sha256 -noout), and let the server send its authority's certificate along")
	case errors.As(err, &unknown) && len(a.CA) > 0:
		return failed("ELASTIC_CA_FILE holds another authority than the one that signed the server's certificate: correct it; running instances read it at SIGHUP")
	case errors.As(err, &unknown):
		return failed("name the authority that signed the server's certificate in ELASTIC_CA_FILE, or its fingerprint in ELASTIC_CA_FINGERPRINT")
	case errors.As(err, &name):
		return failed("correct the host name in ELASTIC_URL, or have the server's certificate made for it")
	case errors.As(err, &invalid):
		return failed("the server needs another certificate")
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return failed("it speaks no TLS: write http:// in ELASTIC_URL, or turn xpack.security.http.ssl on")
	case alert && len(a.ClientCert) == 0:
		return failed("if it asks for a client's certificate, name one in ELASTIC_CLIENT_CERT_FILE and ELASTIC_CLIENT_KEY_FILE")
	case alert:
		return failed("it does not take the certificate of ELASTIC_CLIENT_CERT_FILE: put a valid one there, of an authority that the server knows; running instances read it at SIGHUP")
	}
	return err
}

// ErrBlocked means that a block on the index or the cluster refuses a request.
var ErrBlocked = errors.New("blocked")

// blocks are the settings behind the names by which Elasticsearch calls the blocks of an index.
var blocks = []struct{ name, setting string }{
	{"index metadata (api)", "index.blocks.metadata"},
	{"index read (api)", "index.blocks.read"},
	{"index read-only (api)", "index.blocks.read_only"},
	{"index write (api)", "index.blocks.write"},
}

// blockedIndex finds the index in the words of Elasticsearch about a block.
var blockedIndex = regexp.MustCompile(`index \[([^\]]+)\] blocked by`)

// denied returns why the server answers 401 or 403 about an index: the credentials, or a block.
func (s *Sink) denied(index string, status int, e cause) error {
	detail := e.detail(status)
	if !e.blocked() {
		return refused(s.host(), status, detail, index, s.access())
	}
	if m := blockedIndex.FindStringSubmatch(detail); m != nil {
		index = m[1] // not what the request named, as an alias of several, or the name in use where another index was to be deleted
	}
	for _, b := range blocks {
		if e.has(b.name) {
			return fmt.Errorf("%w: %s of %q at %s is on (%s): ask who set it, then: PUT /%s/_settings {%q:null}", ErrBlocked, b.setting, index, s.host(), detail, index, b.setting)
		}
	}
	return fmt.Errorf("%w: a block of the cluster at %s refuses it (%s): look at the disks and at cluster.blocks in GET /_cluster/settings", ErrBlocked, s.host(), detail)
}

// refused returns why the server refuses a request, and what to do about it.
func refused(host string, status int, detail, index string, a Access) error {
	said := fmt.Sprintf("Elasticsearch at %s (%s)", host, detail)
	switch {
	case status == http.StatusForbidden && strings.Contains(detail, "cluster:monitor/"):
		return fmt.Errorf("%w: %s lacks a privilege on the cluster, says %s: grant the cluster privilege monitor, which a rebuild needs", ErrRefused, a.who(), said)
	case status == http.StatusForbidden:
		if detail == "status 403" { // Elasticsearch gives a reason
			said += ", or a proxy before it"
		}
		return fmt.Errorf("%w: %s lacks a privilege on %q, says %s: grant read, index, delete, view_index_metadata and monitor, and manage if weft is to create or rebuild the index",
			ErrRefused, a.who(), index, said)
	case a.Username != "":
		return fmt.Errorf("%w: %s does not let %s in: correct ELASTIC_USERNAME or ELASTIC_PASSWORD", ErrRefused, said, a.who())
	case a.APIKey != "":
		return fmt.Errorf("%w: %s does not take the API key: correct ELASTIC_API_KEY (the base64 form), or make a new one", ErrRefused, said)
	case a.ServiceToken != "":
		return fmt.Errorf("%w: %s does not take the service token: correct ELASTIC_SERVICE_TOKEN, or make a new one", ErrRefused, said)
	default:
		return fmt.Errorf("%w: %s asks who we are: give ELASTIC_USERNAME and ELASTIC_PASSWORD, ELASTIC_API_KEY or ELASTIC_SERVICE_TOKEN", ErrRefused, said)
	}
}

// ErrRefused means that the server does not accept the credentials, or that they give too
// few privileges.
var ErrRefused = errors.New("no access")

// IsAccess reports whether err is about credentials or certificates, which a retry does not
// fix.
func IsAccess(err error) bool {
	_, handshake := errors.AsType[*handshakeError](err)
	return handshake || errors.Is(err, ErrRefused)
}
