package projections

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// Documents is where an Index writes; *elastic.Sink is the one in production.
type Documents interface {
	Write(ctx context.Context, actions []elastic.Action) ([]outbox.Outcome, error)
	Ready(ctx context.Context) error
	EnsureIndex(ctx context.Context) error
	// Live reports for each document whether it exists.
	Live(ctx context.Context, docs []elastic.Doc) ([]bool, error)
	Reader
	Close()
}

// Index carries rows of a source into documents of one Elasticsearch index. A document is
// the row as it is when the event is processed:
//
//	row present                               index at the larger of the two versions
//	row present, but a delete is newer        delete at the event's version
//	row present and marked deleted            delete at the larger of the two versions
//	no row                                    delete at the event's version
//	an op other than upsert and delete        failed, deterministic_exception
//	a row that has no form in JSON            failed, deterministic_exception
//
// An upsert without a row ends as a no-op (source_missing). A write that Elasticsearch
// refuses for its version is a no-op as well, and an alarm when the source has never
// given out a version as high as that of the document (version_ahead_of_source).
type Index struct {
	name, table string
	destination string
	source      source
	appendID    func(dst []byte, key *outbox.Key) []byte // of the document
	routing     func(key *outbox.Key) string             // of the document; nil without
	sink        Documents
	log         *zap.Logger
	arenas      elastic.FreeList[arena]
	ahead       *aheadCheck // nil for an index that is being filled
	mirror      atomic.Pointer[Mirror]
	unread      atomic.Pointer[UnreadableError] // of the last look at the source; nil when it was read
}

// source reads the rows of entities.
type source interface {
	// prepare returns nil when the source can be read.
	prepare(ctx context.Context) error
	// read fills a with the documents of events and returns how many of them it has read,
	// at least one: what does not fit the budget is left to the next call.
	read(ctx context.Context, a *arena, events []outbox.Event) (int, error)
	// versions returns the version of each entity's row; nil where it has none.
	versions(ctx context.Context, events []outbox.Event) ([]*int64, error)
	// entities returns at most n entities that have a row, in an order of its own, after one.
	entities(ctx context.Context, after outbox.Key, n int) ([]outbox.Key, error)
	// present reports which entities have a row, whatever the query makes of it.
	present(ctx context.Context, keys []outbox.Key) ([]bool, error)
	// entityOf returns what tells the entity of a document, which is a zero key for none, and
	// whether the document is this projection's.
	entityOf(ctx context.Context) (func(elastic.Doc) (outbox.Key, bool), error)
	// size returns about how many rows there are.
	size(ctx context.Context) (int64, error)
}

// newIndex completes i, which registers its metrics with reg.
func newIndex(i *Index, pool Querier, reg prometheus.Registerer) (_ *Index, err error) {
	i.log = i.log.Named(i.name)
	i.ahead, err = newAheadCheck(i.name, i.table, pool, i.source, i.sink, i.log, reg)
	return i, err
}

// Name implements Projection.
func (s *Index) Name() string { return s.name }

// Table implements Projection.
func (s *Index) Table() string { return s.table }

// Destination implements Projection.
func (s *Index) Destination() string { return s.destination }

// Close implements Projection.
func (s *Index) Close() { s.sink.Close() }

// UnreadableError says that the source cannot be read, so that nothing is known of the destination.
type UnreadableError struct{ error }

// Unwrap returns why.
func (e *UnreadableError) Unwrap() error { return e.error }

// readable returns an *UnreadableError when the source cannot be read.
func (s *Index) readable(ctx context.Context) error {
	if err := s.source.prepare(ctx); err != nil {
		return &UnreadableError{err}
	}
	return nil
}

// Unread returns an *UnreadableError when the rows of the last events could not be read, although [Index.Ready] may find
// nothing: a query may be refused only while it runs.
func (s *Index) Unread() error {
	if e := s.unread.Load(); e != nil {
		return e
	}
	return nil
}

// read reads from the source, and notes whether it could.
func (s *Index) read(ctx context.Context, a *arena, events []outbox.Event) (int, error) {
	n, err := s.source.read(ctx, a, events)
	switch _, fault := errors.AsType[*outbox.Fault](err); {
	case fault:
		s.unread.Store(&UnreadableError{err})
	case err == nil && s.unread.Load() != nil:
		s.unread.Store(nil)
	}
	return n, err
}

// Ready implements Projection.
func (s *Index) Ready(ctx context.Context) error {
	if err := s.readable(ctx); err != nil {
		return err
	}
	return s.sink.Ready(ctx)
}

// Prepare implements Preparer: it creates the index if it is missing, and tries the source.
func (s *Index) Prepare(ctx context.Context) error {
	if err := s.readable(ctx); err != nil {
		return err
	}
	return s.sink.EnsureIndex(ctx)
}

// arenaBudget bounds the documents in memory, in bytes; the rest of the batch is read
// when they are written.
const arenaBudget = 32 << 20

// maxPooledArena is the largest arena kept for the next batch, in bytes.
const maxPooledArena = 8 << 20

// arena holds what one round of a batch needs.
type arena struct {
	json    []byte
	ids     []byte   // the document ids of actions, one after the other
	ends    []int    // where each id ends
	rows    []placed // by position in the round
	actions []elastic.Action
	events  []int // position of each action's event in the round
	whole   bool  // documents over the budget are an error; none are left for another round

	conflicts []conflict // refused for their version; empty in nearly every round
}

