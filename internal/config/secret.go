package config

import (
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

const masked = "*****"

// Secret is a text that masks itself when it is printed; Reveal returns it.
type Secret string

// Reveal returns the text.
func (s Secret) Reveal() string { return string(s) }

// String returns a mask, or nothing when the secret is empty.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return masked
}

// GoString masks the %#v form.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// MarshalJSON masks the JSON form.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// URL is an address whose password is masked when it is printed; Reveal returns
// it whole.
type URL string

// Reveal returns the address with its password.
func (u URL) Reveal() string { return string(u) }

// String returns the address, or the list of them, with each password masked.
func (u URL) String() string {
	parts := separate(string(u))
	for i, raw := range parts {
		parts[i] = Redact(raw)
	}
	return strings.Join(parts, ",")
}

// GoString masks the %#v form.
func (u URL) GoString() string { return `"` + u.String() + `"` }

// MarshalJSON masks the JSON form.
func (u URL) MarshalJSON() ([]byte, error) { return json.Marshal(u.String()) }

// withPassword adds a parameter, which wins over the password before the host.
func withPassword(u URL, p Secret) URL {
	raw := string(u)
	if scheme, _, ok := strings.Cut(raw, "://"); !ok || strings.ContainsAny(scheme, "= ") {
		return URL(raw + " password='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(string(p)) + "'")
	}
	join := "?"
	if strings.Contains(raw, "?") {
		join = "&"
	}
	// As libpq has it, a plus is a plus.
	return URL(raw + join + "password=" + strings.ReplaceAll(url.QueryEscape(string(p)), "+", "%20"))
}

var (
	userinfo  = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*://)(.*)@`)
	paramPass = regexp.MustCompile(`(?i)((?:ssl|pass|api|access)?_?(?:password|passwd|pwd|key|token|secret))\s*=\s*('(?:[^'\\]|\\.)*'?|[^\s&]*)`)
)

// Redact masks the passwords in raw: the one before the host of a URL, and those
// given as a parameter (password=…), in a URL's query or in libpq's keyword form.
// Where raw does not parse it masks too much rather than too little.
func Redact(raw string) string {
	return redactParams(redactUserinfo(raw))
}

func redactUserinfo(raw string) string {
	m := userinfo.FindStringSubmatch(raw)
	if m == nil {
		return raw
	}
	user, _, hasPass := strings.Cut(m[2], ":")
	if u, err := url.Parse(raw); err == nil && u.Fragment == "" && u.User == nil && !hasPass {
		return raw // the @ belongs to the path or the query
	}
	if !hasPass {
		return raw
	}
	return m[1] + user + ":" + masked + "@" + raw[len(m[0]):]
}

func redactParams(s string) string {
	return paramPass.ReplaceAllString(s, "$1="+masked)
}

// Secrets returns the texts of all settings that must not be shown, also the passwords in their
// addresses, the longest first: to mask them in other texts.
func (c Config) Secrets() []string {
	var out []string
	add := func(texts ...string) {
		for _, text := range texts {
			if text != "" && !slices.Contains(out, text) {
				out = append(out, text)
			}
		}
	}
	for _, s := range table() {
		text := s.get(&c)
		switch {
		case s.key == "tracing.headers":
			add(text)
			// A part of any other secret, such as the = at its end, hides no secret and spoils other texts.
			for pair := range strings.SplitSeq(text, ",") {
				_, value, _ := strings.Cut(pair, "=")
				add(strings.TrimSpace(value))
				for _, word := range strings.Fields(value) { // of "Bearer …"
					if len(word) > len("Bearer") {
						add(word)
					}
				}
			}
		case s.kind == "secret":
			add(text)
		case s.kind == "url", s.kind == "servers":
			add(Passwords(text)...)
		}
	}
	slices.SortStableFunc(out, func(a, b string) int { return len(b) - len(a) })
	return out
}

// Passwords returns the passwords in addresses with commas between them, as they are written and
// as they are meant.
func Passwords(addresses string) (out []string) {
	add := func(written string) {
		if written != "" {
			out = append(out, written)
			if plain, err := url.PathUnescape(written); err == nil && plain != written {
				out = append(out, plain)
			}
		}
	}
	for _, m := range paramPass.FindAllStringSubmatch(addresses, -1) {
		add(strings.Trim(m[2], "'"))
		if quoted, ok := strings.CutPrefix(m[2], "'"); ok {
			add(escaped.ReplaceAllString(strings.TrimSuffix(quoted, "'"), "$1"))
		}
	}
	// Not by url.Parse, which refuses an address of several Postgres hosts.
	for _, rest := range schemes.Split(addresses, -1)[1:] {
		end := strings.IndexAny(rest, "/?#")
		if end < 0 {
			end = len(rest)
		}
		user := rest[:max(0, strings.LastIndexByte(rest[:end], '@'))]
		_, password, _ := strings.Cut(user, ":")
		add(password)
	}
	return out
}

// schemes begin the addresses of a list, in which shards have numbers.
var schemes = regexp.MustCompile(`(?:^|,)\s*(?:\d+\s*=\s*)?[A-Za-z][A-Za-z0-9+.-]*://`)

// escaped is a character behind a backslash, as libpq's keyword form has it.
var escaped = regexp.MustCompile(`\\(.)`)

var authorization = regexp.MustCompile(`(?i)\b(bearer|basic|apikey)(\s+)[A-Za-z0-9+/=._~-]{4,}`)

// addresses are URLs with a user within a text.
var addresses = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>/@]+@`)

// Mask masks secrets within a text: the given ones, the passwords of addresses, those that are
// given as parameters, and authorizations. It masks too much rather than too little.
func Mask(text string, secrets []string) string {
	for _, s := range secrets {
		text = strings.ReplaceAll(text, s, masked)
	}
	text = addresses.ReplaceAllStringFunc(text, redactUserinfo)
	return authorization.ReplaceAllString(redactParams(text), "$1$2"+masked)
}
