package projections

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// sourceRow is one row of the search query, in PostgreSQL's binary format. Its
// slices belong to the connection and are valid until the next row.
type sourceRow struct {
	ord       int
	version   int64
	library   []byte // 16 bytes, or nil
	text      []byte
	snippet   []byte
	rank      []byte // float8, or nil
	createdAt []byte
	updatedAt []byte
}

// sourceColumns is the order of the columns that readRow expects.
const sourceColumns = 8

// readRow reads the current row of rows.
func readRow(fields []pgconn.FieldDescription, raw [][]byte) (sourceRow, error) {
	if len(raw) != sourceColumns {
		return sourceRow{}, fmt.Errorf("source row: %d columns", len(raw))
	}
	for i := range fields {
		if fields[i].Format != pgx.BinaryFormatCode {
			return sourceRow{}, fmt.Errorf("source row: column %s is not in binary format", fields[i].Name)
		}
	}
	if len(raw[0]) != 8 || len(raw[1]) != 8 {
		return sourceRow{}, fmt.Errorf("source row: numbers of %d and %d bytes, want 8", len(raw[0]), len(raw[1]))
	}
	return sourceRow{
		ord:     int(binary.BigEndian.Uint64(raw[0])),
		version: int64(binary.BigEndian.Uint64(raw[1])),
		library: raw[2], text: raw[3], snippet: raw[4], rank: raw[5], createdAt: raw[6], updatedAt: raw[7],
	}, nil
}

// appendDocument appends the JSON document of key from row. Its error names the
// field that has no form in JSON.
func appendDocument(dst []byte, key *outbox.Key, row *sourceRow) ([]byte, error) {
	dst = append(dst, `{"entity_type":`...)
	dst = elastic.AppendString(dst, key.Type)
	dst = append(dst, `,"entity_id":`...)
	dst = append(key.ID.AppendTo(append(dst, '"')), '"')
	dst = append(dst, `,"library_id":`...)
	dst = appendUUID(dst, row.library)
	dst = append(dst, `,"text":`...)
	dst = appendText(dst, row.text)
	dst = append(dst, `,"snippet":`...)
	dst = appendText(dst, row.snippet)
	dst = append(dst, `,"rank_score":`...)
	var err error
	if dst, err = appendFloat(dst, row.rank); err != nil {
		return dst, fmt.Errorf("rank_score: %w", err)
	}
	dst = append(dst, `,"event_version":`...)
	dst = strconv.AppendInt(dst, row.version, 10)
	dst = append(dst, `,"created_at":`...)
	if dst, err = appendTime(dst, row.createdAt); err != nil {
		return dst, fmt.Errorf("created_at: %w", err)
	}
	dst = append(dst, `,"updated_at":`...)
	if dst, err = appendTime(dst, row.updatedAt); err != nil {
		return dst, fmt.Errorf("updated_at: %w", err)
	}
	return append(dst, '}'), nil
}

func appendText(dst, v []byte) []byte {
	if v == nil {
		return append(dst, "null"...)
	}
	return elastic.AppendString(dst, v)
}

func appendUUID(dst, v []byte) []byte {
	if len(v) != 16 {
		return append(dst, "null"...)
	}
	return append(appendHyphenated(append(dst, '"'), v), '"')
}

// appendHyphenated appends the 16 bytes of a UUID in its usual form.
func appendHyphenated(dst, v []byte) []byte {
	dst = hex.AppendEncode(dst, v[:4])
	for _, part := range [...][2]int{{4, 6}, {6, 8}, {8, 10}, {10, 16}} {
		dst = append(dst, '-')
		dst = hex.AppendEncode(dst, v[part[0]:part[1]])
	}
	return dst
}

// appendFloat appends a float8. JSON has no word for NaN and the infinities.
func appendFloat(dst, v []byte) ([]byte, error) {
	if v == nil {
		return append(dst, "null"...), nil
	}
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
	if v == nil {
		return append(dst, "null"...), nil
	}
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
