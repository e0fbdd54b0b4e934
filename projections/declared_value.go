package projections

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// appendValue appends the JSON form of a value that is not null. v is as on the wire.
type appendValue func(dst, v []byte) ([]byte, error)

const (
	boolOID = pgtype.BoolOID
	textOID = pgtype.TextOID
)

// value says how the values of a type are sent and written.
type value struct {
	expr   string // {column} stands for the column
	oid    uint32 // of the expression
	append appendValue
}

// valueOf returns how a type becomes JSON:
//
//	boolean                           true, false
//	smallint, integer, bigint         a number
//	real, double precision            a number; NaN and the infinities have no form
//	numeric                           a number with all of its digits; the same
//	text, varchar, char, uuid, …      a string
//	timestamptz                       a string as in RFC 3339, in UTC
//	timestamp, date, interval         a string as in ISO 8601
//	bytea                             a string in base64
//	json, jsonb                       itself
//	arrays, composites                as PostgreSQL's to_json has them
//	anything else                     a string as PostgreSQL prints it
//
// category is the type's in pg_type.
func valueOf(oid uint32, category string) value {
	as := func(f appendValue) value { return value{"{column}", oid, f} }
	text := func(expr string, f appendValue) value { return value{expr, textOID, f} }
	switch oid {
	case pgtype.BoolOID:
		return as(appendBool)
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		return as(appendInt)
	case pgtype.Float8OID:
		return as(appendFloat)
	case pgtype.Float4OID:
		return as(appendFloat4)
	case pgtype.NumericOID:
		return text("{column}::text", appendNumeric)
	case pgtype.TextOID:
		return as(appendString)
	case pgtype.UUIDOID:
		return as(appendUUID)
	case pgtype.TimestamptzOID:
		return as(appendTime)
	case pgtype.TimestampOID, pgtype.InetOID: // the cast of an inet to text adds /32
		return text("to_json({column}) #>> '{}'", appendString)
	case pgtype.ByteaOID:
		return as(appendBytes)
	case pgtype.JSONOID, pgtype.JSONBOID:
		return text("{column}::text", appendJSON)
	}
	switch category {
	case "A", "C":
		return text("to_json({column})::text", appendJSON)
	default:
		return text("{column}::text", appendString)
	}
}

// orWord returns v.append for a table: of NaN and the infinities, for which JSON has no form, it appends the words that
// PostgreSQL reads into a column.
func (v value) orWord(oid uint32) appendValue {
	return func(dst, raw []byte) ([]byte, error) {
		out, err := v.append(dst, raw)
		if err == nil {
			return out, nil
		}
		var word string
		switch {
		case oid == pgtype.Float8OID && len(raw) == 8:
			word = wordOf(math.Float64frombits(binary.BigEndian.Uint64(raw)))
		case oid == pgtype.Float4OID && len(raw) == 4:
			word = wordOf(float64(math.Float32frombits(binary.BigEndian.Uint32(raw))))
		case oid == pgtype.NumericOID:
			word = string(raw)
		case oid == pgtype.TimestamptzOID && len(raw) == 8:
			word = map[int64]string{math.MaxInt64: "infinity", math.MinInt64: "-infinity"}[int64(binary.BigEndian.Uint64(raw))]
		}
		if word == "" {
			return out, err
		}
		return append(append(append(dst, '"'), word...), '"'), nil
	}
}

// wordOf returns PostgreSQL's word for a float that is not finite.
func wordOf(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	default:
		return "-Infinity"
	}
}

func appendBool(dst, v []byte) ([]byte, error) {
	if len(v) != 1 {
		return dst, fmt.Errorf("%d bytes, want a boolean", len(v))
	}
	return strconv.AppendBool(dst, v[0] != 0), nil
}

