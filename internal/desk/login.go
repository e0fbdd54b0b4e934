package desk

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"
)

// login is how the web configuration has people log in.
type login struct {
	users map[string]string // name to the bcrypt hash of the password; none without basic auth
	tls   bool              // it has a certificate of the server
}

// readLogin reads the web configuration. It returns an error unless that asks for a login
// (users, or verified certificates of clients), and for TLS where tls is set.
func readLogin(path string, tls bool) (l login, err error) {
	if path == "" {
		return l, errors.New("that needs desk.web_config, with basic_auth_users and, off loopback, tls_server_config")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return l, fmt.Errorf("desk.web_config: %w", err)
	}
	var c struct {
		TLS struct {
			Cert       string `yaml:"cert"`
			CertFile   string `yaml:"cert_file"`
			ClientAuth string `yaml:"client_auth_type"`
			ClientCA   string `yaml:"client_ca"`
			ClientCAs  string `yaml:"client_ca_file"`
		} `yaml:"tls_server_config"`
		Users map[string]string `yaml:"basic_auth_users"`
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		return l, errors.New("desk.web_config cannot be parsed") // the error would quote the file
	}
	l = login{users: c.Users, tls: c.TLS.Cert+c.TLS.CertFile != ""}
	verified := c.TLS.ClientAuth == "RequireAndVerifyClientCert" && c.TLS.ClientCA+c.TLS.ClientCAs != ""
	switch {
	case tls && !l.tls:
		return l, errors.New("desk.web_config has no tls_server_config with a certificate")
	case len(c.Users) == 0 && !verified:
		return l, errors.New("desk.web_config has neither basic_auth_users nor RequireAndVerifyClientCert")
	}
	return l, nil
}

// person is who asks.
type person struct {
	Name     string // empty for somebody without a login
	Operator bool   // may act
}

// whois returns who asks. The name is that of the user whose password the web configuration
// verifies; without users in it, that of the verified client certificate: a client's
// Authorization header then says nothing. strict verifies the password a second time, because
// the file may have changed since the request was let in.
func (s *Server) whois(req *http.Request, strict bool) person {
	l, err := readLogin(s.o.WebConfig, false)
	if err != nil {
		return person{}
	}
	var name string
	if len(l.users) > 0 {
		user, password, _ := req.BasicAuth()
		hash, known := l.users[user]
		if !known || strict && bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil {
			return person{}
		}
		name = user
	} else if req.TLS != nil && len(req.TLS.VerifiedChains) > 0 {
		name = nameOf(req.TLS.VerifiedChains[0][0])
	}
	operators := strings.Split(s.o.Operators, ",")
	return person{Name: name, Operator: s.o.Actions && name != "" && slices.Contains(operators, name)}
}

// nameOf returns the first alternative name of a certificate: an address of e-mail, else a host
// name, else a URI.
func nameOf(c *x509.Certificate) string {
	names := slices.Concat(c.EmailAddresses, c.DNSNames)
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	if len(names) == 0 {
		return ""
	}
	return names[0]
}
