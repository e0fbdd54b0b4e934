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

// Markdown returns the table of all settings for the README.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| Setting | Environment | Flag | Default | Values | Meaning |\n|---|---|---|---|---|---|\n")
	for _, s := range table() {
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
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", key, env, flag, def, s.values(), s.help)
	}
	return b.String()
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
