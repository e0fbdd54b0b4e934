package outbox

import (
	"context"
	"time"
)

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
