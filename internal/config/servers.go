package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Servers are the addresses of the shards that are not on database.url, by number.
type Servers map[int]URL

// String returns the addresses as their setting has them, with each password masked.
func (s Servers) String() string { return s.text(URL.String) }

func (s Servers) text(of func(URL) string) string {
	parts := make([]string, 0, len(s))
	for _, n := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, strconv.Itoa(n)+"="+of(s[n]))
	}
	return strings.Join(parts, ",")
}

// maxShards is the number of shards at most, as package migrations makes them.
const maxShards = 64

// shardServer begins an entry of the list. A comma within an address separates nothing: it is
// followed by another host, and not by a number and an equals sign.
var shardServer = regexp.MustCompile(`(?:^|,)\s*(\d{1,9})\s*=`)

var errServers = errors.New("want NUMBER=URL pairs separated by commas, as in 3=postgres://user:password@host:5432/database")

// parseServers reads pairs of a shard and the address of its server.
func parseServers(text string) (Servers, error) {
	if text == "" {
		return nil, nil
	}
	out := Servers{}
	for _, pair := range splitServers(text) {
		number, raw, ok := strings.Cut(pair, "=")
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if !ok || err != nil {
			return nil, errServers
		}
		if n >= maxShards {
			return nil, fmt.Errorf("shard %d: want 0 to %d", n, maxShards-1)
		}
		if _, twice := out[n]; twice {
			return nil, fmt.Errorf("shard %d is named twice", n)
		}
		if out[n], err = parseDatabaseURL(strings.TrimSpace(raw)); err != nil {
			return nil, fmt.Errorf("shard %d: %w", n, err)
		}
	}
	return out, nil
}

// splitServers cuts the list into its pairs.
func splitServers(text string) (pairs []string) {
	begins := shardServer.FindAllStringIndex(text, -1)
	if len(begins) == 0 || begins[0][0] > 0 {
		return []string{text}
	}
	for i, at := range begins {
		end := len(text)
		if i+1 < len(begins) {
			end = begins[i+1][0]
		}
		pairs = append(pairs, strings.Trim(text[at[0]:end], ", "))
	}
	return pairs
}

// maskServers masks the passwords of a list, and all of a text that is none.
func maskServers(text string) string {
	if text == "" {
		return ""
	}
	var parts []string
	for _, pair := range splitServers(text) {
		number, raw, ok := strings.Cut(pair, "=")
		if _, err := strconv.Atoi(strings.TrimSpace(number)); !ok || err != nil {
			return masked
		}
		parts = append(parts, number+"="+Redact(raw))
	}
	return strings.Join(parts, ",")
}

// servers is the setting of shards.servers.
func (s setting) servers() setting {
	s.kind, s.rng, s.secret, s.mask = "servers", "NUMBER=URL pairs separated by commas", true, maskServers
	s.set = func(c *Config, text string) error { return store(&c.Shards.Servers, text, parseServers) }
	s.get = func(c *Config) string { return c.Shards.Servers.text(URL.Reveal) }
	return s
}

// checkServers reads the addresses of shards more closely than their schemes.
func (l *loader) checkServers(c Config, check func(string) error) {
	for _, n := range slices.Sorted(maps.Keys(c.Shards.Servers)) {
		if err := check(c.Shards.Servers[n].Reveal()); err != nil {
			l.report("shards.servers", c.sources["shards.servers"], fmt.Sprintf("shard %d: value %q: %s", n, c.Shards.Servers[n], err))
		}
	}
}

// WithServer returns c with shard n on another server.
func (c Config) WithServer(n int, u URL) Config {
	next := Servers{n: u}
	if c.Database.Password != "" {
		next = next.withPasswords(c.Database.Password)
	}
	for other, of := range c.Shards.Servers {
		if other != n {
			next[other] = of
		}
	}
	c.Shards.Servers = next
	return c
}

// withPasswords returns the addresses, each with a password: its own, or else this one.
func (s Servers) withPasswords(p Secret) Servers {
	out := Servers{}
	for n, u := range s {
		if len(Passwords(u.Reveal())) == 0 {
			u = withPassword(u, p)
		}
		out[n] = u
	}
	return out
}
