package projections

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// entityKey says what the ids of an outbox's events hold: a key, or a place, which is a routing
// and a key. It is the zero value but for kind where an id is the only column of the key.
type entityKey struct {
	kind    outbox.IDKind
	columns []string // of the key, as the query names them
	types   []string // of these columns
	typed   bool     // the first column is the type of the entity, and no part of the ids
	routing string   // column of the table, "" without
	placed  bool     // the routing is the first part of the ids, and no part of the key
	typ     string   // the type of a row of the query; null unless typed
	expr    string   // the id of a row of the query

	source     string   // the table with a row for each entity, as SQL names it; empty where it is not known
	keys       []string // its columns with the key
	entityType string   // of its events, unless typed
}

// composite reports whether the ids are texts of several parts.
func (k *entityKey) composite() bool { return k.placed || len(k.columns) > 1 && !k.typed }

// keyQuery reads the type of the outbox table's entity ids, and whether there is a registry.
const keyQuery = `
select format_type(atttypid, null), to_regclass('weft_outbox') is not null from pg_attribute
where attrelid = to_regclass($1) and attname = 'entity_id' and not attisdropped`

// registryQuery reads what an outbox was made with.
const registryQuery = `select source, entity_type, key_columns, key_types, coalesce(routing, '') from weft_outbox where table_name = $1`

// entityKey asks the database about the ids of the outbox table.
func (s *declaredSource) entityKey(ctx context.Context) (*entityKey, error) {
	d := &s.declaration
	var typ string
	var registry bool
	if err := each(ctx, s.pool, keyQuery, []any{d.Table}, []any{&typ, &registry}, nil); err != nil {
		return nil, databaseFault(ctx, "outbox table", err)
	}
	if typ == "" {
		return nil, s.fault(in("outbox.table", "there is no outbox table %s: make it with `weft outbox create`, or correct outbox.table", d.Table))
	}
	k := &entityKey{kind: outbox.KindText}
	switch typ {
	case "uuid":
		k.kind = outbox.KindUUID
	case "bigint":
		k.kind = outbox.KindNumber
	}
	if registry {
		if err := each(ctx, s.pool, registryQuery, []any{d.Table}, []any{&k.source, &k.entityType, &k.keys, &k.types, &k.routing}, nil); err != nil {
			return nil, databaseFault(ctx, "registry of outbox tables", err)
		}
	}
	if err := k.declare(d); err != nil {
		return nil, s.fault(err)
	}
	return k, nil
}

// declare compares the key with what is declared of it, and takes the names of the query.
func (k *entityKey) declare(d *Declaration) error {
	const create = "drop the outbox, and make it again with `weft outbox create`"
	k.columns = k.keys
	switch {
	case d.Routing != "" && k.routing == "":
		return in("index.routing", "outbox table %s records no routing, so a delete would not find its shard: %s --routing COLUMN, or leave index.routing out", d.Table, create)
	case d.Routing == "" && k.routing != "":
		return in("index.routing", "it is missing, and outbox table %s was made with --routing %s: name the column of the query that has it, as in `routing: %s`", d.Table, k.routing, k.routing)
	case d.Source != "" && len(k.columns) == 0:
		k.typed, k.types, k.source, k.keys = true, []string{"text", k.kind.String()}, d.Source, d.Key
	case len(d.Key) > 1 && len(k.columns) <= 1:
		return in("source.key", "it names %s, and outbox table %s was made for a key of one column", strings.Join(d.Key, ", "), d.Table)
	case len(d.Key) > 0 && len(d.Key) != max(1, len(k.columns)):
		return in("source.key", "it names %s, and outbox table %s was made for a key of %d columns: %s", strings.Join(d.Key, ", "), d.Table, len(k.columns), strings.Join(k.columns, ", "))
	}
	for _, c := range d.Key {
		if slices.Contains(reserved[columnVersion:], c) {
			return in("source.key", "it names %s, which has a meaning of its own: return the column under another name", c)
		}
	}
	k.placed = k.routing != "" && !slices.Contains(k.columns, k.routing)
	routingAt := slices.Index(k.columns, k.routing)
	switch {
	case len(d.Key) > 0:
		k.columns = d.Key
	case len(k.columns) <= 1:
		k.columns = []string{reserved[columnEntity]}
	case slices.ContainsFunc(k.columns, func(c string) bool { return slices.Contains(reserved[:], c) }):
		return in("source.key", "the key of outbox table %s is %s, of which one has another meaning in the query: return it under another name, and name all in source.key", d.Table, strings.Join(k.columns, ", "))
	}
	if routingAt >= 0 && k.columns[routingAt] != d.Routing {
		return in("index.routing", "it is %s, and the routing of outbox table %s is column %s of the key: name that", d.Routing, d.Table, k.columns[routingAt])
	}
	for i := range k.columns {
		if !strings.Contains(d.Query, fmt.Sprintf("$%d", i+1)) {
			return fmt.Errorf("it does not use $%d, and the key has %d columns: filter the rows by %s", i+1, len(k.columns), k.filter())
		}
	}
	column := func(name string) string { return "q." + pgx.Identifier{name}.Sanitize() }
	args := make([]string, len(k.columns))
	for i, c := range k.columns {
		args[i] = column(c)
	}
	base := strings.TrimSuffix(d.Table, "_events")
	k.typ = "null::text"
	switch {
	case k.typed:
		k.typ, k.expr = args[0]+"::text", args[1]+"::"+k.kind.String()
	case k.placed:
		k.expr = base + "_place(" + column(d.Routing) + ", " + strings.Join(args, ", ") + ")"
	case len(args) > 1:
		k.expr = base + "_id(" + strings.Join(args, ", ") + ")"
	default:
		k.expr = args[0] + "::" + k.kind.String()
	}
	return nil
}

