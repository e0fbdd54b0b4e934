package outbox

import "strings"

// The id of an entity whose key has several columns is one text of all parts, as the functions
// weft_part and weft_part_of of the database have it: colons between the parts, and in a part
// %25 for a percent sign and %3A for a colon. Different parts make different texts. Where the
// outbox has a routing, that is the first part.

var (
	partWriter = strings.NewReplacer("%", "%25", ":", "%3A")
	partReader = strings.NewReplacer("%3A", ":", "%25", "%")
)

// Composite returns the id of these parts. Each part is the text of its value as PostgreSQL prints
// it: a numeric without zeros at its end, a char(n) without blanks there.
func Composite(parts ...string) ID {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte(':')
		}
		_, _ = partWriter.WriteString(&b, p)
	}
	return Text(b.String())
}

// Parts returns what Composite has been given.
func (i ID) Parts() []string {
	parts := strings.Split(i.String(), ":")
	for n, p := range parts {
		parts[n] = partReader.Replace(p)
	}
	return parts
}
