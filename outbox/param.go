package outbox

import (
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Columns of batches are sent as arrays. The driver asks for each element as an interface:
// a pointer into a slice is one without an allocation.

// array is a parameter of n elements, a [pgtype.ArrayGetter]; at returns a pointer to one of them.
type array struct {
	n  int
	at func(i int) any
	of any // a nil pointer of the elements' type
}

func (a array) Dimensions() []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(a.n), LowerBound: 1}}
}

func (a array) Index(i int) any { return a.at(i) }

func (a array) IndexType() any { return a.of }

// arrayOf passes a field of the elements of s.
func arrayOf[S, E any](s []S, field func(*S) *E) array {
	return array{n: len(s), at: func(i int) any { return field(&s[i]) }, of: (*E)(nil)}
}

func self[E any](e *E) *E { return e }

// IDs passes ids as a parameter of type uuid[], bigint[] or text[]; field returns the id
// of an element.
func IDs[S any](s []S, field func(*S) *ID) any { return arrayOf(s, field) }

// orNull passes null for zero.
func orNull[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// momentOf reads a timestamptz of the wire that may be infinite.
func momentOf(micros int64) pgtype.Timestamptz {
	switch micros {
	case math.MaxInt64:
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	case math.MinInt64:
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	default:
		return pgtype.Timestamptz{Time: timestamp(micros), Valid: true}
	}
}

// pgEpoch is PostgreSQL's zero, 2000-01-01, in seconds of Unix.
const pgEpoch = 946684800

// timestamp reads a finite timestamptz of the wire.
func timestamp(micros int64) time.Time { return time.Unix(pgEpoch+micros/1e6, micros%1e6*1e3) }
