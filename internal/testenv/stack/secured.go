package stack

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/samuelhu324-dev/weft/internal/testenv/pki"
)

// What the servers of a secured stack are certified for: an address, no name.
const securedHost = "127.0.0.1"

// ServiceAccount may write to indexes named search-…; its token is [Secured.ServiceToken].
const ServiceAccount = "elastic/enterprise-search-server"

// Secured are the keys to servers that were started with [Options.Secured]. PostgreSQL
// takes TLS connections only, whose client shows a certificate with the user's name and
// knows the user's password; [Stack.DatabaseURL] is that of the superuser. Elasticsearch
// speaks TLS and knows four users and a service account.
type Secured struct {
	Authority *pki.Authority // of both servers' certificates, and the one that they trust

	// Of Elasticsearch. Weft and Changing may use kept-…, and make and rebuild indexes made-…; see
	// [Stack.SetElasticPassword]. Keeper has the least privileges with which weft runs and
	// verifies, on kept-… alone.
	Admin, Weft, Changing, Keeper Login
	ServiceToken                  string
}

// Login is a user and a password.
type Login struct{ Name, Password string }

// securedSpec is what the guardian needs of it.
type securedSpec struct {
	CA                []byte
	Postgres, Elastic pki.Pair // of the servers
	Superuser         pki.Pair // a client's
	Password          string   // of the superuser
	Admin             Login
	Files             map[string]string // of Elasticsearch's configuration
}

func newSecured() (*Secured, *securedSpec, error) {
	authority, err := pki.New("weft test authority")
	if err != nil {
		return nil, nil, err
	}
	token := rand.Text()
	s := &Secured{
		Authority: authority, Admin: Login{"weft_admin", rand.Text()}, Weft: Login{"weft", rand.Text()}, Changing: Login{"weft_changing", rand.Text()},
		Keeper:       Login{"weft_keeper", rand.Text()},
		ServiceToken: base64.StdEncoding.EncodeToString([]byte("\x00\x01\x00\x01" + ServiceAccount + "/weft:" + token)),
	}
	what := &securedSpec{CA: authority.PEM(), Password: rand.Text(), Admin: s.Admin}
	for _, c := range []struct {
		pair *pki.Pair
		name string
		host []string
	}{
		{&what.Postgres, "postgresql", []string{securedHost}},
		{&what.Elastic, "elasticsearch", []string{securedHost}},
		{&what.Superuser, "postgres", nil},
	} {
		if *c.pair, err = authority.Issue(c.name, c.host...); err != nil {
			return nil, nil, err
		}
	}
	users, err := usersFile(s.Admin, s.Weft, s.Changing, s.Keeper)
	if err != nil {
		return nil, nil, err
	}
	hash, err := passwordHash(token)
	if err != nil {
		return nil, nil, err
	}
	what.Files = map[string]string{
		"users":          users,
		"users_roles":    "superuser:" + s.Admin.Name + "\nweft:" + s.Weft.Name + "," + s.Changing.Name + "\nweft_keeper:" + s.Keeper.Name + "\n",
		"service_tokens": ServiceAccount + "/weft:" + hash + "\n",
		"roles.yml": `weft:
  cluster: ['monitor']
  indices:
    - names: ['kept-*', 'made-*']
      privileges: ['read', 'index', 'delete', 'view_index_metadata', 'monitor', 'maintenance']
    - names: ['made-*']
      privileges: ['manage']
weft_keeper:
  indices:
    - names: ['kept-*']
      privileges: ['read', 'index', 'delete', 'view_index_metadata', 'monitor']
`,
		"ca.pem": string(what.CA), "server.pem": string(what.Elastic.Cert), "server-key.pem": string(what.Elastic.Key),
	}
	return s, what, nil
}

func usersFile(logins ...Login) (string, error) {
	var b strings.Builder
	for _, l := range logins {
		hash, err := passwordHash(l.Password)
		if err != nil {
			return "", err
		}
		b.WriteString(l.Name + ":" + hash + "\n")
	}
	return b.String(), nil
}

