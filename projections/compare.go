package projections

import (
	"context"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// Sides is a projection whose source and destination can be compared. Its methods read, and
// may be called from several goroutines at once.
type Sides interface {
	Projection
	// Entities returns at most n entities that have a row, in the source's own order, after
	// one; a zero key stands before the first.
	Entities(ctx context.Context, after outbox.Key, n int) ([]outbox.Key, error)
	// Wanted returns what the pipeline would write of each entity now. Its error, and that of Held, is
	// elastic.ErrOverBudget where the documents of several are larger than what is held at once.
	Wanted(ctx context.Context, keys []outbox.Key) ([]Wanted, error)
	// Held returns what the destination has of the entities, in no order. Without newest it
	// may be as old as the last refresh.
	Held(ctx context.Context, keys []outbox.Key, newest bool) ([]Held, error)
	// Documents returns a page of what the projection has in the destination, without content, and the position of the page
	// after it. It begins at the empty position, and has ended where the next one is empty, with an empty page; other pages
	// may be empty, too. After an error it is called with the same position again. A position outlives the process; once it
	// belongs to another destination the error is [elastic.ErrOtherIndex]. It leaves out documents whose ids are hashes.
	Documents(ctx context.Context, from string) (page []Held, next string, err error)
	// Known reports of each entity whether it has a row.
	Known(ctx context.Context, keys []outbox.Key) ([]bool, error)
	// State returns a text that every write to the destination changes.
	State(ctx context.Context) (string, error)
	// Size returns about how many rows the source has, and how many documents there are, which of a table is an estimate, too.
	Size(ctx context.Context) (rows, documents int64, err error)
	// ByVersionOnly says why contents cannot be compared; empty when they can.
	ByVersionOnly(ctx context.Context) (string, error)
}

// Wanted is what the pipeline would write of an entity.
type Wanted struct {
	Found     bool  // there is to be a document
	Elsewhere bool  // … of the same key, with another routing
	Version   int64 // of the row; 0 where it keeps none
	Document  []byte
	Problem   string // why the row has no document, in words

	Unnumbered bool // the row has no version yet, and the query may leave it out for that
}

// Held is what the destination has of an entity.
type Held struct {
	Key      outbox.Key // zero when no entity has such an id
	ID       string     // of the document
	Version  int64
	Document []byte
	Stray    string // what to do where no event can name the document for its routing
}

// Entities implements Sides.
func (s *Index) Entities(ctx context.Context, after outbox.Key, n int) ([]outbox.Key, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	keys, err := s.source.entities(ctx, after, n)
	if err != nil {
		return nil, databaseFault(ctx, "entities of "+s.name, err)
	}
	return keys, nil
}

// Wanted implements Sides.
func (s *Index) Wanted(ctx context.Context, keys []outbox.Key) ([]Wanted, error) {
	events, out := make([]outbox.Event, len(keys)), make([]Wanted, 0, len(keys))
	for i, k := range keys {
		events[i].Key, events[i].Op = k, outbox.Upsert
	}
	a := arena{whole: true}
	if _, err := s.source.read(ctx, &a, events); err != nil {
		return nil, err
	}
	for i, row := range a.rows {
		w := Wanted{Version: row.version, Elsewhere: row.elsewhere}
		switch {
		case row.bad != nil:
			w.Problem = row.bad.Error()
		case row.found && s.nameless(&events[i].Key) != "":
			w.Problem = s.nameless(&events[i].Key)
		case row.found && !row.deleted:
			w.Found, w.Document = true, a.json[row.from:row.to:row.to]
		}
		out = append(out, w)
	}
	return out, nil
}

// noRouting is why a row whose routing is an empty text has no document.
const noRouting = "its document would have an empty routing, and a routing is required"

// nameless returns why an entity can have no document: Elasticsearch takes no empty id, and no empty routing.
func (s *Index) nameless(key *outbox.Key) string {
	_, indexed := s.Elastic()
	switch {
	case !indexed:
		return ""
	case len(s.appendID(nil, key)) == 0:
		return "its document would have an empty id"
	case s.routing != nil && s.routing(key) == "":
		return noRouting
	default:
		return ""
	}
}

// Held implements Sides.
func (s *Index) Held(ctx context.Context, keys []outbox.Key, newest bool) ([]Held, error) {
	docs, of := make([]elastic.Doc, 0, len(keys)), make(map[elastic.Doc]outbox.Key, len(keys))
	for _, k := range keys {
		if s.nameless(&k) != "" {
			continue
		}
		doc := elastic.Doc{ID: string(s.appendID(nil, &k))}
		if s.routing != nil {
			doc.Routing = s.routing(&k)
		}
		docs, of[doc] = append(docs, doc), k
	}
	if len(docs) == 0 {
		return nil, nil
	}
	read := s.sink.Search
	if newest {
		read = s.sink.Newest
	}
	found, err := read(ctx, docs)
	if err != nil {
		return nil, err
	}
	out := make([]Held, 0, len(found))
	for _, d := range found {
		// A document of the same id and another routing is that of another place.
		if k, ok := of[elastic.Doc{ID: d.ID, Routing: d.Routing}]; ok {
			out = append(out, Held{Key: k, ID: d.ID, Version: d.Version, Document: d.Source})
		}
	}
	return out, nil
}

// Documents implements Sides.
func (s *Index) Documents(ctx context.Context, from string) (page []Held, next string, err error) {
	entity, err := s.source.entityOf(ctx)
	if err != nil {
		return nil, "", databaseFault(ctx, "entities of "+s.name, err)
	}
	found, next, err := s.sink.Scan(ctx, from)
	for _, d := range found {
		if k, ours := entity(elastic.Doc{ID: d.ID, Routing: d.Routing}); ours {
			page = append(page, Held{Key: k, ID: d.ID, Version: d.Version, Stray: s.stray(&k, d.Routing)})
		}
	}
	return page, next, err
}

// stray says what to do with a document that has the id of an entity, and a routing under which no event looks for it.
func (s *Index) stray(key *outbox.Key, routing string) string {
	switch {
	case key.ID.IsZero():
		return ""
	case s.routing == nil && routing != "":
		return "the projection has no routing: delete the document with routing " + routing
	case s.routing != nil && routing == "":
		return "the projection has a routing: delete the document that has none"
	case s.routing != nil && s.routing(key) != routing:
		return "its id is of routing " + s.routing(key) + ": delete the document with routing " + routing
	default:
		return ""
	}
}

// Known implements Sides.
func (s *Index) Known(ctx context.Context, keys []outbox.Key) ([]bool, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	known, err := s.source.present(ctx, keys)
	if err != nil {
		return nil, databaseFault(ctx, "rows of "+s.name, err)
	}
	return known, nil
}

// State implements Sides.
func (s *Index) State(ctx context.Context) (string, error) { return s.sink.State(ctx) }

// Size implements Sides.
func (s *Index) Size(ctx context.Context) (rows, documents int64, err error) {
	if documents, err = s.sink.Count(ctx); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if rows, err = s.source.size(ctx); err != nil {
		return 0, 0, databaseFault(ctx, "size of the source of "+s.name, err)
	}
	return rows, documents, nil
}

// ByVersionOnly implements Sides.
func (s *Index) ByVersionOnly(ctx context.Context) (string, error) { return s.sink.Altered(ctx) }

// Reader is where an Index reads; *elastic.Sink is the one in production.
type Reader interface {
	Search(ctx context.Context, docs []elastic.Doc) ([]elastic.Document, error)
	Newest(ctx context.Context, docs []elastic.Doc) ([]elastic.Document, error)
	Scan(ctx context.Context, from string) (page []elastic.Document, next string, err error)
	Count(ctx context.Context) (int64, error)
	State(ctx context.Context) (string, error)
	Altered(ctx context.Context) (string, error)
}
