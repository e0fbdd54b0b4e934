package doctor

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
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
		severity, text := Warning, ""
		switch left := c.NotAfter.Sub(e.now); {
		case left <= 0:
			severity, text = Error, "expired "+ago(-left)+" ago"
		case left < e.expiry/4:
			severity, text = Error, "expires in "+ago(left)
		case left < e.expiry:
			text = "expires in " + ago(left)
		default:
			continue
		}
		e.add(check, severity, where, fmt.Sprintf("the certificate of %q %s, on %s", c.Subject.CommonName, text, c.NotAfter.UTC().Format(time.DateOnly)),
			"put a new one in place and `kill -HUP` each instance: docs/security.md, Rotation")
	}
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

// expiringFile looks at the certificates of a PEM file; an empty path is none.
func (e *examination) expiringFile(check, path string) error {
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
	e.expiringRaw(check, path, chain)
	return nil
}
