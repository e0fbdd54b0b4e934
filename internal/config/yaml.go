package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/providers/file"
	"go.yaml.in/yaml/v3"

	"github.com/samuelhu324-dev/weft/projections"
)

// yamlFile is a koanf parser. It keeps the line of every value, and takes scalars as they are
// written: 0.50 and "30s" reach the table unchanged. It finds every unknown, repeated or
// misplaced key.
type yamlFile struct {
	path     string
	settings []setting
	places   map[string]string
	problems []*Problem
	declared []projections.Declaration

	registered []string // see [Config.Registered]
}

func (y *yamlFile) provider() *file.File { return file.Provider(y.path) }

var errProblems = errors.New("configuration file has problems")

// Marshal is part of koanf's interface; nothing is written.
func (y *yamlFile) Marshal(map[string]any) ([]byte, error) {
	return nil, errors.New("configuration files are read only")
}

// Unmarshal returns the good values of b, flat. Problems are in y.problems.
func (y *yamlFile) Unmarshal(b []byte) (map[string]any, error) {
	y.places = map[string]string{}
	out := map[string]any{}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return out, nil // empty, or comments alone
	case err != nil:
		y.syntax(err)
		return nil, errProblems
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		y.problem("", &more, "more than one YAML document; keep one")
	}
	if len(doc.Content) > 0 {
		y.walk(doc.Content[0], "", out)
	}
	return nest(out), nil
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

func (y *yamlFile) syntax(err error) {
	place, msg := y.path, err.Error()
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		msg = m[2]
		if m[1] != "" {
			place += ":" + m[1]
		}
	}
	y.problems = append(y.problems, &Problem{Place: place, Msg: "not valid YAML: " + msg})
}

func (y *yamlFile) problem(key string, n *yaml.Node, msg string) {
	place := y.path
	if n.Line > 0 {
		place = fmt.Sprintf("%s:%d", y.path, n.Line)
	}
	y.problems = append(y.problems, &Problem{Key: key, Place: place, Msg: msg})
}

func (y *yamlFile) walk(n *yaml.Node, prefix string, out map[string]any) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // a section whose keys are all commented out
	}
	if n.Kind != yaml.MappingNode {
		y.problem(strings.TrimSuffix(prefix, "."), n, "want a mapping of settings here")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key := prefix + k.Value
		if k.Kind != yaml.ScalarNode {
			y.problem(strings.TrimSuffix(prefix, "."), k, "a key must be a plain name")
			continue
		}
		if line := seen[key]; line > 0 {
			y.problem(key, k, fmt.Sprintf("is given twice; first on line %d", line))
			continue
		}
		seen[key] = k.Line
		switch {
		case y.known(key):
			y.value(key, v, out)
		case y.section(key):
			y.walk(v, key+".", out)
		default:
			y.problem(clip(key), k, unknown("", key, y.names()))
		}
	}
}

func (y *yamlFile) value(key string, n *yaml.Node, out map[string]any) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	list := key == "projections"
	if i := slices.IndexFunc(y.settings, func(s setting) bool { return s.plural != "" && s.plural == key }); i >= 0 {
		key, list = y.settings[i].key, true
	}
	if first, twice := y.places[key]; twice {
		y.problem(key, n, "is given twice, as one value and as a list; first on line "+first[strings.LastIndexByte(first, ':')+1:])
		return
	}
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		y.problem(key, n, "has no value; give one, or leave the key out")
	case n.Kind == yaml.ScalarNode:
		out[key] = n.Value
		y.places[key] = fmt.Sprintf("%s:%d", y.path, n.Line)
	case n.Kind == yaml.SequenceNode && list:
		parts := make([]string, 0, len(n.Content))
		for _, e := range n.Content {
			if e.Kind != yaml.ScalarNode {
				y.problem(key, e, "want a list of plain values")
				return
			}
			parts = append(parts, e.Value)
		}
		out[key] = strings.Join(parts, ",")
		y.places[key] = fmt.Sprintf("%s:%d", y.path, n.Line)
	case n.Kind == yaml.MappingNode && key == "projections":
		y.declarations(n, out)
	case n.Kind == yaml.MappingNode && y.paired(key):
		y.pairs(key, n, out, "=,")
	case n.Kind == yaml.MappingNode && key == "shards.servers":
		y.pairs(key, n, out, "")
	default:
		y.problem(key, n, "want a single value here")
	}
}

// pairs writes a mapping as its setting reads it from the environment. No value may have a
// character of separators.
func (y *yamlFile) pairs(key string, n *yaml.Node, out map[string]any, separators string) {
	var parts []string
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode || v.Kind != yaml.ScalarNode || strings.ContainsAny(k.Value, "=,") || strings.ContainsAny(v.Value, separators) {
			y.problem(key, k, "want a name and a value in each line")
			return
		}
		parts = append(parts, k.Value+"="+v.Value)
	}
	if len(parts) == 0 {
		y.problem(key, n, "has no value; give one, or leave the key out")
		return
	}
	out[key] = strings.Join(parts, ",")
	y.places[key] = fmt.Sprintf("%s:%d", y.path, n.Line)
}

func (y *yamlFile) paired(key string) bool {
	return slices.ContainsFunc(y.settings, func(s setting) bool { return s.key == key && s.paired })
}

func (y *yamlFile) known(key string) bool {
	return slices.ContainsFunc(y.settings, func(s setting) bool {
		return s.key == key || s.plural == key && key != "" || s.secret && s.fileKey() == key
	})
}

func (y *yamlFile) section(key string) bool {
	return slices.ContainsFunc(y.settings, func(s setting) bool { return strings.HasPrefix(s.key, key+".") })
}

func (y *yamlFile) names() []string {
	var ns []string
	for _, s := range y.settings {
		ns = append(ns, s.key)
		if s.secret {
			ns = append(ns, s.fileKey())
		}
		if sec, _, ok := strings.Cut(s.key, "."); ok && !slices.Contains(ns, sec) {
			ns = append(ns, sec)
		}
	}
	return ns
}

// nest turns dotted keys into the nested maps that koanf wants.
func nest(flat map[string]any) map[string]any {
	out := map[string]any{}
	for key, v := range flat {
		sec, rest, ok := strings.Cut(key, ".")
		if !ok {
			out[key] = v
			continue
		}
		m, ok := out[sec].(map[string]any)
		if !ok {
			m = map[string]any{}
			out[sec] = m
		}
		m[rest] = v
	}
	return out
}
