package drill

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	chronicleProjection = "chronicle_events_to_entries"
	chronicleType       = "chronicle_event"
	bothProjections     = "WEFT_PROJECTIONS=" + searchProjection + "," + chronicleProjection
)

// entry is what of a chronicle entry is probed.
type entry struct {
	ID      uuid.UUID `json:"id"`
	Version int       `json:"projection_version"`
	Summary string    `json:"summary"`
	Updated time.Time `json:"updated_at"`
}

// projectionVersion projects the same chronicle event under two versions of the rules.
func projectionVersion() Scenario {
	return Scenario{
		Name:      "projection_version",
		About:     "a chronicle event is projected by version 1, the instance is replaced by one of version 2, and the event is enqueued again",
		Shows:     "the entry's projection_version going from 1 to 2, and spans that say which version made it",
		instances: []instance{{"v1", []string{bothProjections, "CHRONICLE_PROJECTION_VERSION=1"}}},
		run: func(ctx context.Context, r *run) error {
			id := uuid.New()
			if err := r.chronicled(ctx, id, "at version 1", "entry_v1"); err != nil {
				return err
			}
			old := r.member("v1")
			next := "1"
			_, err := r.inject(ctx, "CHRONICLE_PROJECTION_VERSION=2", func(context.Context) error { next = "2"; return nil }, nil)
			if err != nil {
				return err
			}
			if err := r.endWell(ctx, old); err != nil {
				return err
			}
			m, err := r.start(ctx, "v2", bothProjections, "CHRONICLE_PROJECTION_VERSION="+next)
			if err != nil {
				return err
			}
			if err := r.leads(ctx, m); err != nil {
				return err
			}
			return r.chronicled(ctx, id, "at version 2", "entry_v2")
		},
		verify: func(j *judge) {
			var versions [2]entry
			for i := range versions {
				name := "entry_v" + strconv.Itoa(i+1)
				if err := j.Probe(name, &versions[i]); err != nil {
					j.Check("the entry was probed", verdict.ProbeFile(name), err.Error(), "an entry", false)
				}
				j.Number("projection_version of the entry "+[]string{"at first", "in the end"}[i], verdict.ProbeFile(name), float64(versions[i].Version), float64(i+1))
			}
			j.Equal("it is the same entry", verdict.ProbeFile("entry_v2"), versions[1].ID.String(), versions[0].ID.String())
			for i, role := range []string{"at version 1", "at version 2"} {
				for _, e := range j.Events(role) {
					j.Spans(spanEvent, "wordloom.outbox_event_id="+e.ID.String(), "projection_version="+strconv.Itoa(i+1), "result=ok")
				}
			}
			j.GrewBy(2, "outbox_processed_total", "projection="+chronicleProjection, "op=upsert")
			j.GrewBy(0, "outbox_failed_total")
			j.GrewBy(0, "outbox_retry_scheduled_total")
		},
	}
}

// chronicled writes a chronicle event, if it is not there, and an outbox event for it, and
// probes its entry when that is done.
func (r *run) chronicled(ctx context.Context, id uuid.UUID, role, probe string) error {
	limited, cancel := context.WithTimeout(ctx, queryBound)
	defer cancel()
	e := outbox.NewEvent{ID: outbox.UUID(uuid.New()), Key: outbox.Key{Type: chronicleType, ID: outbox.UUID(id)}, Op: outbox.Upsert, Version: time.Now().UnixMicro()}
	err := pgx.BeginFunc(limited, r.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(limited, `
insert into chronicle_events (id, event_type, book_id, payload, schema_version, provenance, source, actor_kind, occurred_at, created_at)
values ($1, 'book_created', gen_random_uuid(), '{"title": "Ten days"}', 1, 'drill', 'drill', 'system', clock_timestamp(), clock_timestamp())
on conflict (id) do nothing`, [16]byte(id)); err != nil {
			return err
		}
		return outbox.Enqueue(limited, tx, chronicleOutbox, e)
	})
	if err != nil {
		return fmt.Errorf("write chronicle event: %w", err)
	}
	r.note(verdict.Event{ID: uuidOf(e.ID), Entity: e.Key.String(), Op: string(e.Op), Version: e.Version, Role: role})
	r.step("enqueued chronicle event %s, %s", id, role)
	if err := r.await(ctx, "entry", func(ctx context.Context) error {
		var status string
		err := r.pool.QueryRow(ctx, `select status from `+chronicleOutbox+` where id = $1`, &e.ID).Scan(&status)
		if err == nil && status != "done" {
			err = fmt.Errorf("the event is %s", status)
		}
		return err
	}); err != nil {
		return err
	}
	found := entry{ID: id}
	if err := r.pool.QueryRow(limited, `select projection_version, summary, updated_at from chronicle_entries where id = $1`, [16]byte(id)).
		Scan(&found.Version, &found.Summary, &found.Updated); err != nil {
		return fmt.Errorf("probe entry: %w", err)
	}
	return r.probe(probe, found)
}

// endWell ends an instance with SIGTERM, which must end in exit status 0.
func (r *run) endWell(ctx context.Context, m *member) error {
	r.scrape(ctx, m)
	r.expectEnd(m)
	if _, err := m.instance.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-m.instance.Ended():
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(awaitBound):
		return fmt.Errorf("instance %s did not end within %v of a SIGTERM", m.name, awaitBound)
	}
	if m.instance.Err() != nil {
		return m.instance.Ending()
	}
	r.step("instance %s has ended with exit status 0", m.name)
	return nil
}