// passwordHash is one of the forms that Elasticsearch's files take, with the fewest rounds.
func passwordHash(password string) (string, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		return "", fmt.Errorf("password hash: %w", err)
	}
	return string(hash), nil
}

// Secured is nil for a stack that asks for nothing.
func (s *Stack) Secured() *Secured { return s.secured }

// Client is an HTTP client that knows Elasticsearch's certificate.
func (s *Secured) Client() *http.Client { return trusting(s.Authority.PEM()) }

func trusting(ca []byte) *http.Client {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}}
}

// SetElasticPassword gives the user Changing of Elasticsearch another password; the server
// takes note within a second.
func (s *Stack) SetElasticPassword(password string) error {
	users, err := usersFile(s.secured.Admin, s.secured.Weft, Login{s.secured.Changing.Name, password}, s.secured.Keeper)
	if err != nil {
		return err
	}
	file := filepath.Join(s.guardian.last(Elastic).Dir, "config", "users")
	next := file + ".next"
	if err := os.WriteFile(next, []byte(users), 0o600); err != nil {
		return err
	}
	if err := serverAccount(os.Geteuid()).own(next); err != nil {
		return err
	}
	return os.Rename(next, file)
}

// secure has the cluster take TLS connections only, with a certificate and a password.
func (p *postgres) secure() error {
	for name, content := range map[string][]byte{
		"ca.pem": p.Secured.CA, "server.pem": p.Secured.Postgres.Cert, "server-key.pem": p.Secured.Postgres.Key,
		"pg_hba.conf": []byte("hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-full\n"),
	} {
		if err := p.write(filepath.Join(p.data(), name), content); err != nil {
			return err
		}
	}
	return nil
}

func (p *postgres) sslSettings() []string {
	if p.Secured == nil {
		return nil
	}
	return []string{"-c", "ssl=on", "-c", "ssl_ca_file=ca.pem", "-c", "ssl_cert_file=server.pem", "-c", "ssl_key_file=server-key.pem"}
}

func (p *postgres) securedURL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", p.Secured.Password),
		Host: fmt.Sprintf("%s:%d", securedHost, p.port), Path: "/" + database,
		RawQuery: url.Values{
			"sslmode": {"verify-full"}, "sslrootcert": {filepath.Join(p.clientDir, "ca.pem")},
			"sslcert": {filepath.Join(p.clientDir, "superuser.pem")}, "sslkey": {filepath.Join(p.clientDir, "superuser-key.pem")},
		}.Encode(),
	}
	return u.String()
}

// writeClientFiles are for the superuser of PostgreSQL: the owner's, in a directory that
// goes with the servers.
func (g *guardian) writeClientFiles() (dir string, err error) {
	if dir, err = g.dir.sub(nil, "client"); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), g.spec.Secured.CA, 0o600); err != nil {
		return "", err
	}
	_, _, err = g.spec.Secured.Superuser.Write(dir, "superuser")
	return dir, err
}

func (e *elastic) securitySettings() []string {
	switch {
	case e.OpenSearch: // its security is a plugin, which this build lacks
		return nil
	case e.Secured == nil:
		return []string{"xpack.security.enabled: false"}
	}
	return []string{
		"xpack.security.enabled: true",
		"xpack.security.autoconfiguration.enabled: false",
		"xpack.security.enrollment.enabled: false",
		"xpack.security.http.ssl.enabled: true",
		"xpack.security.http.ssl.certificate: server.pem",
		"xpack.security.http.ssl.key: server-key.pem",
		"xpack.security.http.ssl.certificate_authorities: [ca.pem]",
		"xpack.security.http.ssl.client_authentication: optional",
		"resource.reload.interval.high: 500ms", // of the files with users and tokens
	}
}

// health asks as whoever may.
func (e *elastic) health(ctx context.Context) (cluster string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if e.Secured == nil {
		return clusterHealth(ctx, e.url(), nil)
	}
	u := url.URL{Scheme: "https", User: url.UserPassword(e.Secured.Admin.Name, e.Secured.Admin.Password), Host: fmt.Sprintf("%s:%d", securedHost, e.port)}
	return clusterHealth(ctx, u.String(), e.Secured.CA)
}
