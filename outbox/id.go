package outbox

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// IDKind is the type of a column of ids.
type IDKind uint8

// The kinds. Events have a uuid or a number, entities any of them.
const (
	KindUUID IDKind = iota + 1
	KindNumber
	KindText
)

// String returns the column's type as PostgreSQL spells it.
func (k IDKind) String() string {
	return [...]string{"none", KindUUID: "uuid", KindNumber: "bigint", KindText: "text"}[k]
}

// MaxTextID is the longest id of an entity, in bytes: PostgreSQL indexes few longer ones.
const MaxTextID = 2500

// MaxType is the most characters of an entity's type.
const MaxType = 50

// ID is the id of an event or of an entity, as its column has it. It is comparable; the
// zero value is no id.
type ID struct {
	kind IDKind
	raw  string // as on the wire: 16 bytes, 8 bytes, or the text
}

// UUID returns the ID of a uuid.
func UUID(u uuid.UUID) ID { return ID{KindUUID, string(u[:])} }

// Number returns the ID of a bigint.
func Number(n int64) ID {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	return ID{KindNumber, string(b[:])}
}

// Text returns the ID of a text.
func Text(s string) ID { return ID{KindText, s} }

// ParseID reads an ID as String writes it. It refuses a text that is empty or longer than [MaxTextID].
func ParseID(kind IDKind, s string) (ID, error) {
	switch kind {
	case KindUUID:
		u, err := uuid.Parse(s)
		if err != nil {
			return ID{}, fmt.Errorf("id %q: want a UUID", s)
		}
		return UUID(u), nil
	case KindNumber:
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return ID{}, fmt.Errorf("id %q: want a whole number of 64 bits", s)
		}
		return Number(n), nil
	case KindText:
		if s == "" || len(s) > MaxTextID {
			return ID{}, fmt.Errorf("id of %d bytes: want 1 to %d", len(s), MaxTextID)
		}
		return Text(s), nil
	default:
		return ID{}, errors.New("id of no kind")
	}
}

// readID reads an ID that a table holds as String wrote it: also one that is empty, or as long as PostgreSQL can
// make it short, which nobody may name.
func readID(kind IDKind, s string) (ID, error) {
	if kind == KindText {
		return Text(s), nil
	}
	return ParseID(kind, s)
}

// idOf returns the ID of kind with these bytes of the wire.
func idOf(kind IDKind, raw string) (ID, error) {
	if kind == KindUUID && len(raw) != 16 || kind == KindNumber && len(raw) != 8 {
		return ID{}, fmt.Errorf("%d bytes for an id of type %s", len(raw), kind)
	}
	return ID{kind, raw}, nil
}

// Kind returns the type of the column that it is from.
func (i ID) Kind() IDKind { return i.kind }

// IsZero reports whether i is no id.
func (i ID) IsZero() bool { return i.kind == 0 }

// UUID returns the uuid; ok is false when i is of another kind.
func (i ID) UUID() (u uuid.UUID, ok bool) {
	if i.kind != KindUUID {
		return u, false
	}
	copy(u[:], i.raw)
	return u, true
}

// Number returns the number; ok is false when i is of another kind.
func (i ID) Number() (n int64, ok bool) {
	if i.kind != KindNumber {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64([]byte(i.raw))), true
}

// Digest returns 64 bits that are spread evenly over ids.
func (i ID) Digest() uint64 {
	if u, ok := i.UUID(); ok {
		return binary.BigEndian.Uint64(u[8:]) << 2 // its first two bits there are fixed
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(i.raw))
	const golden = 0x9e3779b97f4a7c15 // spreads the few bits in which short ids differ
	sum := h.Sum64() * golden
	return sum ^ sum>>32
}

// AppendTo appends what String returns.
func (i ID) AppendTo(dst []byte) []byte {
	switch i.kind {
	case KindUUID:
		var raw [16]byte
		copy(raw[:], i.raw)
		from := 0
		for _, to := range [...]int{4, 6, 8, 10, 16} {
			if from > 0 {
				dst = append(dst, '-')
			}
			dst = hex.AppendEncode(dst, raw[from:to])
			from = to
		}
		return dst
	case KindNumber:
		n, _ := i.Number()
		return strconv.AppendInt(dst, n, 10)
	default:
		return append(dst, i.raw...)
	}
}

// String returns a uuid in its usual form, a number in decimals, a text as it is.
func (i ID) String() string { return string(i.AppendTo(nil)) }

// MarshalText implements [encoding.TextMarshaler].
func (i ID) MarshalText() ([]byte, error) { return i.AppendTo(nil), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. The text does not tell its kind: what
// reads as a uuid or as a number becomes one.
func (i *ID) UnmarshalText(text []byte) error {
	*i = ID{}
	if len(text) == 0 {
		return nil
	}
	for _, kind := range []IDKind{KindUUID, KindNumber, KindText} {
		if id, err := ParseID(kind, string(text)); err == nil && (kind == KindText || id.String() == string(text)) {
			*i = id
			return nil
		}
	}
	return fmt.Errorf("id of %d bytes: want at most %d", len(text), MaxTextID)
}

// Compare orders ids of one kind as PostgreSQL does, texts by their bytes.
func (i ID) Compare(o ID) int {
	a, aok := i.Number()
	b, bok := o.Number()
	if aok && bok {
		return cmp.Compare(a, b)
	}
	return strings.Compare(i.raw, o.raw)
}

// UUIDValue implements [pgtype.UUIDValuer].
func (i *ID) UUIDValue() (pgtype.UUID, error) {
	u, ok := i.UUID()
	return pgtype.UUID{Bytes: u, Valid: ok}, i.want(KindUUID)
}

// Int64Value implements [pgtype.Int64Valuer].
func (i *ID) Int64Value() (pgtype.Int8, error) {
	n, ok := i.Number()
	return pgtype.Int8{Int64: n, Valid: ok}, i.want(KindNumber)
}

// TextValue implements [pgtype.TextValuer].
func (i *ID) TextValue() (pgtype.Text, error) {
	return pgtype.Text{String: i.raw, Valid: i.kind == KindText}, i.want(KindText)
}

func (i *ID) want(kind IDKind) error {
	if i.kind != kind && !i.IsZero() {
		return fmt.Errorf("id %s is a %s, the column is a %s", i, i.kind, kind)
	}
	return nil
}

// ScanUUID implements [pgtype.UUIDScanner].
func (i *ID) ScanUUID(v pgtype.UUID) error { return i.scan(UUID(v.Bytes), v.Valid) }

// ScanInt64 implements [pgtype.Int64Scanner].
func (i *ID) ScanInt64(v pgtype.Int8) error { return i.scan(Number(v.Int64), v.Valid) }

// ScanText implements [pgtype.TextScanner].
func (i *ID) ScanText(v pgtype.Text) error { return i.scan(Text(v.String), v.Valid) }

func (i *ID) scan(id ID, valid bool) error {
	*i = ID{}
	if valid {
		*i = id
	}
	return nil
}

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
