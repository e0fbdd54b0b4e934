package config

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"github.com/samuelhu324-dev/weft/projections"
)

// DefaultFile is read when it exists and no other file is named.
const DefaultFile = "/etc/weft/weft.yaml"

// Options are the inputs of Load. The zero value loads the defaults alone.
type Options struct {
	// File is the YAML file; it must exist. Empty means WEFT_CONFIG of Environ, else
	// FallbackFile when that exists.
	File         string
	FallbackFile string
	Environ      []string // as os.Environ returns it
	Registered   []string // see [Config.Registered]
	Flags        *pflag.FlagSet
	// CheckDatabaseURL reads the URL more closely than its scheme, when not nil. Its
	// error must not quote the URL.
	CheckDatabaseURL func(string) error
}

// Problem is one thing that is wrong with the configuration.
type Problem struct {
	Key   string // of the setting; empty when the problem has no single one
	Place string // file:line, "env NAME" or "flag --name"
	Msg   string // what is wrong, with the value (masked when secret) and what is wanted
}

// Error implements error.
func (p *Problem) Error() string {
	var b strings.Builder
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.Msg)
	if p.Place != "" {
		b.WriteString(" (" + p.Place + ")")
	}
	return b.String()
}

// entry is one value as one layer gives it.
type entry struct{ text, place string }

// Load reads all layers. On error it returns every problem found, joined, each a
// *Problem; the Config is then invalid.
func Load(o Options) (Config, error) {
	c := Default()
	l := loader{settings: table(), sources: map[string]string{}, k: koanf.New("."), registered: o.Registered}
	l.defaults(&c)
	env := environ(o.Environ)

	path, place := o.File, ""
	if o.Flags != nil {
		place = "flag --config"
	}
	if path == "" {
		path, place = env["WEFT_CONFIG"], "env WEFT_CONFIG"
	}
	if path == "" && o.FallbackFile != "" {
		if _, err := os.Stat(o.FallbackFile); !errors.Is(err, os.ErrNotExist) {
			path, place = o.FallbackFile, ""
		}
	}
	if path != "" {
		l.file(path, place)
	}
	l.environment(env)
	if o.Flags != nil {
		l.flags(o.Flags)
	}

	c.sources, c.warnings, c.Declared, c.Registered = l.sources, l.warnings, l.declared, l.registered
	for _, s := range l.settings {
		if !l.k.Exists(s.key) {
			continue
		}
		if err := s.set(&c, l.k.String(s.key)); err != nil {
			l.report(s.key, l.sources[s.key], err.Error())
		}
	}
	if u := c.Database.URL.Reveal(); u != "" && o.CheckDatabaseURL != nil {
		if err := o.CheckDatabaseURL(u); err != nil {
			l.report("database.url", c.sources["database.url"], fmt.Sprintf("value %q: %s", c.Database.URL, err))
		}
	}
	if o.CheckDatabaseURL != nil {
		l.checkServers(c, o.CheckDatabaseURL)
	}
	c.derive()
	c.HTTP.MetricsPortFixed = c.sources["http.metrics_port"] != ""
	c.Desk.Fixed = c.sources["desk.listen"] != ""
	for _, text := range []string{c.Database.withoutEffect(), c.Elastic.clearText()} {
		if text != "" {
			c.warnings = append(c.warnings, text)
		}
	}
	if c.Elastic.ClientKeyFile != "" {
		if text := tooOpen(c.Elastic.ClientKeyFile); text != "" {
			c.warnings = append(c.warnings, text)
		}
	}
	if err := c.Validate(); err != nil {
		l.relations(err)
	}
	return c, errors.Join(l.problems...)
}

type loader struct {
	settings []setting
	k        *koanf.Koanf
	sources  map[string]string
	broken   []string // keys that already have a problem
	warnings []string
	problems []error
	declared []projections.Declaration

	registered []string
}

func (l *loader) report(key, place, msg string) {
	l.problems = append(l.problems, &Problem{Key: key, Place: place, Msg: msg})
	if key != "" {
		l.broken = append(l.broken, key)
	}
}