// settingError is what is wrong with a setting of a declaration.
type settingError struct {
	setting string
	error
}

func in(setting, format string, args ...any) error {
	return &settingError{setting, fmt.Errorf(format, args...)}
}

// filter shows how a query finds its rows.
func (k *entityKey) filter() string {
	if len(k.columns) == 1 {
		return "$1, as in `where p.id = any($1)`"
	}
	names, arrays := make([]string, len(k.columns)), make([]string, len(k.columns))
	for i, c := range k.columns {
		names[i], arrays[i] = pgIdentifier(c), fmt.Sprintf("$%d::%s[]", i+1, k.types[i])
	}
	return fmt.Sprintf("the key, as in `where (%s) in (select * from unnest(%s))`", strings.Join(names, ", "), strings.Join(arrays, ", "))
}

// args returns the parameters of the query: an array of each column of the key, in which a key stands once. They
// are texts, so that the server refuses an id that the type of its column cannot hold, and it alone.
func (k *entityKey) args(events []outbox.Event) []any {
	arrays := make([][]byte, len(k.columns))
	for i := range arrays {
		arrays[i] = append(make([]byte, 0, 40*len(events)+2), '{')
	}
	seen := map[string]bool{}
	var id []byte
	for i := range events {
		key := &events[i].Key
		if k.typed {
			arrays[0] = appendElement(arrays[0], key.Type)
		}
		if !k.composite() {
			id = key.ID.AppendTo(id[:0])
			arrays[len(arrays)-1] = appendElement(arrays[len(arrays)-1], id)
			continue
		}
		text := k.keyOf(key.ID)
		parts := outbox.Text(text).Parts()
		if seen[text] || k.valid(key.ID) != nil {
			continue // no row has such an id
		}
		seen[text] = true
		for c, part := range parts {
			arrays[c] = appendElement(arrays[c], part)
		}
	}
	out := make([]any, len(arrays))
	for i, a := range arrays {
		out[i] = string(append(a, '}'))
	}
	return out
}

// parse reads an entity: its id, after its type and a colon where the ids do not tell it.
func (k *entityKey) parse(text string) (key outbox.Key, err error) {
	if k.typed {
		kind, id, found := strings.Cut(text, ":")
		if !found {
			return key, fmt.Errorf("entity %q: want its type and its id, as in block:17", text)
		}
		key.Type, text = kind, id
	}
	key.ID, err = outbox.ParseID(k.kind, text)
	return key, err
}

// of returns an entity as the rows of the query name it.
func (k *entityKey) of(key outbox.Key) outbox.Key {
	if !k.typed {
		key.Type = ""
	}
	return key
}

// keyOf returns the key in an id.
func (k *entityKey) keyOf(id outbox.ID) string {
	text := id.String()
	if k.placed {
		_, text, _ = strings.Cut(text, ":")
	}
	return text
}

// partForm has the forms in which PostgreSQL prints the values of a type.
var partForm = map[string]*regexp.Regexp{
	"bigint":  regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`),
	"numeric": regexp.MustCompile(`^(0|-?[1-9][0-9]*|-?(0|[1-9][0-9]*)\.[0-9]*[1-9]|NaN|-?Infinity)$`),
	"uuid":    regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`),
	"bpchar":  regexp.MustCompile(`(^|[^ ])$`),
}

