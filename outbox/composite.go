package outbox

import "strings"

// The id of an entity whose key has several columns is one text of all parts, as the database's
// functions weft_part and weft_part_of write and read it: colons between the parts, and in a part
// %25 for a percent sign and %3A for a colon. Different parts make different texts. Where the
// outbox has a routing that is no column of the key, the routing is the first part of an event's id.

var (
	partWriter = strings.NewReplacer("%", "%25", ":", "%3A")
	partReader = strings.NewReplacer("%3A", ":", "%25", "%")
)

// Composite returns the id, of [KindText], of the parts of a key, in the order of its columns. Each
// part is the text of its value as PostgreSQL prints it, but a numeric without zeros at its end and a
// char(n) without blanks there. A part is escaped also when it is the only one. Composite checks no
// length: see [MaxTextID].
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

// Parts returns the parts that Composite was given; for no parts it returns one, which is empty. An id
// that Composite has not made is split at its colons all the same: compare it with Composite of its
// Parts to find out.
func (i ID) Parts() []string {
	parts := strings.Split(i.String(), ":")
	for n, p := range parts {
		parts[n] = partReader.Replace(p)
	}
	return parts
}