func appendInt(dst, v []byte) ([]byte, error) {
	switch len(v) {
	case 2:
		return strconv.AppendInt(dst, int64(int16(binary.BigEndian.Uint16(v))), 10), nil
	case 4:
		return strconv.AppendInt(dst, int64(int32(binary.BigEndian.Uint32(v))), 10), nil
	case 8:
		return strconv.AppendInt(dst, int64(binary.BigEndian.Uint64(v)), 10), nil
	default:
		return dst, fmt.Errorf("%d bytes, want a whole number", len(v))
	}
}

func appendFloat4(dst, v []byte) ([]byte, error) {
	if len(v) != 4 {
		return dst, fmt.Errorf("%d bytes, want a float4", len(v))
	}
	f := float64(math.Float32frombits(binary.BigEndian.Uint32(v)))
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return dst, fmt.Errorf("%v is not a finite number", f)
	}
	return strconv.AppendFloat(dst, f, 'g', -1, 32), nil
}

// appendNumeric appends a numeric, whose text is a number of JSON unless it is none at all.
func appendNumeric(dst, v []byte) ([]byte, error) {
	if len(v) == 0 || v[len(v)-1] < '0' || v[len(v)-1] > '9' { // NaN, Infinity
		return dst, fmt.Errorf("%s is not a finite number", v)
	}
	return append(dst, v...), nil
}

func appendString(dst, v []byte) ([]byte, error) { return elastic.AppendString(dst, v), nil }

func appendBytes(dst, v []byte) ([]byte, error) {
	return append(base64.StdEncoding.AppendEncode(append(dst, '"'), v), '"'), nil
}

// appendJSON appends JSON as it is. A line break stands only between its parts, and would
// end the line of a bulk request.
func appendJSON(dst, v []byte) ([]byte, error) {
	if len(v) == 0 {
		return dst, errors.New("no JSON")
	}
	from := len(dst)
	dst = append(dst, v...)
	if bytes.ContainsAny(v, "\n\r") {
		for i := from; i < len(dst); i++ {
			if dst[i] == '\n' || dst[i] == '\r' {
				dst[i] = ' '
			}
		}
	}
	return dst, nil
}

// appendUUID appends the 16 bytes of a UUID in its usual form.
func appendUUID(dst, v []byte) ([]byte, error) {
	if len(v) != 16 {
		return dst, fmt.Errorf("%d bytes, want a uuid", len(v))
	}
	dst = hex.AppendEncode(append(dst, '"'), v[:4])
	for _, part := range [...][2]int{{4, 6}, {6, 8}, {8, 10}, {10, 16}} {
		dst = hex.AppendEncode(append(dst, '-'), v[part[0]:part[1]])
	}
	return append(dst, '"'), nil
}

// appendFloat appends a float8. JSON has no word for NaN and the infinities.
func appendFloat(dst, v []byte) ([]byte, error) {
	if len(v) != 8 {
		return dst, fmt.Errorf("%d bytes, want a float8", len(v))
	}
	f := math.Float64frombits(binary.BigEndian.Uint64(v))
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return dst, fmt.Errorf("%v is not a finite number", f)
	}
	return strconv.AppendFloat(dst, f, 'g', -1, 64), nil
}

// appendTime appends a timestamptz in UTC as RFC 3339 with microseconds. A year that
// RFC 3339 cannot write, or infinity, is an error.
func appendTime(dst, v []byte) ([]byte, error) {
	if len(v) != 8 {
		return dst, fmt.Errorf("%d bytes, want a timestamptz", len(v))
	}
	const epoch = 946684800 // 2000-01-01 in Unix seconds, PostgreSQL's zero
	micros := int64(binary.BigEndian.Uint64(v))
	if micros == math.MaxInt64 || micros == math.MinInt64 {
		return dst, fmt.Errorf("infinite")
	}
	t := time.Unix(epoch+micros/1e6, micros%1e6*1e3).UTC()
	if y := t.Year(); y < 0 || y > 9999 {
		return dst, fmt.Errorf("the year %d has no RFC 3339 form", y)
	}
	dst = append(dst, '"')
	dst = t.AppendFormat(dst, "2006-01-02T15:04:05.999999Z07:00")
	return append(dst, '"'), nil
}
