package projections

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// Documents is where a Search writes; *elastic.Sink is the one in production.
type Documents interface {
	Write(ctx context.Context, actions []elastic.Action) ([]outbox.Outcome, error)
	Ready(ctx context.Context) error
	EnsureIndex(ctx context.Context) error
	// Live reports for each document whether it exists.
	Live(ctx context.Context, ids []string) ([]bool, error)
	Close()
}

// Search carries rows of search_index into Elasticsearch. A document is the row as
// it is when the event is processed:
//
//	row present                               index at the larger of the two versions
//	row present, but a delete is newer        delete at the event's version
//	no row                                    delete at the event's version
//	an op other than upsert and delete        failed, deterministic_exception
//	a number or time that JSON cannot write   failed, deterministic_exception
//
// An upsert without a row ends as a no-op (source_missing). A write that Elasticsearch
// refuses for its version is a no-op as well, and an alarm when the source has never
// given out a version as high as that of the document (version_ahead_of_source).
type Search struct {
	pool   Querier
	sink   Documents
	log    *zap.Logger
	arenas elastic.FreeList[arena]
	ahead  *aheadCheck
}

// NewSearch returns a Search that reads from pool, writes to sink, and registers its
// metrics with reg.
func NewSearch(pool Querier, sink Documents, log *zap.Logger, reg prometheus.Registerer) (*Search, error) {
	log = log.Named(SearchIndexToElastic)
	ahead, err := newAheadCheck(pool, sink, log, reg)
	if err != nil {
		return nil, err
	}
	return &Search{pool: pool, sink: sink, log: log, ahead: ahead}, nil
}

// Name implements Projection.
func (s *Search) Name() string { return SearchIndexToElastic }

// Table implements Projection.
func (s *Search) Table() string { return searchTable }

const searchTable = "search_outbox_events"

// Destination implements Projection.
func (s *Search) Destination() string { return "elasticsearch" }

// Close implements Projection.
func (s *Search) Close() { s.sink.Close() }

// Ready implements Projection.
func (s *Search) Ready(ctx context.Context) error { return s.sink.Ready(ctx) }

// Prepare implements Preparer: it creates the index if it is missing.
func (s *Search) Prepare(ctx context.Context) error { return s.sink.EnsureIndex(ctx) }

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

	conflicts []conflict // refused for their version; empty in nearly every round
}

// placed is a source row that has been read.
type placed struct {
	found    bool
	version  int64
	from, to int // the document in json
	bad      error
}

// Project implements Projection. Like [elastic.Sink.Write] it may return complete
// outcomes together with a Fault: a shared outage met on the way.
func (s *Search) Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
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

// sourceQuery looks each key up in the unique index: the limit keeps the planner
// from joining the whole table.
const sourceQuery = `
select k.ord, s.event_version, s.library_id, s.text, s.snippet, s.rank_score::float8, s.created_at, s.updated_at
from unnest($1::text[], $2::uuid[]) with ordinality as k(entity_type, entity_id, ord)
cross join lateral (
  select i.event_version, i.library_id, i.text, i.snippet, i.rank_score, i.created_at, i.updated_at
  from search_index i
  where i.entity_type = k.entity_type and i.entity_id = k.entity_id
  limit 1
) s`

// read fills a with the documents of events and returns how many of them fit the
// budget, at least one.
func (s *Search) read(ctx context.Context, a *arena, events []outbox.Event) (int, error) {
	a.json = a.json[:0]
	if cap(a.rows) < len(events) {
		a.rows = make([]placed, len(events))
	}
	a.rows = a.rows[:len(events)]
	clear(a.rows)

	limited, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rows, err := s.pool.Query(limited, sourceQuery, pgx.QueryResultFormats{pgx.BinaryFormatCode}, types(events), entities(events))
	if err != nil {
		return 0, databaseFault(ctx, "source rows", err)
	}
	defer rows.Close()
	last := -1
	for rows.Next() {
		row, err := readRow(rows.FieldDescriptions(), rows.RawValues())
		if err != nil {
			return 0, &outbox.Fault{Reason: outbox.ReasonUnknown, Err: err}
		}
		at := row.ord - 1
		if at <= last || at >= len(events) {
			return 0, &outbox.Fault{Reason: outbox.ReasonUnknown, Err: fmt.Errorf("source rows: row for key %d of %d after key %d", row.ord, len(events), last+1)}
		}
		last = at
		if len(a.json) > 0 && len(a.json)+len(row.text) > arenaBudget {
			// Rows come in the order of the keys (a nested loop is the only plan for
			// the lateral limit). The next round reads the rest; closing the rows here
			// ends their transfer.
			cancel()
			return at, nil
		}
		p := &a.rows[at]
		p.found, p.version, p.from = true, row.version, len(a.json)
		a.json, p.bad = appendDocument(a.json, &events[at].Key, &row)
		p.to = len(a.json)
	}
	if err := rows.Err(); err != nil {
		return 0, databaseFault(ctx, "source rows", err)
	}
	return len(events), nil
}

// write sends the documents of read and fills out. On a Fault, out is complete or
// untouched.
func (s *Search) write(ctx context.Context, a *arena, events []outbox.Event, out []outbox.Outcome) error {
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
		if row.found && (e.Op == outbox.Upsert || row.version >= e.Version) {
			if row.bad != nil {
				out[i] = outbox.Reject(outbox.ReasonDeterministic, oneLine(row.bad.Error()))
				continue
			}
			act.Version, act.Delete, act.Body = max(e.Version, row.version), false, a.json[row.from:row.to:row.to]
		}
		a.ids = append(a.ids, e.Key.Type...)
		a.ids = append(a.ids, ':')
		a.ids = e.Key.ID.AppendTo(a.ids)
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
	answers, err := s.sink.Write(ctx, a.actions)
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
	if len(a.conflicts) > 0 {
		s.ahead.examine(ctx, a.conflicts)
	}
	return err
}
