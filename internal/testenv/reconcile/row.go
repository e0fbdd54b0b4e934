package reconcile

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// row is one row of search_index.
type row struct {
	typ              string
	entity           [16]byte
	library          *[16]byte
	text             string
	snippet          *string
	rank             *float64
	version          int64
	created, updated time.Time
}

func scanRow(r pgx.CollectableRow) (out row, err error) {
	err = r.Scan(&out.typ, &out.entity, &out.library, &out.text, &out.snippet, &out.rank, &out.version, &out.created, &out.updated)
	return out, err
}

func (r *row) id() string { return documentID(r.typ, r.entity) }

// field is what a document must have under a name; a nil want is null or no field.
type field struct {
	name  string
	want  any
	equal func(got any) bool
}

// fields lists the body that the contract asks for.
func (r *row) fields() []field {
	var library *string
	if r.library != nil {
		s := uuid.UUID(*r.library).String()
		library = &s
	}
	entity := uuid.UUID(r.entity).String()
	return []field{
		text("entity_type", &r.typ),
		text("entity_id", &entity),
		text("library_id", library),
		text("text", &r.text),
		text("snippet", r.snippet),
		number("rank_score", r.rank),
		integer("event_version", r.version),
		instant("created_at", r.created),
		instant("updated_at", r.updated),
	}
}

func text(name string, want *string) field {
	if want == nil {
		return absent(name)
	}
	return field{name, *want, func(got any) bool { return got == *want }}
}

func absent(name string) field { return field{name, nil, func(got any) bool { return got == nil }} }

func number(name string, want *float64) field {
	if want == nil {
		return absent(name)
	}
	return field{name, *want, func(got any) bool {
		n, ok := got.(json.Number)
		if !ok {
			return false
		}
		f, err := n.Float64()
		return err == nil && f == *want
	}}
}

func integer(name string, want int64) field {
	return field{name, want, func(got any) bool {
		n, ok := got.(json.Number)
		if !ok {
			return false
		}
		i, err := n.Int64()
		return err == nil && i == want
	}}
}

// instant compares points in time: the zone in which one is written is no difference.
func instant(name string, want time.Time) field {
	return field{name, want.UTC(), func(got any) bool {
		s, ok := got.(string)
		if !ok {
			return false
		}
		t, err := time.Parse(time.RFC3339Nano, s)
		return err == nil && t.Equal(want)
	}}
}
