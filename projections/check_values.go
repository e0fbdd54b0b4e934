package projections

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/samuelhu324-dev/weft/outbox"
)

// maxTerm is the longest value of a keyword field that Lucene indexes, in bytes.
const maxTerm = 32766

// mappedField is a field of a mapping, or the mapping itself.
type mappedField struct {
	Type        string                 `json:"type"`
	Format      string                 `json:"format"`
	IgnoreAbove int                    `json:"ignore_above"`
	Enabled     *bool                  `json:"enabled"`
	Properties  map[string]mappedField `json:"properties"`
}

// values compares the values of documents with what their fields take.
func (c *checker) values(events []outbox.Event, answers []answer) {
	var mapping mappedField
	if json.Unmarshal(c.declaration.Mapping, &mapping) != nil {
		return // said before
	}
	c.longValues(mapping, answers)
	lenient := bytes.Contains(slices.Concat(c.declaration.Mapping, c.declaration.Settings), []byte("ignore_malformed"))
	if !lenient && c.declaration.Pipeline == "" {
		c.refusedValues(mapping, events, answers)
	}
}

// longValues tells of values of keyword fields that are longer than these hold.
func (c *checker) longValues(mapping mappedField, answers []answer) {
	longest := map[string]string{}
	for _, a := range answers {
		for name, raw := range fieldsOf(a.body) {
			var text string
			if json.Unmarshal(raw, &text) == nil && len(text) > len(longest[name]) {
				longest[name] = text
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(longest)) {
		field, text := mapping.Properties[name], longest[name]
		switch n := utf8.RuneCountInString(text); {
		case field.Type != "keyword":
		case field.IgnoreAbove > 0 && n > field.IgnoreAbove:
			c.warn("index.mapping", fmt.Sprintf("field %s has a value of %d characters, and ignore_above %d leaves it out of searches", name, n, field.IgnoreAbove),
				"raise ignore_above, or make the field a text")
		case field.IgnoreAbove == 0 && len(text) > maxTerm:
			c.find("index.mapping", fmt.Sprintf("field %s has a value of %d bytes, and a keyword holds %d: the document would be refused", name, len(text), maxTerm),
				"set ignore_above, or make the field a text")
		}
	}
}

// fieldsOf returns the fields of a document; none for a row without one.
func fieldsOf(document []byte) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	if json.Unmarshal(document, &fields) != nil {
		return nil
	}
	return fields
}

// refusedValues warns of values that Elasticsearch does not take for the type of their field, once for each field.
// A type that weft does not know takes all.
func (c *checker) refusedValues(mapping mappedField, events []outbox.Event, answers []answer) {
	told := map[string]bool{}
	for i, a := range answers {
		fields := fieldsOf(a.body)
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			decoder := json.NewDecoder(bytes.NewReader(fields[name]))
			decoder.UseNumber()
			var v any
			if decoder.Decode(&v) != nil || told[name] {
				continue
			}
			if path, typ := mapping.Properties[name].refuses(name, v); path != "" {
				told[name] = true
				c.warn("index.mapping", fmt.Sprintf("the event of entity %s would end in failed: its value of field %s is none of type %s", events[i].Key.ID, path, typ), fitting(typ))
			}
		}
	}
}

// refuses returns the path and the type of the first field that does not take its value; nothing when each takes its own.
func (f mappedField) refuses(path string, v any) (refusing, typ string) {
	if f.Enabled != nil && !*f.Enabled {
		return "", ""
	}
	typ = f.Type
	if f.Properties != nil && typ == "" {
		typ = "object"
	}
	switch v := v.(type) {
	case nil:
	case []any:
		for _, one := range v {
			if refusing, typ := f.refuses(path, one); refusing != "" {
				return refusing, typ
			}
		}
	case map[string]any:
		if takes[typ] != nil {
			return path, typ
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if refusing, typ := f.Properties[name].refuses(path+"."+name, v[name]); refusing != "" {
				return refusing, typ
			}
		}
	default:
		if slices.Contains(objects, typ) || f.Format == "" && takes[typ] != nil && !takes[typ](fmt.Sprint(v)) {
			return path, typ
		}
	}
	return "", ""
}

// objects are the types that take objects alone; an ip_range takes a text as well.
var objects = []string{"object", "nested", "flattened", "integer_range", "long_range", "float_range", "double_range", "date_range"}

// takes says whether a type takes a boolean, a number or a text; it takes no object.
var takes = map[string]func(string) bool{
	"text":       func(string) bool { return true },
	"keyword":    func(string) bool { return true },
	"boolean":    func(s string) bool { return s == "true" || s == "false" || s == "" },
	"ip":         func(s string) bool { _, err := netip.ParseAddr(s); return err == nil },
	"date":       dates.MatchString,
	"byte":       within(1 << 7),
	"short":      within(1 << 15),
	"integer":    within(1 << 31),
	"long":       within(1 << 63),
	"float":      within(math.MaxFloat32),
	"half_float": within(65520),
	"double":     within(math.MaxFloat64),
}

// dates matches what a date takes without a format: a time of ISO 8601, or milliseconds.
var dates = regexp.MustCompile(`^(\d{4}(-\d\d(-\d\d(T.*)?)?)?|-?\d+(\.\d+)?([eE][+-]?\d+)?)$`)

// within returns what a number takes: a number up to limit, also as a text, and the empty text for none.
func within(limit float64) func(string) bool {
	return func(s string) bool {
		n, err := strconv.ParseFloat(s, 64)
		return s == "" || err == nil && math.Abs(n) <= limit
	}
}

func fitting(typ string) string {
	switch {
	case typ == "ip":
		return "return host() of an inet, or correct the mapping"
	case strings.HasSuffix(typ, "_range"):
		return "return json_build_object('gte', lower(…), 'lt', upper(…)), or correct the mapping"
	default:
		return "correct the query, the row or the mapping"
	}
}
