package outbox

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// idArray is a parameter of type uuid[]. The driver asks for each element as an
// interface: a pointer into the array is one without an allocation.
type idArray []id

type id uuid.UUID

// UUIDValue implements [pgtype.UUIDValuer].
func (i *id) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: *i, Valid: true}, nil }

// Dimensions implements [pgtype.ArrayGetter].
func (a idArray) Dimensions() []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(len(a)), LowerBound: 1}}
}

// Index implements [pgtype.ArrayGetter].
func (a idArray) Index(i int) any { return &a[i] }

// IndexType implements [pgtype.ArrayGetter].
func (a idArray) IndexType() any { return (*id)(nil) }
