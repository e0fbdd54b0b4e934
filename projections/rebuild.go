package projections

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// Mirror is a second index that gets all that an Index writes, while it is being filled. It
// decides no event's fate: what it refuses, or may lack, is kept to be written again before the
// outcomes of the first are returned.
type Mirror struct {
	sink Documents
	redo func(context.Context, []outbox.RedoEntity) error
}

// NewMirror returns a mirror that writes to sink and keeps entities with redo.
func NewMirror(sink Documents, redo func(context.Context, []outbox.RedoEntity) error) *Mirror {
	return &Mirror{sink, redo}
}

// Mirror has all writes that begin from now on go to m as well; nil ends that.
func (s *Index) Mirror(m *Mirror) { s.mirror.Store(m) }

// Elastic returns the sink of an index of Elasticsearch.
func (s *Index) Elastic() (*elastic.Sink, bool) {
	sink, ok := s.sink.(*elastic.Sink)
	return sink, ok
}

// Beside returns the same projection into another index, without alarms.
func (s *Index) Beside(sink Documents) *Index {
	return &Index{name: s.name, table: s.table, destination: s.destination, source: s.source, appendID: s.appendID, routing: s.routing, sink: sink, log: s.log}
}

// send writes the actions of an arena to the index, and to its mirror.
func (s *Index) send(ctx context.Context, a *arena, events []outbox.Event) ([]outbox.Outcome, error) {
	m := s.mirror.Load()
	if m == nil {
		return s.sink.Write(ctx, a.actions)
	}
	actions := slices.Clone(a.actions) // Write fills in versions
	mirrored := make(chan error, 1)
	go func() { mirrored <- m.write(ctx, actions, a.events, events) }()
	answers, err := s.sink.Write(ctx, a.actions)
	if failed := <-mirrored; failed != nil {
		return nil, failed
	}
	return answers, err
}

func (m *Mirror) write(ctx context.Context, actions []elastic.Action, of []int, events []outbox.Event) error {
	answers, err := m.sink.Write(ctx, actions)
	if _, fault := errors.AsType[*outbox.Fault](err); err != nil && !fault {
		return err // the term is over
	}
	var redo []outbox.RedoEntity
	for j := range actions {
		var detail string
		switch {
		case len(answers) != len(actions):
			detail = fmt.Sprint(err)
		case answers[j].Verdict == outbox.Done:
			continue
		default:
			detail = answers[j].Detail
		}
		e := outbox.RedoEntity{Detail: oneLine(detail)}
		e.Key, e.Op, e.Version = events[of[j]].Key, events[of[j]].Op, events[of[j]].Version
		redo = append(redo, e)
	}
	if len(redo) == 0 {
		return nil
	}
	if err := m.redo(ctx, redo); err != nil {
		return databaseFault(ctx, "entities to write again", err)
	}
	return nil
}
