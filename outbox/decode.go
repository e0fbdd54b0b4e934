package outbox

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// row is one answer of a claim or a list.
type row struct {
	Event
	candidates int           // that the claim looked at
	cost       time.Duration // of the look
	taken      bool          // otherwise somebody else holds it
	fenced     bool
}

// rowDecoder reads the answers of one statement. Texts that repeat are kept once.
type rowDecoder struct{ typ, op string }

// Columns of an answer; a careful claim has the last two besides.
const (
	listColumns    = 6
	boldColumns    = 13
	carefulColumns = 15
)

// decode reads the current row. By hand, because it is done for each event: the
// driver's way costs three times as much.
func (d *rowDecoder) decode(rows pgx.Rows) (c row, err error) {
	fields, raw := rows.FieldDescriptions(), rows.RawValues()
	if len(fields) != boldColumns && len(fields) != carefulColumns {
		return c, fmt.Errorf("answer has %d columns", len(fields))
	}
	c.taken = true
	if fields[0].Format != pgx.BinaryFormatCode { // the connection uses the simple protocol
		return d.scan(rows, len(fields))
	}
	sizes := [carefulColumns]int{0: 16, 2: 16, 4: 8, 5: 4, 6: 4, 7: 8, 10: 8, 11: 8, 12: 8, 13: 1, 14: 8}
	for i, size := range sizes[:len(fields)] {
		if size > 0 && len(raw[i]) != size {
			return c, fmt.Errorf("answer has %d bytes for %s, want %d", len(raw[i]), fields[i].Name, size)
		}
	}
	c.ID, c.Key.ID = [16]byte(raw[0]), [16]byte(raw[2])
	c.Key.Type, c.Op = repeated(&d.typ, raw[1]), Op(repeated(&d.op, raw[3]))
	c.Version = int64(binary.BigEndian.Uint64(raw[4]))
	c.Attempts, c.Reclaims = int(int32(binary.BigEndian.Uint32(raw[5]))), int(int32(binary.BigEndian.Uint32(raw[6])))
	c.CreatedAt = timestamp(raw[7])
	c.Traceparent, c.Tracestate = string(raw[8]), string(raw[9])
	c.ClaimedAt, c.candidates = timestamp(raw[10]), int(binary.BigEndian.Uint64(raw[11]))
	c.cost = microseconds(raw[12])
	if len(fields) == carefulColumns {
		c.taken, c.fenced = raw[13][0] == 1, binary.BigEndian.Uint64(raw[14]) == 0
	}
	return c, nil
}

// decodeListed reads the current row of a list, and what the look had cost by then.
func (d *rowDecoder) decodeListed(rows pgx.Rows) (l Listed, cost time.Duration, err error) {
	fields, raw := rows.FieldDescriptions(), rows.RawValues()
	if fields[0].Format != pgx.BinaryFormatCode {
		var micros int64
		err = rows.Scan((*[16]byte)(&l.ID), &l.Key.Type, (*[16]byte)(&l.Key.ID), (*string)(&l.Op), &l.Version, &micros)
		return l, time.Duration(micros) * time.Microsecond, err
	}
	if len(fields) != listColumns || len(raw[0]) != 16 || len(raw[2]) != 16 || len(raw[4]) != 8 || len(raw[5]) != 8 {
		return l, 0, fmt.Errorf("answer has %d columns of unexpected sizes", len(fields))
	}
	l.ID, l.Key.ID = [16]byte(raw[0]), [16]byte(raw[2])
	l.Key.Type, l.Op = repeated(&d.typ, raw[1]), Op(repeated(&d.op, raw[3]))
	l.Version = int64(binary.BigEndian.Uint64(raw[4]))
	return l, microseconds(raw[5]), nil
}

func (d *rowDecoder) scan(rows pgx.Rows, columns int) (c row, err error) {
	fences, micros := 1, int64(0)
	c.taken = true
	into := []any{
		(*[16]byte)(&c.ID), &c.Key.Type, (*[16]byte)(&c.Key.ID), (*string)(&c.Op), &c.Version,
		&c.Attempts, &c.Reclaims, &c.CreatedAt, &c.Traceparent, &c.Tracestate, &c.ClaimedAt, &c.candidates, &micros, &c.taken, &fences,
	}
	err = rows.Scan(into[:columns]...)
	c.fenced, c.cost = fences == 0, time.Duration(micros)*time.Microsecond
	return c, err
}

// repeated returns raw as a string, the last one if it is the same.
func repeated(last *string, raw []byte) string {
	if *last != string(raw) {
		*last = string(raw)
	}
	return *last
}

func microseconds(raw []byte) time.Duration {
	return time.Duration(binary.BigEndian.Uint64(raw)) * time.Microsecond
}

// timestamp reads a finite timestamptz.
func timestamp(raw []byte) time.Time {
	const epoch = 946684800 // 2000-01-01 in Unix seconds, PostgreSQL's zero
	micros := int64(binary.BigEndian.Uint64(raw))
	return time.Unix(epoch+micros/1e6, micros%1e6*1e3)
}
