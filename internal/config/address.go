package config

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

func parseText(s string) (string, error) {
	if strings.ContainsAny(s, "\x00\r\n") {
		return "", errors.New("must not hold line breaks or null bytes")
	}
	return s, nil
}

// parseDatabaseURL checks the scheme alone; Options.CheckDatabaseURL reads the
// rest.
func parseDatabaseURL(s string) (URL, error) {
	const want = "want postgres://user:password@host:5432/database"
	scheme, _, ok := strings.Cut(s, "://")
	base, _, _ := strings.Cut(strings.ToLower(scheme), "+")
	switch {
	case s == "":
		return "", errors.New(want)
	case ok && (base == "postgres" || base == "postgresql"):
		return URL(s), nil
	case strings.Contains(scheme, "="):
		return URL(s), nil // libpq's keyword form
	}
	return "", errors.New("not a Postgres URL: " + want)
}

var poolSize = regexp.MustCompile(`(?:^|[?&\s])pool_max_conns\s*=`)

// withoutEffect says that the size of the pool is set where it does not count, or nothing.
func (d Database) withoutEffect() string {
	if !poolSize.MatchString(d.URL.Reveal()) {
		return ""
	}
	return "pool_max_conns in database.url has no effect: database.max_conns (WEFT_DB_MAX_CONNS) sets the size of the pool"
}

// separate cuts a list of URLs. A comma within a password separates nothing.
func separate(list string) []string {
	return strings.Split(urlComma.ReplaceAllString(list, "\x00$1"), "\x00")
}

var urlComma = regexp.MustCompile(`\s*,\s*(https?://)`)

// parseElasticURLs reads the addresses of one node or several.
func parseElasticURLs(s string) (URL, error) {
	var list []string
	for _, raw := range separate(s) {
		u, err := parseElasticURL(raw)
		switch {
		case err != nil && strings.Contains(raw, ",") && !strings.Contains(raw, "@"):
			return "", errors.New("want http:// or https:// before each node, as in http://a:9200,http://b:9200")
		case err != nil:
			return "", err
		}
		list = append(list, string(u))
	}
	for _, other := range list[1:] {
		a, errA := url.Parse(list[0])
		b, errB := url.Parse(other)
		switch {
		case errA != nil || errB != nil || a.Scheme != b.Scheme:
			return "", errors.New("some begin with http:// and some with https://: want one or the other for all nodes")
		case b.User != nil && (a.User == nil || b.User.String() != a.User.String()):
			return "", errors.New("the nodes of one cluster have one user: write it in the first address, or as ELASTIC_USERNAME and ELASTIC_PASSWORD")
		}
	}
	return URL(strings.Join(list, ",")), nil
}

func parseElasticURL(s string) (URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		return "", errors.New("not a valid URL: want http://host:9200 or https://host:9200, special characters of the password percent-encoded")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return "", errors.New("want http://host:9200 or https://host:9200")
	}
	if p := u.Port(); p != "" {
		if _, err := parseInt(p, 1, 65535); err != nil {
			return "", errors.New("the port is out of range: want 1 to 65535")
		}
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("must not carry a query or a fragment")
	}
	return URL(strings.TrimRight(s, "/")), nil
}

// parseIndex holds the rules of Elasticsearch for index names.
// maxIndex is the room for -vN within the 255 bytes of Elasticsearch.
const maxIndex = 240

func parseIndex(s string) (string, error) {
	switch {
	case s == "" || s == "." || s == "..":
		return "", errors.New("want the name of an index")
	case len(s) > maxIndex:
		return "", errors.New("too long: at most " + strconv.Itoa(maxIndex) + " bytes")
	case !utf8.ValidString(s):
		return "", errors.New("not UTF-8")
	case strings.ToLower(s) != s:
		return "", errors.New("must be lower case")
	case strings.ContainsAny(s[:1], "-_+"):
		return "", errors.New("must not start with -, _ or +")
	case strings.ContainsAny(s, " \"*\\<|,>/?#:\x00\r\n\t"):
		return "", errors.New("must not hold spaces or any of \" * \\ < | , > / ? # :")
	}
	return s, nil
}

func parseHost(s string) (string, error) {
	if s == "" {
		return "", errors.New("must not be empty; 0.0.0.0 or :: listens everywhere")
	}
	if net.ParseIP(strings.Trim(s, "[]")) != nil {
		return strings.Trim(s, "[]"), nil
	}
	if strings.ContainsAny(s, ":/ \x00\r\n\t") {
		return "", errors.New("want a host name or an IP address, without a port")
	}
	return s, nil
}

// defaultInstance names this process: the host and the process, and a few random
// digits because containers share both.
func defaultInstance() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	host, _, _ = strings.Cut(host, ".")
	if n, err := parseName(host); err == nil && len(n) <= 80 {
		host = n
	} else {
		host = "localhost"
	}
	return host + "-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(uint64(rand.Uint32N(1<<16)|1<<16), 16)[1:]
}
