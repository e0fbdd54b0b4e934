package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// ActionRepair is the audit's action of documents that were written anew because they differed from
// their rows.
const ActionRepair = "repair"

// Standing says what the outbox still has of an entity.
type Standing struct {
	Open   bool // an event that is not settled
	Failed bool // a dead letter
}

// Mender looks at the events of entities, and has their documents written anew. It is safe
// for concurrent use.
type Mender struct {
	*access
	projection string
	key        string // type of the keys that weft draws versions of; empty where it draws none
	unnumbered string // statement about those versions
	shard      bool   // the schema has a part of the entities
}

// OpenMender returns the Mender of a projection's outbox table.
func OpenMender(ctx context.Context, db DB, table, projection string, timeout time.Duration) (*Mender, error) {
	a, err := openAccess(ctx, db, table, timeout)
	if err != nil {
		return nil, err
	}
	m := &Mender{access: a, projection: projection}
	versions := strings.TrimSuffix(table, "_events") + "_versions"
	if err := m.one(ctx, "versions", m.sql.get("versions"), []any{versions}, &m.key, &m.shard); err != nil {
		return nil, err
	}
	m.unnumbered = strings.NewReplacer("{versions}", versions, "{key}", m.key).Replace(m.sql.get("unnumbered"))
	return m, nil
}

// OwnsVersions reports whether weft draws the versions of the entities, so that a document
// ahead of its row can be overtaken.
func (m *Mender) OwnsVersions() bool { return m.key != "" }

// Entity reads an entity's id as a table holds it.
func (m *Mender) Entity(entityType, id string) (Key, error) {
	parsed, err := readID(m.table.Entity, id)
	return Key{Type: entityType, ID: parsed}, err
}

// Standing returns what the outbox has of each entity.
func (m *Mender) Standing(ctx context.Context, keys []Key) ([]Standing, error) {
	types, ids := keyColumns(keys)
	out := make([]Standing, 0, len(keys))
	var s Standing
	err := m.inOrder(ctx, "events", m.sql.get("standing"), []any{types, ids}, []any{&s.Open, &s.Failed}, func() { out = append(out, s) })
	return out, err
}

// IsShard reports whether weft shards create has dealt entities out to the schema and others.
func IsShard(ctx context.Context, db DB, timeout time.Duration) (yes bool, err error) {
	err = calls{db, timeout, "the schema"}.one(ctx, "shard", statement("shard"), nil, &yes)
	return yes, err
}

// Owns reports which entities belong to the schema's tables: all, unless weft shards create has
// dealt them out. Others have their rows, events and leader elsewhere.
func (m *Mender) Owns(ctx context.Context, keys []Key) ([]bool, error) {
	if !m.shard || len(keys) == 0 {
		return slices.Repeat([]bool{true}, len(keys)), nil
	}
	return ofEach(ctx, m, "shard of entities", m.sql.get("shard_has"), pgx.RowTo[bool], keys, texts(keys))
}

// Unnumbered reports which entities have no version yet although weft draws the versions: rows from before
// their outbox, or written past its triggers, which no event has told of.
func (m *Mender) Unnumbered(ctx context.Context, keys []Key) ([]bool, error) {
	if !m.OwnsVersions() || len(keys) == 0 {
		return make([]bool, len(keys)), nil
	}
	return ofEach(ctx, m, "versions of entities", m.unnumbered, pgx.RowTo[bool], keys, m.of, texts(keys))
}

// ofEach runs a statement that answers of each entity.
func ofEach[T any](ctx context.Context, m *Mender, what, sql string, as pgx.RowToFunc[T], keys []Key, args ...any) ([]T, error) {
	out, err := all(ctx, m.calls, what, sql, as, args...)
	if err == nil && len(out) != len(keys) {
		err = fmt.Errorf("%s of %s: %d answers for %d", what, m.of, len(out), len(keys))
	}
	return out, err
}

// texts returns the ids of entities as texts.
func texts(keys []Key) []string {
	ids := make([]string, len(keys))
	for i, k := range keys {
		ids[i] = k.ID.String()
	}
	return ids
}

// keyColumns returns the types and ids of entities as parameters.
func keyColumns(keys []Key) (types, ids array) {
	return arrayOf(keys, func(k *Key) *string { return &k.Type }), arrayOf(keys, func(k *Key) *ID { return &k.ID })
}

// Open counts the events that are not done, up to a limit.
func (m *Mender) Open(ctx context.Context, limit int) (n int, err error) {
	err = m.one(ctx, "events", m.sql.get("open"), []any{limit}, &n)
	return n, err
}

// Order is a document to be written anew, or to be deleted.
type Order struct {
	Key     Key
	Op      Op
	Version int64 // of the row, or of the document to be deleted
	Held    int64 // version of the document; 0 without one
}

// Mend writes an event for each order, at most a page of them, and one entry in the audit.
// Where weft draws the versions, each event gets a new one, above that of its document;
// otherwise it has the order's.
func (m *Mender) Mend(ctx context.Context, orders []Order, actor, why string, detail any) error {
	kept, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("detail of the repair: %w", err)
	}
	n := len(orders)
	types, ids, ops, versions, above := make([]string, n), make([]string, n), make([]string, n), make([]int64, n), int64(0)
	for i, o := range orders {
		types[i], ids[i], ops[i], versions[i], above = o.Key.Type, o.Key.ID.String(), string(o.Op), o.Version, max(above, o.Held)
	}
	var written int
	err = withLetters(kept, func(detail []byte) error {
		args := []any{m.of, types, ids, ops, versions, above, actor, why, m.projection, detail}
		return m.one(ctx, "repair", m.sql.get("mend"), args, &written)
	})
	if err == nil && written != n {
		err = fmt.Errorf("repair of %s: %d of %d events written", m.of, written, n)
	}
	return err
}

// ActionLoad is the audit's action of a request for a load.
const ActionLoad = "load"

// RequestLoad asks the leader for a load: to write all rows of the source of a projection into its
// destination, beside live events. With once it asks for none where there was one. It returns
// false while a rebuild or a load goes on, and a [*ShapeError] for a table that `weft outbox
// create` has not made.
func RequestLoad(ctx context.Context, db DB, table, projection string, once bool, by, why string, timeout time.Duration) (bool, error) {
	var made, loaded bool
	err := calls{db, timeout, table}.one(ctx, "source", statement("load_source"), []any{table}, &made, &loaded)
	switch {
	case err != nil:
		return false, err
	case !made:
		return false, &ShapeError{table, "was not made by `weft outbox create`", "its application writes the first events itself"}
	case once && loaded:
		return true, nil
	}
	return askRebuild(ctx, db, timeout, "rebuild_request", projection, false, by, why, true)
}

// Number gives each of the entities a version row that has none, so that source queries return
// it. Versions come from the same sequence as those of events: what changes meanwhile is newer.
func (m *Mender) Number(ctx context.Context, keys []Key) error { return m.load(ctx, keys, false) }

// Enqueue writes an event for each of the entities that has neither an open nor a failed one.
// They are marked as those of a load.
func (m *Mender) Enqueue(ctx context.Context, keys []Key) error {
	standing, err := m.Standing(ctx, keys)
	if err != nil {
		return err
	}
	var lacking []Key
	for i, s := range standing {
		if !s.Open && !s.Failed {
			lacking = append(lacking, keys[i])
		}
	}
	return m.load(ctx, lacking, true)
}

func (m *Mender) load(ctx context.Context, keys []Key, events bool) error {
	if len(keys) == 0 {
		return nil
	}
	_, err := m.exec(ctx, "load", m.sql.get("load"), m.table.Name, texts(keys), events)
	return err
}