// begin makes room for the rows of n events.
func (a *arena) begin(n int) {
	a.json = a.json[:0]
	if cap(a.rows) < n {
		a.rows = make([]placed, n)
	}
	a.rows = a.rows[:n]
	clear(a.rows)
}

// placed is a source row that has been read.
type placed struct {
	found     bool
	deleted   bool // the row says so itself
	elsewhere bool // there is a row of this key, with another routing
	version   int64
	from, to  int // the document in json
	bad       error
}

// Project implements Projection. Like [elastic.Sink.Write] it may return complete
// outcomes together with a Fault: a shared outage met on the way.
func (s *Index) Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
	a := s.arenas.Get()
	defer func() {
		clear(a.actions[:cap(a.actions)])
		clear(a.conflicts[:cap(a.conflicts)])
		if cap(a.json) <= maxPooledArena {
			s.arenas.Put(a)
		}
	}()
	out := make([]outbox.Outcome, len(events))
	known := false
	for done, chunk := 0, len(events); done < len(events); {
		part := events[done:min(done+chunk, len(events))]
		n, err := s.read(ctx, a, part)
		if err == nil {
			chunk = n
			part = part[:n]
			err = s.write(ctx, a, part, out[done:done+n])
		}
		if err != nil {
			f, ok := errors.AsType[*outbox.Fault](err)
			if !ok {
				return nil, err
			}
			for i := done; i < len(out); i++ {
				if out[i].Verdict == 0 {
					out[i] = outbox.Outcome{Verdict: outbox.Retry, Reason: f.Reason, Detail: oneLine(f.Error()), RetryAfter: f.RetryAfter}
				} else {
					known = true
				}
			}
			if !known {
				return nil, f
			}
			if f.Shared {
				return out, f
			}
			s.log.Warn("the fate of a part of a batch is unknown; weft retries it", zap.String("event", "projection.unknown_fate"),
				zap.String("reason", string(f.Reason)), zap.Error(f.Err))
		}
		known = true
		done += len(part)
	}
	return out, nil
}

// write sends the documents of read and fills out. On a Fault, out is complete or
// untouched.
func (s *Index) write(ctx context.Context, a *arena, events []outbox.Event, out []outbox.Outcome) error {
	a.actions, a.events, a.ids, a.ends = a.actions[:0], a.events[:0], a.ids[:0], a.ends[:0]
	for i := range events {
		e, row := &events[i], &a.rows[i]
		switch e.Op {
		case outbox.Upsert, outbox.Delete:
		default:
			out[i] = outbox.Reject(outbox.ReasonDeterministic, oneLine(fmt.Sprintf("unknown op %q", string(e.Op))))
			continue
		}
		act := elastic.Action{Version: e.Version, Delete: true}
		if s.routing != nil {
			if act.Routing = s.routing(&e.Key); act.Routing == "" {
				out[i] = outbox.Reject(outbox.ReasonDeterministic, noRouting)
				continue
			}
		}
		switch written := row.found && (e.Op == outbox.Upsert || row.version >= e.Version); {
		case written && row.bad != nil:
			out[i] = outbox.Reject(outbox.ReasonDeterministic, oneLine(row.bad.Error()))
			continue
		case row.deleted:
			act.Version = max(e.Version, row.version)
		case written:
			act.Version, act.Delete, act.Body = max(e.Version, row.version), false, a.json[row.from:row.to:row.to]
		}
		a.ids = s.appendID(a.ids, &e.Key)
		a.ends = append(a.ends, len(a.ids))
		a.actions = append(a.actions, act)
		a.events = append(a.events, i)
	}
	for ids, from, j := string(a.ids), 0, 0; j < len(a.actions); j++ {
		a.actions[j].ID = ids[from:a.ends[j]]
		from = a.ends[j]
	}
	if len(a.actions) == 0 {
		return nil
	}
	answers, err := s.send(ctx, a, events)
	if answers == nil {
		if err == nil {
			return &outbox.Fault{Reason: outbox.ReasonUnknown, Err: fmt.Errorf("no outcomes for %d documents", len(a.actions))}
		}
		// Without a fate for the rest, the events decided here are decided again later.
		clear(out)
		return err
	}
	if len(answers) != len(a.actions) {
		clear(out)
		return &outbox.Fault{Reason: outbox.ReasonUnknown, Err: fmt.Errorf("%d outcomes for %d documents", len(answers), len(a.actions))}
	}
	a.conflicts = a.conflicts[:0]
	for j, i := range a.events {
		out[i] = answers[j]
		if answers[j].Noop == outbox.NoopAlreadyApplied {
			a.conflicts = append(a.conflicts, conflict{event: &events[i], out: &out[i], action: &a.actions[j]})
		}
		if o := &out[i]; !a.rows[i].found && events[i].Op == outbox.Upsert && o.Verdict == outbox.Done && o.Noop != outbox.NoopAlreadyApplied {
			*o = outbox.NoOp(outbox.NoopSourceMissing)
		}
	}
	if len(a.conflicts) > 0 && s.ahead != nil {
		s.ahead.examine(ctx, a.conflicts)
	}
	return err
}
