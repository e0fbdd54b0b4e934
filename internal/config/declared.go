package config

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/samuelhu324-dev/weft/projections"
)

// Projections that need no code are declared in the configuration file, where the list of
// names is a mapping instead:
//
//	projections:
//	  products:
//	    outbox: {table: product_outbox_events}
//	    source: {query: "select id as entity_id, version, name from product where id = any($1)"}
//	    index: {name: products, mapping: products.mapping.json}
//	  search_index_to_elastic:
//
// A built-in one, and one that the program registers, is named without a declaration. Files are
// looked for beside the configuration file.

// Registry returns the projections that there are: built in, and declared.
func (c Config) Registry() projections.Registry { return projections.Registry{Declared: c.Declared} }

// PlaceOf returns the line of the configuration file where a setting of a declared
// projection stands, or else the projection.
func (c Config) PlaceOf(projection, setting string) string {
	key := "projections." + projection
	return cmp.Or(c.sources[key+"."+setting], c.sources[key])
}

// names lists the projections that may be run.
func (c *Config) names() []string {
	names := append(slices.Clone(projectionNames), c.Registered...)
	for _, d := range c.Declared {
		names = append(names, d.Name)
	}
	return names
}

// declarations reads the mapping of projections.
func (y *yamlFile) declarations(n *yaml.Node, out map[string]any) {
	var names []string
	before := len(y.problems)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key, empty := "projections."+k.Value, v.Kind == yaml.ScalarNode && v.Tag == "!!null"
		builtIn, registered := slices.Contains(projectionNames, k.Value), slices.Contains(y.registered, k.Value)
		switch {
		case slices.Contains(names, k.Value):
			y.problem(key, k, "is declared twice")
			continue
		case builtIn && !empty:
			y.problem(key, v, "is built in: leave its declaration out, or take another name")
			continue
		case registered && !empty:
			y.problem(key, v, "is registered by the program: leave its declaration out, or take another name")
			continue
		case !builtIn && !registered && v.Kind != yaml.MappingNode:
			y.problem(key, k, "want a declaration with outbox.table, source.query and index.name"+suggest(k.Value, slices.Concat(projectionNames, y.registered)))
			continue
		}
		names = append(names, k.Value)
		if !builtIn && !registered {
			y.declaration(k, v)
		}
	}
	switch {
	case len(y.problems) > before:
		return
	case len(names) == 0:
		y.problem("projections", n, "names no projection; declare one, or leave the key out")
		return
	}
	out["projections"] = strings.Join(names, ",")
	y.places["projections"] = fmt.Sprintf("%s:%d", y.path, n.Line)
}

// declaration reads one projection.
func (y *yamlFile) declaration(name, n *yaml.Node) {
	d := projections.Declaration{Name: name.Value}
	text := func(to *string) func(string) error {
		return func(s string) error { *to = s; return nil }
	}
	fields := map[string]func(string) error{
		"outbox.table": text(&d.Table), "source.query": text(&d.Query),
		"source.nulls": func(s string) (err error) {
			s, err = parseOneOf(s, "keep", "drop")
			d.DropNulls = s == "drop"
			return err
		},
		"load":       func(s string) (err error) { d.Load, err = parseBool(s); return err },
		"index.name": func(s string) (err error) { d.Index, err = parseIndex(s); return err }, "index.pipeline": text(&d.Pipeline),
		"index.routing": text(&d.Routing), "index.id": text(&d.ID), "source.key": func(s string) error { d.Key = append(d.Key, s); return nil },
		"destination.table": text(&d.Destination),
		"index.mapping":     func(s string) (err error) { d.Mapping, err = y.beside(s); return err },
		"index.settings":    func(s string) (err error) { d.Settings, err = y.beside(s); return err },
	}
	before := len(y.problems)
	y.places["projections."+name.Value] = fmt.Sprintf("%s:%d", y.path, name.Line)
	y.fields("projections."+name.Value, "", n, fields)
	if len(y.problems) > before {
		return
	}
	key := "projections." + name.Value
	if err := d.Validate(); err != nil {
		for line := range strings.Lines(err.Error()) {
			y.problem(key, name, strings.TrimSpace(line))
		}
		return
	}
	for _, other := range y.declared {
		if err := d.Overlap(other); err != nil {
			y.problem(key, name, err.Error())
		}
		switch {
		case d.Destination != "" && other.Destination == d.Destination:
			y.problem(key, name, fmt.Sprintf("writes to table %s, as %s does: their rows would replace one another; take a table of its own", d.Destination, other.Name))
		case other.Table == d.Table:
			y.problem(key, name, fmt.Sprintf("reads outbox table %s, as %s does: an event is worked off once; make an outbox table for each projection", d.Table, other.Name))
		}
	}
	y.declared = append(y.declared, d)
}

// fields reads the mapping n into fields, whose names are dotted.
func (y *yamlFile) fields(key, prefix string, n *yaml.Node, fields map[string]func(string) error) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		name := prefix + k.Value
		y.places[key+"."+name] = fmt.Sprintf("%s:%d", y.path, k.Line)
		if set, ok := fields[name]; ok {
			if v.Kind == yaml.SequenceNode && name == "source.key" {
				for _, column := range v.Content {
					_ = set(column.Value)
				}
			} else if v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
				y.problem(key+"."+name, v, "want a single value here")
			} else if err := set(v.Value); err != nil {
				y.problem(key+"."+name, v, fmt.Sprintf("value %q: %s", clip(v.Value), err))
			}
			continue
		}
		var known []string
		section := false
		for f := range fields {
			known = append(known, f)
			section = section || strings.HasPrefix(f, name+".")
		}
		switch {
		case name == "outbox.columns":
			y.problem(key+"."+name, k, "cannot be set: weft works on an outbox table of its own column names; rename the columns of that table, or make one with `weft outbox create` (a view does not do: weft finds rows by their addresses)")
		case section && v.Kind == yaml.MappingNode:
			y.fields(key, name+".", v, fields)
		case section:
			y.problem(key+"."+name, v, "want a mapping of settings here")
		default:
			slices.Sort(known)
			y.problem(key+"."+name, k, "unknown setting"+cmp.Or(suggest(name, known), "; want one of "+strings.Join(known, ", ")))
		}
	}
}

// maxDeclaredFile is more than any mapping has.
const maxDeclaredFile = 4 << 20

// beside reads a file that is named relative to the configuration file.
func (y *yamlFile) beside(name string) ([]byte, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(y.path), name)
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", name, plainCause(err))
	}
	if info.Size() > maxDeclaredFile {
		return nil, fmt.Errorf("file %s: larger than 4 MiB", name)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", name, plainCause(err))
	}
	return b, nil
}
