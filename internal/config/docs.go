package config

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
)

// AddFlags defines the flags of the settings named by keys, or of all settings
// that have one when no key is given.
func AddFlags(fs *pflag.FlagSet, keys ...string) {
	for _, s := range table() {
		if len(keys) > 0 && !slices.Contains(keys, s.key) {
			continue
		}
		if s.secret {
			fs.VarP(&flagValue{kind: "file"}, s.fileFlag(), "", "File that holds "+s.key+".")
		}
		if s.flag == "" {
			continue
		}
		f := fs.VarPF(&flagValue{kind: s.kind, text: s.def}, s.flag, "", s.help)
		if s.kind == "bool" {
			f.NoOptDefVal = "true"
		}
	}
}

// flagValue takes any text, so that a bad one is reported with all other problems
// of the configuration.
type flagValue struct{ kind, text string }

func (v *flagValue) String() string     { return v.text }
func (v *flagValue) Set(s string) error { v.text = s; return nil }
func (v *flagValue) Type() string       { return v.kind }

// Markdown returns the reference of all settings: the ten that a deployment looks at
// first, then the others by subject, a table for each.
func Markdown() string {
	groups := []struct {
		title string
		keys  []string // whole keys, or sections of keys
	}{
		{"The ten that matter first", []string{
			"database.url", "elastic.url", "elastic.index", "instance", "env",
			"outbox.bulk_size", "outbox.concurrency", "outbox.shutdown_grace", "outbox.finished", "outbox.retention",
		}},
		{"Which instance, and what it works on", []string{"group", "projections", "shards", "chronicle"}},
		{"Leadership", []string{"leader"}},
		{"Batches and retries", []string{"outbox"}},
		{"Postgres", []string{"database"}},
		{"Elasticsearch", []string{"elastic"}},
		{"Comparison of source and destination", []string{"verify"}},
		{"Records of terms and reclaims", []string{"audit"}},
		{"Health, metrics and the log", []string{"http", "log"}},
		{"The operator's page", []string{"desk"}},
		{"Traces", []string{"tracing"}},
	}
	var b strings.Builder
	left := table()
	for _, g := range groups {
		fmt.Fprintf(&b, "## %s\n\n| Setting | Environment | Flag | Default | Values | Meaning |\n|---|---|---|---|---|---|\n", g.title)
		left = slices.DeleteFunc(left, func(s setting) bool {
			section, _, _ := strings.Cut(s.key, ".")
			in := slices.Contains(g.keys, s.key) || slices.Contains(g.keys, section)
			if in {
				b.WriteString(s.markdown())
			}
			return in
		})
		b.WriteString("\n")
	}
	return b.String()
}

// markdown returns the setting's row of its table.
func (s setting) markdown() string {
	key, env := "`"+s.key+"`", "`"+s.env+"`"
	if s.altEnv != "" {
		env += ", `" + s.altEnv + "`"
	}
	if s.ownEnv != "" {
		env += ", `" + s.ownEnv + "`"
	}
	switch {
	case s.seconds:
		env += " (seconds)"
	case s.millis:
		env += " (milliseconds)"
	}
	flag := ""
	if s.flag != "" {
		flag = "`--" + s.flag + "`"
	}
	if s.secret {
		key += ", `" + s.fileKey() + "`"
		env += ", `" + s.fileEnv() + "`"
		flag = strings.TrimPrefix(flag+", `--"+s.fileFlag()+"`", ", ")
	}
	def := s.shown
	if def == "" && s.def != "" {
		def = "`" + strings.ReplaceAll(s.def, ",", "`, `") + "`"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s |\n", key, env, flag, def, s.values(), s.help)
}

// values says what a setting may be.
func (s setting) values() string {
	switch {
	case s.rng == "":
		return s.kind
	case s.kind == "duration" || s.kind == "size" || s.kind == "int":
		return s.kind + ", " + s.rng
	default:
		return s.rng
	}
}

// WriteEffective writes the effective settings as aligned columns: key, value,
// source. Secrets are masked.
func (c Config) WriteEffective(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SETTING\tVALUE\tSOURCE")
	for _, v := range c.Effective() {
		if v.Value == "" {
			v.Value = "-"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", v.Key, v.Value, v.Source)
	}
	return tw.Flush()
}
