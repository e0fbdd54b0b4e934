package projections

import (
	"fmt"
	"strings"
)

// idTemplate is how the id of a document is written, as in {tenant}:{id}.
type idTemplate []idPiece

// idPiece is a text, or the part of an id with a name.
type idPiece struct {
	text, name string
	part       int    // its place in the id
	escape     string // what is escaped in the part, besides the percent sign
}

// maxPrefix leaves room for the key in an id, in bytes.
const maxPrefix = 100

// parseTemplate reads a template. Different keys make different ids: what separates two parts
// begins with a sign that is escaped within them. One part alone is written as it is.
func parseTemplate(text string) (idTemplate, error) {
	var t idTemplate
	for rest := text; rest != ""; {
		literal, after, open := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return nil, fmt.Errorf("index.id %q: a } without {", text)
		}
		if literal != "" {
			t = append(t, idPiece{text: literal})
		}
		if !open {
			break
		}
		name, next, closed := strings.Cut(after, "}")
		if !closed || name == "" || strings.Contains(name, "{") {
			return nil, fmt.Errorf("index.id %q: want the name of a column in braces, as in {tenant}:{id}", text)
		}
		t = append(t, idPiece{name: name})
		rest = next
	}
	if text == "" {
		return nil, nil
	}
	return t, t.separate(text)
}

// separate has each part escaped, or says why ids would be ambiguous.
func (t idTemplate) separate(text string) error {
	var parts []int
	signs := ""
	for i, p := range t {
		if p.name == "" {
			continue
		}
		if len(parts) > 0 {
			between := t[i-1].text
			if between == "" || strings.IndexByte(`:|/_-.,;+=~!@#$&*()<> `, between[0]) < 0 {
				return fmt.Errorf("index.id %q: nothing separates {%s} from {%s}, so two keys could make one id: write a sign such as : between them", text, t[parts[len(parts)-1]].name, p.name)
			}
			signs += between[:1]
		}
		parts = append(parts, i)
	}
	switch {
	case len(parts) == 0:
		return fmt.Errorf("index.id %q names no column, so all documents would be one: write as in p-{id}", text)
	case len(t.prefix()) > maxPrefix:
		return fmt.Errorf("index.id begins with %d bytes: want at most %d", len(t.prefix()), maxPrefix)
	case len(parts) == 1:
		return nil
	}
	for _, i := range parts {
		t[i].escape = signs
	}
	return nil
}

// prefix is what all ids begin with.
func (t idTemplate) prefix() string {
	if len(t) == 0 {
		return ""
	}
	return t[0].text
}

// appendTo appends the id of the document of these parts.
func (t idTemplate) appendTo(dst []byte, parts []string) []byte {
	for _, p := range t {
		dst = append(dst, p.text...)
		if p.name == "" {
			continue
		}
		value := parts[p.part]
		if p.escape == "" {
			dst = append(dst, value...)
			continue
		}
		for i := range len(value) {
			if c := value[i]; c == '%' || strings.IndexByte(p.escape, c) >= 0 {
				dst = fmt.Appendf(dst, "%%%02X", c)
			} else {
				dst = append(dst, c)
			}
		}
	}
	return dst
}

// disjoint reports whether no id of one template is an id of the other.
func (t idTemplate) disjoint(o idTemplate) bool {
	a, b := t.prefix(), o.prefix()
	return a != "" && b != "" && !strings.HasPrefix(a, b) && !strings.HasPrefix(b, a)
}
