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
	db         DB
	table      *Table
	projection string
	key        string // type of the keys that weft draws versions of; empty where it draws none
	shard      bool   // the schema has a part of the entities
	timeout    time.Duration
}

// OpenMender returns the Mender of a projection's outbox table.
func OpenMender(ctx context.Context, db DB, table, projection string, timeout time.Duration) (*Mender, error) {
	t, err := DescribeTable(ctx, db, table, timeout)
	if err != nil {
		return nil, err
	}
	m := &Mender{db: db, table: t, projection: projection, timeout: timeout}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = db.QueryRow(ctx, "select coalesce((select format_type(atttypid, null) from pg_attribute where attrelid = to_regclass($1) and attname = 'entity_id'), ''), "+isShard,
		m.versions()).Scan(&m.key, &m.shard)
	if err != nil {
		return nil, fmt.Errorf("versions of %s: %w", table, err)
	}
	return m, nil
}

// versions names the table of the versions that weft draws.
func (m *Mender) versions() string { return strings.TrimSuffix(m.table.Name, "_events") + "_versions" }

func (m *Mender) sql(name string) string {
	return strings.NewReplacer("{table}", m.table.Name, "{entity}", m.table.Entity.String(), "{versions}", m.versions(), "{key}", m.key).Replace(statement(name))
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
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	rows, err := m.db.Query(ctx, m.sql("standing.sql"), arrayOf(keys, func(k *Key) *string { return &k.Type }), arrayOf(keys, func(k *Key) *ID { return &k.ID }))
	if err != nil {
		return nil, fmt.Errorf("events of %s: %w", m.table.Name, err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Standing])
	if err != nil {
		return nil, fmt.Errorf("events of %s: %w", m.table.Name, err)
	}
	if len(out) != len(keys) {
		return nil, fmt.Errorf("events of %s: %d answers for %d entities", m.table.Name, len(out), len(keys))
	}
	return out, nil
}

// IsShard reports whether weft shards create has dealt entities out to the schema and others.
func IsShard(ctx context.Context, db DB, timeout time.Duration) (yes bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := db.QueryRow(ctx, "select "+isShard).Scan(&yes); err != nil {
		return false, fmt.Errorf("shard of the schema: %w", err)
	}
	return yes, nil
}

const isShard = "to_regprocedure('weft_shard_has(uuid)') is not null"

// Owns reports which entities belong to the schema's tables: all, unless weft shards create has
// dealt them out. Others have their rows, events and leader elsewhere.
func (m *Mender) Owns(ctx context.Context, keys []Key) ([]bool, error) {
	if !m.shard || len(keys) == 0 {
		return slices.Repeat([]bool{true}, len(keys)), nil
	}
	return m.ofEach(ctx, "shard of entities", statement("shard_has.sql"), keys)
}

// Unnumbered reports which entities have no version yet although weft draws the versions: rows from before
// their outbox, or written past its triggers, which no event has told of.
func (m *Mender) Unnumbered(ctx context.Context, keys []Key) ([]bool, error) {
	if !m.OwnsVersions() || len(keys) == 0 {
		return make([]bool, len(keys)), nil
	}
	return m.ofEach(ctx, "versions of entities", m.sql("unnumbered.sql"), keys, m.table.Name)
}

// ofEach runs a statement that answers of each entity, whose ids are its last parameter.
func (m *Mender) ofEach(ctx context.Context, what, sql string, keys []Key, args ...any) ([]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	ids := make([]string, len(keys))
	for i, k := range keys {
		ids[i] = k.ID.String()
	}
	rows, err := m.db.Query(ctx, sql, append(args, ids)...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	if err == nil && len(out) != len(keys) {
		err = fmt.Errorf("%d answers for %d", len(out), len(keys))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return out, nil
}

// Open counts the events that are not done, up to a limit.
func (m *Mender) Open(ctx context.Context, limit int) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	if err := m.db.QueryRow(ctx, m.sql("open.sql"), limit).Scan(&n); err != nil {
		return 0, fmt.Errorf("events of %s: %w", m.table.Name, err)
	}
	return n, nil
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
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	kept, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("detail of the repair: %w", err)
	}
	n := len(orders)
	types, ids, ops, versions, above := make([]string, n), make([]string, n), make([]string, n), make([]int64, n), int64(0)
	for i, o := range orders {
		types[i], ids[i], ops[i], versions[i], above = o.Key.Type, o.Key.ID.String(), string(o.Op), o.Version, max(above, o.Held)
	}
	var written int64
	err = m.db.QueryRow(ctx, statement("mend.sql"), m.table.Name, types, ids, ops, versions, above, actor, why, m.projection, kept).Scan(&written)
	if err != nil {
		return fmt.Errorf("repair of %s: %w", m.table.Name, err)
	}
	if written != int64(n) {
		return fmt.Errorf("repair of %s: %d of %d events written", m.table.Name, written, n)
	}
	return nil
}
