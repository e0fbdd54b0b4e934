package config

import (
	"fmt"
	"strings"
)

// Template returns a YAML file that names every setting but the secret ones, and sets
// none.
func Template() string {
	var b strings.Builder
	b.WriteString(`# Settings of weft. Those without a # in front are in force; each line shows the default.
# The environment wins over this file. Secrets belong into files of their own.
`)
	section := ""
	for _, s := range table() {
		if s.kind == "secret" || s.key == "database.url" {
			continue
		}
		indent, key := "", s.key
		if sec, rest, ok := strings.Cut(s.key, "."); ok {
			indent, key = "  ", rest
			if sec != section {
				fmt.Fprintf(&b, "\n#%s:\n", sec)
				section = sec
			}
		} else {
			b.WriteString("\n")
		}
		what := s.help
		if values := s.values(); values != "text" && values != "file" {
			what += " (" + values + ")"
		}
		value := s.def
		switch {
		case s.kind == "list":
			value = "[" + strings.ReplaceAll(s.def, ",", ", ") + "]"
		case value == "" && s.set(new(Config), "") == nil:
			value = `""`
		case value == "":
			value = s.shown
		}
		fmt.Fprintln(&b, indent+"# "+what)
		fmt.Fprintln(&b, strings.TrimRight("#"+indent+key+": "+value, " "))
	}
	return b.String()
}