// relations adds the problems of Validate, without those that only follow from a
// value that was already refused.
func (l *loader) relations(err error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		l.problems = append(l.problems, err)
		return
	}
	for _, e := range joined.Unwrap() {
		if r, ok := errors.AsType[*relation](e); ok {
			if slices.ContainsFunc(r.keys, func(k string) bool { return slices.Contains(l.broken, k) }) {
				continue
			}
			l.problems = append(l.problems, &Problem{Key: r.keys[0], Place: l.places(r.keys), Msg: r.msg})
			continue
		}
		l.problems = append(l.problems, e)
	}
}

func (l *loader) places(keys []string) string {
	var ps []string
	for _, k := range keys {
		if p := l.sources[k]; p != "" && !slices.Contains(ps, p) {
			ps = append(ps, p)
		}
	}
	return strings.Join(ps, ", ")
}

// merge checks each value of a layer at its own place and puts the good ones on
// top of the layers before.
func (l *loader) merge(layer map[string]entry) {
	values := map[string]any{}
	for _, s := range l.settings {
		e, ok := layer[s.key]
		if !ok {
			continue
		}
		scratch := Config{Declared: l.declared, Registered: l.registered}
		if err := s.set(&scratch, e.text); err != nil {
			l.report(s.key, e.place, badValue(s, e.text, err))
			continue
		}
		values[s.key] = s.get(&scratch)
		l.sources[s.key] = e.place
	}
	l.load(values)
}

// defaults is the lowest layer. Its values have no source.
func (l *loader) defaults(c *Config) {
	values := map[string]any{}
	for _, s := range l.settings {
		if s.def != "" {
			values[s.key] = s.get(c)
		}
	}
	l.load(values)
}

func (l *loader) load(values map[string]any) {
	if err := l.k.Load(confmap.Provider(values, "."), nil); err != nil {
		l.report("", "", "merge settings: "+err.Error())
	}
}

func badValue(s setting, text string, err error) string {
	text = strings.TrimSuffix(strings.TrimSuffix(text, plainSeconds), plainMillis)
	switch {
	case text == "":
		return fmt.Sprintf("is set but empty: %s, or leave it out", err)
	case s.secret:
		return fmt.Sprintf("value %q: %s", s.mask(text), err)
	default:
		return fmt.Sprintf("value %q: %s", clip(text), err)
	}
}

func clip(s string) string {
	if r := []rune(s); len(r) > 80 {
		return string(r[:80]) + "…"
	}
	return s
}

func (l *loader) file(path, place string) {
	p := &yamlFile{path: path, settings: l.settings, registered: l.registered}
	// The file is read into a koanf of its own: its values still have to be checked.
	raw := koanf.New(".")
	if err := raw.Load(p.provider(), p); err != nil {
		if len(p.problems) == 0 {
			msg := err.Error()
			if pe, ok := errors.AsType[*os.PathError](err); ok {
				msg = pe.Err.Error()
			}
			l.report("", place, "configuration file "+path+": "+msg)
			return
		}
	}
	for _, pr := range p.problems {
		l.report(pr.Key, pr.Place, pr.Msg)
	}
	l.declared = p.declared
	for key, place := range p.places {
		if strings.HasPrefix(key, "projections.") {
			l.sources[key] = place
		}
	}
	layer := map[string]entry{}
	for _, s := range l.settings {
		get := func(key string) *entry {
			if !raw.Exists(key) {
				return nil
			}
			return &entry{text: raw.String(key), place: p.places[key]}
		}
		direct := get(s.key)
		l.put(layer, s, direct, s.key, get(s.fileKey()), s.fileKey())
		if direct != nil && s.secret && Redact(direct.text) != direct.text || direct != nil && s.kind == "secret" {
			l.warnOpen(path)
		}
	}
	l.merge(layer)
}

