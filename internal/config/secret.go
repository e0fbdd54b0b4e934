package config

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

const masked = "*****"

// Secret is a text that masks itself in JSON and with every verb of fmt; Reveal returns it.
type Secret string

// Reveal returns the text, unmasked.
func (s Secret) Reveal() string { return string(s) }

// String returns *****, or nothing when the secret is empty.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return masked
}

// Format masks the text with every verb, also one that is not for texts.
func (s Secret) Format(f fmt.State, verb rune) { fmt.Fprintf(f, fmt.FormatString(f, verb), s.String()) }

// MarshalJSON masks the JSON form.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// URL is an address, or a list of http(s) addresses with commas between them. It masks each
// password as [Secret] does and shows the rest; Reveal returns it whole.
type URL string

// Reveal returns the address, or the list, with its passwords.
func (u URL) Reveal() string { return string(u) }

// String returns the address, or the list, with each password masked: see [Redact].
func (u URL) String() string {
	parts := separate(string(u))
	for i, raw := range parts {
		parts[i] = Redact(raw)
	}
	return strings.Join(parts, ",")
}

// Format masks the address as [Secret.Format] does.
func (u URL) Format(f fmt.State, verb rune) { fmt.Fprintf(f, fmt.FormatString(f, verb), u.String()) }

// MarshalJSON masks the JSON form.
func (u URL) MarshalJSON() ([]byte, error) { return json.Marshal(u.String()) }

// withPassword adds the password to a Postgres URL or a list of keywords, as a parameter: that wins
// over the password before the host.
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

// Redact masks the secrets in raw, which is one address: the password before the host of a
// URL, and parameters that are passwords, keys, tokens or secrets by their names
// (password=…, api_key=…), in a URL's query or in libpq's keyword form. Where raw does not
// parse it masks too much rather than too little. For addresses within a text, see [Mask].
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

// Secrets returns what must not be shown of c, for [Mask]: the secret settings, the passwords in
// addresses, and the values of tracing headers. None is empty, and none is there twice.
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
	return out
}

// Passwords returns the passwords in addresses with commas between them, and the other secret
// parameters that [Redact] masks. One that is written with escapes (%40, \') is returned twice: as
// it is written, and decoded. The result is in no order and may repeat a text.
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

// schemes matches the beginning of each address of a list, with the number of a shard before it
// (3=postgres://).
var schemes = regexp.MustCompile(`(?:^|,)\s*(?:\d+\s*=\s*)?[A-Za-z][A-Za-z0-9+.-]*://`)

// escaped matches a character behind a backslash, as libpq's keyword form has it.
var escaped = regexp.MustCompile(`\\(.)`)

var authorization = regexp.MustCompile(`(?i)\b(bearer|basic|apikey)(\s+)[A-Za-z0-9+/=._~-]{4,}`)

// addresses matches the beginnings of URLs with a user, within a text.
var addresses = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>/@]+@`)

// Mask masks secrets within a text: the given ones, the passwords of addresses, the parameters that
// [Redact] masks, and what follows Bearer, Basic or ApiKey. It masks too much rather than too little.
// secrets must hold no empty text. One that is a part of another leaves nothing of the longer one.
func Mask(text string, secrets []string) string {
	longestFirst := func(a, b string) int { return len(b) - len(a) }
	for _, s := range slices.SortedFunc(slices.Values(secrets), longestFirst) {
		text = strings.ReplaceAll(text, s, masked)
	}
	text = addresses.ReplaceAllStringFunc(text, redactUserinfo)
	return authorization.ReplaceAllString(redactParams(text), "$1$2"+masked)
}