// valid returns an error for an id that no row can have: of other parts than those of the key, or with
// one that PostgreSQL prints otherwise, as 007 for 7.
func (k *entityKey) valid(id outbox.ID) error {
	if !k.composite() {
		return nil
	}
	parts, names := id.Parts(), k.columns
	if k.placed {
		names = append([]string{k.routing}, names...)
	}
	if len(parts) != len(names) {
		return fmt.Errorf("id %s has %d parts, want %d: %s", id, len(parts), len(names), strings.Join(names, ":"))
	}
	if outbox.Composite(parts...) != id {
		return fmt.Errorf("id %s: want %s, with %%25 for a percent sign of a part", id, outbox.Composite(parts...))
	}
	for i, part := range parts[len(parts)-len(k.types):] {
		form, ok := partForm[k.types[i]]
		_, err := strconv.ParseInt(part, 10, 64)
		if ok && !form.MatchString(part) || k.types[i] == "bigint" && err != nil {
			return fmt.Errorf("id %s: its part %q is no %s as PostgreSQL prints it", id, part, k.types[i])
		}
	}
	return nil
}

// appendElement appends a text to the elements of an array literal.
func appendElement[S ~string | ~[]byte](dst []byte, s S) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	dst = append(dst, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, s[i])
	}
	return append(dst, '"')
}

// naming names the documents of a declaration by the ids of their events alone.
type naming struct {
	key      *entityKey
	template idTemplate // without pieces, the id is that of the entity
	routing  int        // part of an id that is the routing; -1 without
}

func (d *Declaration) naming(k *entityKey) (*naming, error) {
	n := &naming{key: k, routing: slices.Index(k.columns, d.Routing)}
	names := k.columns
	if k.placed {
		names, n.routing = append([]string{d.Routing}, k.columns...), 0
	}
	var err error
	if n.template, err = parseTemplate(d.ID); err != nil || d.ID == "" {
		return n, err
	}
	used := make([]bool, len(names))
	for i, p := range n.template {
		if p.name == "" {
			continue
		}
		at := slices.Index(names, p.name)
		if at < 0 && p.name == "id" && len(k.columns) == 1 {
			at = len(names) - 1 // short for the key of one column
		}
		if at < 0 {
			return nil, in("index.id", "%q: %s is no column of the key: want %s", d.ID, p.name, strings.Join(names, ", "))
		}
		n.template[i].part, used[at] = at, true
	}
	for i, c := range names {
		if !used[i] && (i > 0 || !k.placed) {
			return nil, in("index.id", "%q lacks column %s of the key: two entities would share a document; add {%s}", d.ID, c, c)
		}
	}
	return n, nil
}

// appendID appends the id of the document. One that is too long for Elasticsearch keeps its
// beginning, and the rest becomes a hash.
func (n *naming) appendID(dst []byte, key *outbox.Key) []byte {
	from := len(dst)
	switch {
	case n.template == nil && n.key.typed:
		dst = key.ID.AppendTo(append(append(dst, key.Type...), ':'))
	case n.template == nil && !n.key.placed:
		dst = key.ID.AppendTo(dst)
	case n.template == nil && len(n.key.columns) > 1:
		dst = append(dst, n.key.keyOf(key.ID)...)
	case n.template == nil:
		dst = append(dst, n.parts(key)[1]...)
	default:
		dst = n.template.appendTo(dst, n.parts(key))
	}
	if len(dst)-from < shortestHashed {
		return dst
	}
	return append(dst[:from], hashed(dst[from:])...)
}

// parts returns the parts of a key; those that it lacks are empty.
func (n *naming) parts(key *outbox.Key) []string {
	switch {
	case n.key.typed:
		return []string{key.Type, key.ID.String()}
	case !n.key.composite():
		return []string{key.ID.String()}
	}
	parts := key.ID.Parts()
	for len(parts) <= len(n.key.columns) {
		parts = append(parts, "")
	}
	return parts
}

func (n *naming) routingOf(key *outbox.Key) string { return n.parts(key)[n.routing] }

// doc names the document of an entity.
func (n *naming) doc(key outbox.Key) elastic.Doc {
	doc := elastic.Doc{ID: string(n.appendID(nil, &key))}
	if n.routing >= 0 {
		doc.Routing = n.routingOf(&key)
	}
	return doc
}

const (
	hashSize = 2 * sha256.Size
	// shortestHashed is less than the bytes of any id that holds a hash.
	shortestHashed = elastic.MaxIDBytes - utf8.UTFMax
)

// hashed returns an id of at most 512 bytes: a longer one as its beginning, ~ and its hash. One
// that looks like that already is hashed, too, so that no two ids become one.
func hashed(id []byte) []byte {
	if len(id) <= elastic.MaxIDBytes {
		tail := id[len(id)-hashSize-1:]
		if _, err := hex.DecodeString(string(tail[1:])); tail[0] != '~' || err != nil {
			return id
		}
	}
	sum := sha256.Sum256(id)
	cut := elastic.MaxIDBytes - hashSize - 1
	for !utf8.RuneStart(id[cut]) {
		cut--
	}
	out := append(make([]byte, 0, elastic.MaxIDBytes), id[:cut]...)
	return hex.AppendEncode(append(out, '~'), sum[:])
}
