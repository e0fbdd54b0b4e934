package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// peers returns the certificates that the other side of a connection has shown.
func peers(c net.Conn) []*x509.Certificate {
	if secured, ok := c.(*tls.Conn); ok {
		return secured.ConnectionState().PeerCertificates
	}
	return nil
}

// expiringOf names the certificates that are over, or soon will be.
func (e *examination) expiringOf(check, where string, certificates []*x509.Certificate) {
	for _, c := range certificates {
		e.expiring(check, where, fmt.Sprintf("the certificate of %q", c.Subject.CommonName), c.NotAfter, e.expiry,
			"put a new one in place and `kill -HUP` each instance: docs/security.md, Rotation")
	}
}

// expiring names what is over, or will be within some time.
func (e *examination) expiring(check, where, what string, end time.Time, within time.Duration, remedy string) {
	severity := Warning
	var text string
	switch left := end.Sub(e.now); {
	case left <= 0:
		severity, text = Error, "expired "+ago(-left)+" ago"
	case left < within/4:
		severity, text = Error, "expires in "+ago(left)
	case left < within:
		text = "expires in " + ago(left)
	default:
		return
	}
	e.add(check, severity, where, fmt.Sprintf("%s %s, on %s", what, text, end.UTC().Format(time.DateOnly)), remedy)
}

// expiringKey names the API key of the configuration when it ends soon. A key may ask about itself, whatever its privileges.
func (e *examination) expiringKey(ctx context.Context, s *server) error {
	key, err := base64.StdEncoding.DecodeString(e.Config.Elastic.APIKey.Reveal())
	id, _, whole := strings.Cut(string(key), ":")
	if err != nil || !whole {
		return nil //nolint:nilerr // none, or one that a proxy understands
	}
	var answer struct {
		Keys []struct {
			Name string `json:"name"`
			End  int64  `json:"expiration"` // in milliseconds; 0 of one without an end
		} `json:"api_keys"`
	}
	if err := s.ask(ctx, http.MethodGet, "/_security/api_key?id="+url.QueryEscape(id), nil, &answer); err != nil {
		return insecure(err)
	}
	for _, k := range answer.Keys {
		if k.End > 0 {
			e.expiring("elastic.api_key", s.url.Host, fmt.Sprintf("the API key %q", k.Name), time.UnixMilli(k.End), e.keyExpiry,
				"make a new one with the same privileges (POST /_security/api_key), set elastic.api_key to it, and `kill -HUP` each instance: docs/security.md, Rotation")
		}
	}
	return nil
}

func (e *examination) expiringRaw(check, where string, chain [][]byte) {
	var all []*x509.Certificate
	for _, raw := range chain {
		if c, err := x509.ParseCertificate(raw); err == nil { // what cannot be read is refused where it is used
			all = append(all, c)
		}
	}
	e.expiringOf(check, where, all)
}

// expiringFile looks at the certificates of a PEM file for Elasticsearch; an empty path is none.
func (e *examination) expiringFile(path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var chain [][]byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			chain = append(chain, block.Bytes)
		}
	}
	e.expiringRaw("elastic.certificate", path, chain)
	return nil
}
