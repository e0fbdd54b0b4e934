package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
)

// validate checks how Elasticsearch is reached: one way to log in, one to know the
// server, and nothing that an http:// URL would silently ignore.
func (e Elastic) validate(fail func(msg string, keys ...string)) {
	type means struct {
		what  string
		given bool
		keys  []string
	}
	user, pass := e.Username != "", e.Password != ""
	var given []means
	for _, m := range []means{
		{"the service token", e.ServiceToken != "", []string{"elastic.service_token"}},
		{"the API key", e.APIKey != "", []string{"elastic.api_key"}},
		{"user and password", user || pass, []string{"elastic.username", "elastic.password"}},
		{"a user in the URL", e.userInURL(), []string{"elastic.url"}},
	} {
		if m.given {
			given = append(given, m)
		}
	}
	if len(given) > 1 {
		fail(fmt.Sprintf("give either %s or %s, not both", given[0].what, given[1].what), append(given[0].keys, given[1].keys...)...)
	}
	if user != pass {
		fail("user and password belong together; one of them is missing", "elastic.username", "elastic.password")
	}

	for _, f := range []struct {
		key, path string
		check     func(string) error
	}{
		{"elastic.ca_file", e.CAFile, checkCA},
		{"elastic.client_cert_file", e.ClientCertFile, checkReadable},
		{"elastic.client_key_file", e.ClientKeyFile, checkReadable},
	} {
		if f.path == "" {
			continue
		}
		if err := f.check(f.path); err != nil {
			fail(fmt.Sprintf("file %q: %s", clip(f.path), err), f.key)
			return
		}
		if strings.HasPrefix(string(e.URL), "http://") {
			fail("has no effect: elastic.url begins with http://, so nothing is encrypted; write https://", f.key, "elastic.url")
			return
		}
	}
	switch {
	case e.CAFingerprint != "" && strings.HasPrefix(string(e.URL), "http://"):
		fail("has no effect: elastic.url begins with http://, so nothing is encrypted; write https://", "elastic.ca_fingerprint", "elastic.url")
	case e.CAFingerprint != "" && e.CAFile != "":
		fail("give either the file or the fingerprint, not both", "elastic.ca_fingerprint", "elastic.ca_file")
	}
	switch {
	case (e.ClientCertFile != "") != (e.ClientKeyFile != ""):
		fail("certificate and key belong together; one of them is missing", "elastic.client_cert_file", "elastic.client_key_file")
	case e.ClientCertFile != "":
		if _, err := tls.LoadX509KeyPair(e.ClientCertFile, e.ClientKeyFile); err != nil {
			fail(fmt.Sprintf("files %q and %q are no certificate with its key: %s", clip(e.ClientCertFile), clip(e.ClientKeyFile),
				strings.TrimPrefix(err.Error(), "tls: ")), "elastic.client_cert_file", "elastic.client_key_file")
		}
	}
}

// URLs returns the addresses of the nodes.
func (e Elastic) URLs() []string { return separate(string(e.URL)) }

func (e Elastic) userInURL() bool {
	u, err := url.Parse(e.URLs()[0])
	return err == nil && u.User != nil
}

// clearText says that credentials leave this machine unencrypted, or nothing.
func (e Elastic) clearText() string {
	if !slices.ContainsFunc(e.URLs(), func(raw string) bool {
		u, err := url.Parse(raw)
		return err == nil && u.Scheme == "http" && u.Hostname() != "localhost" && !net.ParseIP(u.Hostname()).IsLoopback()
	}) {
		return ""
	}
	if e.Password == "" && e.APIKey == "" && e.ServiceToken == "" && !e.userInURL() {
		return ""
	}
	return "elastic.url begins with http://: the credentials cross the network unencrypted; use https://"
}

func checkCA(path string) error {
	pem, err := os.ReadFile(path)
	if err != nil {
		return plainCause(err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		return errors.New("holds no PEM certificate")
	}
	return nil
}

func checkReadable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return plainCause(err)
	}
	return f.Close()
}

// parseFingerprint takes what openssl and Elasticsearch print: hexadecimal digits, with
// or without colons.
func parseFingerprint(s string) (string, error) {
	plain := strings.ToLower(strings.NewReplacer(":", "", " ", "").Replace(s))
	if b, err := hex.DecodeString(plain); err != nil || len(b) != 32 {
		return "", errors.New("want the SHA-256 of a certificate: 64 hexadecimal digits, colons allowed")
	}
	return plain, nil
}