// put adds the value of a setting to a layer: the direct one, or the content of the file that
// is named instead.
func (l *loader) put(layer map[string]entry, s setting, direct *entry, name string, file *entry, fileName string) {
	switch {
	case direct != nil && file != nil:
		l.report(s.key, direct.place, fmt.Sprintf("%s and %s are both set; keep one of them", name, fileName))
	case direct != nil:
		layer[s.key] = *direct
	case file != nil:
		text, err := ReadSecret(file.text)
		if err != nil {
			l.report(s.key, file.place, fmt.Sprintf("file %q: %s", clip(file.text), err))
			return
		}
		l.warnOpen(file.text)
		layer[s.key] = entry{text: text, place: file.place + ", " + file.text}
	}
}

// warnOpen warns once of a file with secrets that every user may read or change.
func (l *loader) warnOpen(path string) {
	if text := tooOpen(path); text != "" && !slices.Contains(l.warnings, text) {
		l.warnings = append(l.warnings, text)
	}
}

func (l *loader) environment(env map[string]string) {
	layer := map[string]entry{}
	for _, s := range l.settings {
		v, ok := env[s.env]
		name := s.env
		if s.altEnv != "" {
			alt, altOK := env[s.altEnv]
			if ok && altOK && alt != v {
				l.report(s.key, "env "+s.env, fmt.Sprintf("%s=%q and %s=%q differ; keep one of them", s.env, clip(v), s.altEnv, clip(alt)))
			}
			if !ok && altOK {
				v, ok, name = alt, true, s.altEnv
			}
		}
		if own := env[s.ownEnv]; own != "" {
			v, ok, name = own, true, s.ownEnv
		}
		if v == "" && strings.HasPrefix(name, "OTEL_") {
			ok = false
		}
		var direct, file *entry
		switch {
		case s.seconds:
			v += plainSeconds
		case s.millis:
			v += plainMillis
		}
		if ok {
			direct = &entry{text: v, place: "env " + name}
		}
		if path, ok := env[s.fileEnv()]; ok && s.secret {
			file = &entry{text: path, place: "env " + s.fileEnv()}
		}
		l.put(layer, s, direct, name, file, s.fileEnv())
	}
	l.merge(layer)
	l.unknownEnv(env)
}

// A Kubernetes service named weft, or weft-something, puts these names into every
// pod of its namespace.
var serviceLinks = regexp.MustCompile(`^WEFT_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

func (l *loader) unknownEnv(env map[string]string) {
	known := []string{"WEFT_CONFIG"}
	for _, s := range l.settings {
		known = append(known, s.env)
		if s.altEnv != "" {
			known = append(known, s.altEnv)
		}
		if s.secret {
			known = append(known, s.fileEnv())
		}
	}
	names := make([]string, 0, len(env))
	for n := range env {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		if slices.Contains(known, n) {
			continue
		}
		switch {
		case strings.HasPrefix(n, "WEFT_"):
			link := strings.HasSuffix(n, "_PORT") && strings.Contains(env[n], "://")
			if !link && !serviceLinks.MatchString(n) {
				l.report("", "env "+n, unknown(" "+n, n, known))
			}
		case strings.HasPrefix(n, "OUTBOX_"), strings.HasPrefix(n, "ELASTIC_"), strings.HasPrefix(n, "CHRONICLE_"):
			if text := Former(n); text != "" {
				l.warnings = append(l.warnings, text)
			} else if best := nearest(n, known); best != "" {
				l.warnings = append(l.warnings, fmt.Sprintf("environment name %s is not known and has no effect; did you mean %s?", n, best))
			}
		}
	}
}

func (l *loader) flags(fs *pflag.FlagSet) {
	layer := map[string]entry{}
	get := func(name string) *entry {
		if f := fs.Lookup(name); name != "" && f != nil && f.Changed {
			return &entry{text: f.Value.String(), place: "flag --" + name}
		}
		return nil
	}
	for _, s := range l.settings {
		var file *entry
		if s.secret {
			file = get(s.fileFlag())
		}
		l.put(layer, s, get(s.flag), "--"+s.flag, file, "--"+s.fileFlag())
	}
	l.merge(layer)
}

// environ turns NAME=value pairs into a map; the last of two equal names wins, as
// in the shell.
func environ(pairs []string) map[string]string {
	m := make(map[string]string, len(pairs))
	for _, p := range pairs {
		name, v, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			continue
		}
		m[name] = v
	}
	return m
}
