package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/testenv/pki"
)

// secretFile writes a file that is nobody else's to read.
func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func source(c config.Config, key string) string {
	for _, v := range c.Effective() {
		if v.Key == key {
			return v.Source
		}
	}
	return ""
}

func TestSecretsFromFiles(t *testing.T) {
	t.Parallel()
	url, password := secretFile(t, "postgres://u:hunter2@db/wordloom\n"), secretFile(t, "hunter2 \r\n\r\n")
	for _, tc := range []struct {
		name, yaml string
		env, args  []string
		place      string
	}{
		{name: "Environment", env: []string{"DATABASE_URL_FILE=" + url, "ELASTIC_USERNAME=u", "ELASTIC_PASSWORD_FILE=" + password},
			place: "env DATABASE_URL_FILE, " + url},
		{name: "YAML", yaml: "database: {url_file: " + url + "}\nelastic: {username: u, password_file: " + password + "}\n",
			place: "weft.yaml:1, " + url},
		{name: "Flags", args: []string{"--database-url-file", url, "--elastic-username", "u", "--elastic-password-file", password},
			place: "flag --database-url-file, " + url},
		{name: "LaterLayerWins", yaml: "database: {url: 'postgres://elsewhere/d'}\nelastic: {username: u, password: old}\n",
			env: []string{"DATABASE_URL_FILE=" + url, "ELASTIC_PASSWORD_FILE=" + password}, place: "env DATABASE_URL_FILE, " + url},
		{name: "FileBelow", yaml: "elastic: {username: u, password_file: " + password + "}\ndatabase: {url_file: /nowhere/of/interest}\n",
			env: []string{"DATABASE_URL_FILE=" + url}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := load(t, tc.yaml, tc.env, tc.args...)
			if tc.place == "" { // a file is checked also where a later layer overrides it
				if err == nil || !strings.Contains(err.Error(), `database.url: file "/nowhere/of/interest": no such file or directory`) {
					t.Errorf("got %v, want the missing file", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Database.URL.Reveal(); got != "postgres://u:hunter2@db/wordloom" {
				t.Errorf("URL: got %q", got)
			}
			if got := c.Elastic.Password.Reveal(); got != "hunter2 " {
				t.Errorf("password: got %q, want it without the end of its line", got)
			}
			if got := source(c, "database.url"); !strings.HasSuffix(got, tc.place) {
				t.Errorf("source: got %q, want %q", got, tc.place)
			}
		})
	}
}

func TestPasswordBecomesPartOfTheURL(t *testing.T) {
	t.Parallel()
	password := secretFile(t, `p&'\ w`)
	for raw, want := range map[string]string{
		"postgres://u@h/d":             `postgres://u@h/d?password=p%26%27%5C%20w`,
		"postgres://u:old@h/d?x=y":     `postgres://u:old@h/d?x=y&password=p%26%27%5C%20w`,
		"host=h user=u dbname=d":       `host=h user=u dbname=d password='p&\'\\ w'`,
		"postgresql+psycopg://u@h,i/d": `postgresql+psycopg://u@h,i/d?password=p%26%27%5C%20w`,
	} {
		c, err := load(t, "", []string{"DATABASE_URL=" + raw, "DATABASE_PASSWORD_FILE=" + password})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Database.URL.Reveal(); got != want {
			t.Errorf("%s: got %s, want %s", raw, got, want)
		}
		if got := c.Database.URL.String(); strings.Contains(got, "%26") || strings.Contains(got, "p&") {
			t.Errorf("%s: the password is shown: %s", raw, got)
		}
	}
}

func TestBadSecretFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty, lines, long := secretFile(t, "\n"), secretFile(t, "a\nb\n"), secretFile(t, strings.Repeat("x", 70_000))
	good, bad := secretFile(t, "hunter2"), secretFile(t, "mysql://u:hunter2@h/d")
	for _, tc := range []struct{ name, env, want string }{
		{"Missing", "ELASTIC_API_KEY_FILE=/nowhere/key", `elastic.api_key: file "/nowhere/key": no such file or directory (env ELASTIC_API_KEY_FILE)`},
		{"NoName", "ELASTIC_API_KEY_FILE=", `elastic.api_key: file "": the name is empty: want the path of a file, or leave it out (env ELASTIC_API_KEY_FILE)`},
		{"Empty", "ELASTIC_API_KEY_FILE=" + empty, `elastic.api_key: file "` + empty + `": is empty: want one line with the value (env ELASTIC_API_KEY_FILE)`},
		{"Lines", "ELASTIC_API_KEY_FILE=" + lines, `elastic.api_key: file "` + lines + `": want one line with the value, found more than that (env ELASTIC_API_KEY_FILE)`},
		{"Long", "ELASTIC_API_KEY_FILE=" + long, `elastic.api_key: file "` + long + `": longer than 64 KiB: want one line with the value (env ELASTIC_API_KEY_FILE)`},
		{"Directory", "ELASTIC_API_KEY_FILE=" + dir, `elastic.api_key: file "` + dir + `": is a directory (env ELASTIC_API_KEY_FILE)`},
		{"Both", "ELASTIC_API_KEY=k\nELASTIC_API_KEY_FILE=" + good, `elastic.api_key: ELASTIC_API_KEY and ELASTIC_API_KEY_FILE are both set; keep one of them (env ELASTIC_API_KEY)`},
		{"BadValue", "ELASTIC_URL_FILE=" + bad, `elastic.url: value "mysql://u:*****@h/d": want http://host:9200 or https://host:9200 (env ELASTIC_URL_FILE, ` + bad + `)`},
		{"Misspelt", "WEFT_DB_TIMEOUT_FILE=" + good, `unknown setting WEFT_DB_TIMEOUT_FILE; did you mean "WEFT_DB_TIMEOUT"? (env WEFT_DB_TIMEOUT_FILE)`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(t, "", append([]string{dsn}, strings.Split(tc.env, "\n")...))
			if err == nil || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
	t.Run("BothInYAML", func(t *testing.T) {
		t.Parallel()
		_, err := load(t, "elastic:\n  api_key: k\n  api_key_file: "+good+"\n", []string{dsn})
		if err == nil || !strings.Contains(err.Error(), "elastic.api_key and elastic.api_key_file are both set") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("NotASecret", func(t *testing.T) {
		t.Parallel()
		_, err := load(t, "elastic: {index_file: x}\n", []string{dsn})
		if err == nil || !strings.Contains(err.Error(), `elastic.index_file: unknown setting`) {
			t.Errorf("got %v", err)
		}
	})
}

func TestOpenSecretsAreWarnedOf(t *testing.T) {
	t.Parallel()
	open, shared, yaml := secretFile(t, "hunter2"), secretFile(t, "hunter2"), "elastic: {username: u, password: hunter2}\n"
	for path, mode := range map[string]os.FileMode{open: 0o644, shared: 0o440} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	remark := open + " holds a secret, and its mode 0644 lets others read or change it: chmod 0640 it, or 0600"
	for _, tc := range []struct {
		name string
		env  []string
		want []string
	}{
		{"Open", []string{"ELASTIC_API_KEY_FILE=" + open}, []string{remark}},
		{"Shared", []string{"ELASTIC_API_KEY_FILE=" + shared}, nil},
	} {
		c, err := load(t, "", append([]string{dsn}, tc.env...))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tc.want, c.Warnings()); d != "" {
			t.Errorf("%s: warnings (-want +got):\n%s", tc.name, d)
		}
	}
	path := filepath.Join(t.TempDir(), "weft.yaml")
	if err := os.WriteFile(path, []byte(yaml), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Options{File: path, Environ: []string{dsn}})
	if err != nil || len(c.Warnings()) != 1 || !strings.HasPrefix(c.Warnings()[0], path) {
		t.Errorf("configuration file with a password: got %q, %v, want one warning about it", c.Warnings(), err)
	}
}

func TestElasticAccess(t *testing.T) {
	t.Parallel()
	authority, err := pki.New("a")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue("weft")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key, err := pair.Write(dir, "client")
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, authority.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	const https = "ELASTIC_URL=https://es:9200"
	sum := authority.Fingerprint()
	for _, tc := range []struct {
		name string
		env  []string
		want string // part of the error; empty for none
	}{
		{"Fingerprint", []string{https, "ELASTIC_CA_FINGERPRINT=" + strings.ToUpper(sum[:2]+":"+sum[2:])}, ""},
		{"ShortFingerprint", []string{https, "ELASTIC_CA_FINGERPRINT=" + sum[2:]}, "64 hexadecimal digits"},
		{"FileAndFingerprint", []string{https, "ELASTIC_CA_FILE=" + ca, "ELASTIC_CA_FINGERPRINT=" + sum}, "either the file or the fingerprint"},
		{"ClientCertificate", []string{https, "ELASTIC_CLIENT_CERT_FILE=" + cert, "ELASTIC_CLIENT_KEY_FILE=" + key}, ""},
		{"NoKey", []string{https, "ELASTIC_CLIENT_CERT_FILE=" + cert}, "belong together"},
		{"KeyMissing", []string{https, "ELASTIC_CLIENT_CERT_FILE=" + cert, "ELASTIC_CLIENT_KEY_FILE=/nowhere"}, `file "/nowhere": no such file`},
		{"WrongKey", []string{https, "ELASTIC_CLIENT_CERT_FILE=" + ca, "ELASTIC_CLIENT_KEY_FILE=" + key}, "no certificate with its key"},
		{"PlainHTTP", []string{"ELASTIC_URL=http://es:9200", "ELASTIC_CA_FILE=" + ca}, "elastic.ca_file: has no effect: elastic.url begins with http://"},
		{"PlainFingerprint", []string{"ELASTIC_URL=http://es:9200", "ELASTIC_CA_FINGERPRINT=" + sum}, "has no effect"},
		{"TokenAndKey", []string{"ELASTIC_SERVICE_TOKEN=t", "ELASTIC_API_KEY=k"}, "give either the service token or the API key, not both"},
		{"TokenAndUser", []string{"ELASTIC_SERVICE_TOKEN=t", "ELASTIC_URL=http://u:p@es"}, "give either the service token or a user in the URL, not both"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := load(t, "", append([]string{dsn}, tc.env...))
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("got %v, want no error", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q in it", err, tc.want)
			case tc.name == "Fingerprint" && c.Elastic.CAFingerprint != sum:
				t.Errorf("got %s, want %s", c.Elastic.CAFingerprint, sum)
			}
		})
	}
	c, err := load(t, "", []string{dsn, "ELASTIC_URL=http://es:9200", "ELASTIC_API_KEY=k"})
	if err != nil || !slices.ContainsFunc(c.Warnings(), func(w string) bool { return strings.Contains(w, "cross the network unencrypted") }) {
		t.Errorf("API key over http://: got %q, %v, want a warning", c.Warnings(), err)
	}
}

func TestChanged(t *testing.T) {
	t.Parallel()
	path := secretFile(t, "old")
	env := []string{dsn, "ELASTIC_USERNAME=u", "ELASTIC_PASSWORD_FILE=" + path}
	before, err := load(t, "", env)
	if err != nil {
		t.Fatal(err)
	}
	again, err := load(t, "", env)
	if err != nil {
		t.Fatal(err)
	}
	if got := before.Changed(again); got != nil {
		t.Errorf("nothing was changed: got %v", got) // the instance's name is made anew, and does not count
	}
	if err := os.WriteFile(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	after, err := load(t, "", append(env, "WEFT_GROUP=other"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"group", "elastic.password"}, before.Changed(after)); d != "" {
		t.Errorf("changed (-want +got):\n%s", d)
	}
	taken := before.With(after, "elastic.password")
	if taken.Elastic.Password.Reveal() != "new" || taken.Group != before.Group {
		t.Errorf("got password %q in group %s, want the new one in the old group", taken.Elastic.Password.Reveal(), taken.Group)
	}
	if d := cmp.Diff([]string{"group"}, taken.Changed(after)); d != "" {
		t.Errorf("left (-want +got):\n%s", d)
	}
}
