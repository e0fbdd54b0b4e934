package projections

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// declaredShape is what the query answers, and the statement that reads it.
type declaredShape struct {
	key      *entityKey
	fields   []declaredField
	sql      string
	versions string
	probe    string // whose answer has columns, and no row
	columns  []pgconn.FieldDescription
}

type declaredField struct {
	name   string
	prefix []byte // the name as JSON has it, with a colon
	oid    uint32 // of the value as it is sent
	append appendValue
}

// The columns that are no fields, in the order in which they are read.
const (
	columnType = iota
	columnEntity
	columnVersion
	columnDeleted
	reservedColumns
)

var reserved = [reservedColumns]string{"", "entity_id", "version", "deleted"}

// shapeOf decides how each column of the query is read, or says what is wrong with them.
func shapeOf(d Declaration, key *entityKey, columns []pgconn.FieldDescription, categories map[uint32]string) (*declaredShape, error) {
	shape := &declaredShape{key: key}
	exprs := []string{key.typ, key.expr, `q."version"::bigint`, "false"}
	seen := map[string]bool{}
	var errs []error
	for i, c := range columns {
		switch {
		case c.Name == "?column?":
			errs = append(errs, fmt.Errorf("column %d has no name: give it one with `as`", i+1))
			continue
		case seen[c.Name]:
			errs = append(errs, fmt.Errorf("two columns are named %q: give one another name with `as`", c.Name))
			continue
		}
		seen[c.Name] = true
		column := "q." + pgx.Identifier{c.Name}.Sanitize()
		switch {
		case c.Name == reserved[columnVersion], c.Name == reserved[columnEntity] && !key.typed:
		case c.Name == reserved[columnDeleted]:
			if c.DataTypeOID != boolOID {
				errs = append(errs, errors.New("column deleted is no boolean: write a condition, as in `deleted_at is not null as deleted`"))
			}
			exprs[columnDeleted] = "coalesce(" + column + ", false)"
		default:
			v := valueOf(c.DataTypeOID, categories[c.DataTypeOID])
			if d.Destination != "" {
				v.append = v.orWord(c.DataTypeOID)
			}
			exprs = append(exprs, strings.ReplaceAll(v.expr, "{column}", column))
			prefix := append(elastic.AppendString(nil, c.Name), ':')
			shape.fields = append(shape.fields, declaredField{name: c.Name, prefix: prefix, oid: v.oid, append: v.append})
		}
	}
	if !seen[reserved[columnVersion]] {
		errs = append(errs, fmt.Errorf("there is no column version: join %s_versions v on the entity's id and return v.version, or return the version that the application keeps", strings.TrimSuffix(d.Table, "_events")))
	}
	wanted := slices.Clone(key.columns)
	if d.Routing != "" {
		wanted = append(wanted, d.Routing)
	}
	for _, name := range wanted {
		if !seen[name] {
			errs = append(errs, fmt.Errorf("there is no column %s: name the column that has it, as in `p.id as %s`", name, pgIdentifier(name)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	from := "\nfrom (\n" + d.query() + "\n) as q"
	shape.sql = "select " + strings.Join(exprs, ", ") + from
	shape.versions = "select " + strings.Join(exprs[:columnDeleted], ", ") + from
	return shape, nil
}

// document appends the JSON document of a row. Its error names the field.
func (shape *declaredShape) document(dst []byte, raw [][]byte, dropNulls bool) (_ []byte, err error) {
	dst = append(dst, '{')
	first := true
	for i, f := range shape.fields {
		if raw[i] == nil && dropNulls {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, f.prefix...)
		if raw[i] == nil {
			dst = append(dst, "null"...)
			continue
		}
		if dst, err = f.append(dst, raw[i]); err != nil {
			return dst, fmt.Errorf("field %s: %w", f.name, err)
		}
	}
	return append(dst, '}'), nil
}

// fits returns errShape when the columns are not those of the shape.
func (shape *declaredShape) fits(columns []pgconn.FieldDescription) error {
	if len(columns) != reservedColumns+len(shape.fields) {
		return errShape
	}
	for i, c := range columns {
		binary := c.Format == pgx.BinaryFormatCode
		switch {
		case i < reservedColumns && !binary && c.DataTypeOID != textOID:
			return fmt.Errorf("column %s is not in binary format", reserved[i])
		case i >= reservedColumns && c.DataTypeOID != shape.fields[i-reservedColumns].oid:
			return errShape
		case i >= reservedColumns && !binary && c.DataTypeOID != textOID:
			return fmt.Errorf("field %s is not in binary format", shape.fields[i-reservedColumns].name)
		}
	}
	return nil
}

// current returns errShape when the answer to the probe has other columns than the shape: the casts of
// sql would hide that.
func (shape *declaredShape) current(answers pgx.BatchResults) error {
	rows, err := answers.Query()
	if err != nil {
		return err
	}
	same := slices.EqualFunc(rows.FieldDescriptions(), shape.columns, func(a, b pgconn.FieldDescription) bool {
		return a.Name == b.Name && a.DataTypeOID == b.DataTypeOID
	})
	rows.Close()
	if err := rows.Err(); err != nil || same {
		return err
	}
	return errShape
}

// entity reads an entity, whose type is empty unless the query tells it. Most rows have the
// type of the last one, whose text is used again.
func (shape *declaredShape) entity(raw [][]byte, last outbox.Key) (k outbox.Key, err error) {
	if k.Type = last.Type; k.Type != string(raw[columnType]) {
		k.Type = string(raw[columnType])
	}
	k.ID, err = shape.id(raw[columnEntity])
	return k, err
}

// id reads an entity's id.
func (shape *declaredShape) id(raw []byte) (outbox.ID, error) {
	switch {
	case raw == nil:
		return outbox.ID{}, errors.New("entity_id is null")
	case shape.key.kind == outbox.KindUUID:
		u, err := uuid.FromBytes(raw)
		return outbox.UUID(u), err
	case shape.key.kind == outbox.KindNumber:
		return outbox.Number(int64(binary.BigEndian.Uint64(raw))), nil
	default:
		return outbox.Text(string(raw)), nil
	}
}
