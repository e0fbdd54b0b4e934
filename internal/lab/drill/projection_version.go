package drill

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
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
		Name: "projection_version", runbooks: []string{"index-rebuild"},
		About:     "two chronicle events are projected by version 1, the instance is replaced by one of version 2; one event is enqueued again, for the other the chronicle is rebuilt and verified",
		Shows:     "each entry's projection_version going from 1 to 2, and spans that say which version made it",
		instances: []instance{{"v1", []string{bothProjections, "CHRONICLE_PROJECTION_VERSION=1"}}},
		run: func(r *run) {
			id, rebuilt := uuid.New(), uuid.New()
			r.chronicled(rebuilt, 1)
			r.chronicled(id, 1)
			r.probe("entry_v1", r.entry(id))
			next := "1"
			r.inject("CHRONICLE_PROJECTION_VERSION=2", func(context.Context) error { next = "2"; return nil }, nil)
			r.terminate(r.Member("v1"))
			r.awaitLeader(r.start("v2", bothProjections, "CHRONICLE_PROJECTION_VERSION="+next))
			r.chronicled(id, 2)
			r.probe("entry_v2", r.entry(id))
			r.step("weft rebuild %s", chronicleProjection)
			fleet := &rig.Fleet{Binary: r.Fleet.Binary, Dir: r.Fleet.Dir, Env: slices.Concat(r.Fleet.Env, []string{bothProjections, "CHRONICLE_PROJECTION_VERSION=" + next})}
			r.MustDo("rebuild", fleet.Run(r.Ctx, "rebuild", chronicleProjection, "--by", operator, "--why", "drill: version "+next))
			r.probe("entry_rebuilt", r.entry(rebuilt))
			r.compare(fleet, chronicleProjection, "after")
		},
		verify: func(j *judge) {
			var ids [2]uuid.UUID
			for i, when := range []string{"at first", "in the end"} {
				probe := "entry_v" + strconv.Itoa(i+1)
				e := verdict.Probed[entry](j.Judge, probe)
				ids[i] = e.ID
				j.counted("projection_version of the entry "+when, probe, e.Version, i+1)
			}
			other, after := verdict.Probed[entry](j.Judge, "entry_rebuilt"), verdict.Probed[compared](j.Judge, "after")
			j.counted("projection_version of the other entry after the rebuild", "entry_rebuilt", other.Version, 2)
			j.atLeast("entries that were compared", "after", after.Rows, 2)
			j.counted("entries that differ", "after", after.differs(), 0)
			j.Equal("it is the same entry", verdict.ProbeFile("entry_v2"), ids[1].String(), ids[0].String())
			for version := 1; version <= 2; version++ {
				for _, e := range j.Events(fmt.Sprintf("at version %d", version)) {
					j.Spans(spanEvent, eventID+e.ID.String(), "projection_version="+strconv.Itoa(version), "result=ok")
				}
			}
			j.GrewBy(3, "outbox_processed_total", "projection="+chronicleProjection, "op=upsert")
			j.nothingFailed()
		},
	}
}

// chronicled writes a chronicle event, if it is not there, and an outbox event for it, and
// waits until that is done.
func (r *run) chronicled(id uuid.UUID, version int) {
	ctx, cancel := context.WithTimeout(r.Ctx, awaitBound)
	defer cancel()
	role := fmt.Sprintf("at version %d", version)
	e := outbox.NewEvent{ID: outbox.UUID(uuid.New()), Key: outbox.Key{Type: chronicleType, ID: outbox.UUID(id)}, Op: outbox.Upsert, Version: time.Now().UnixMicro()}
	err := pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `
insert into chronicle_events (id, event_type, book_id, payload, schema_version, provenance, source, actor_kind, occurred_at, created_at)
values ($1, 'book_created', gen_random_uuid(), '{"title": "Ten days"}', 1, 'drill', 'drill', 'system', clock_timestamp(), clock_timestamp())
on conflict (id) do nothing`, id); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, chronicleOutbox, e)
	})
	r.MustDo("write chronicle event", err)
	r.note(verdict.Event{ID: uuidOf(e.ID), Entity: e.Key.String(), Op: string(e.Op), Version: e.Version, Role: role})
	r.step("enqueued chronicle event %s, %s", id, role)
	r.awaitNone("entry", `select count(*) from `+chronicleOutbox+` where id = $1 and status <> 'done'`, &e.ID)
}

func (r *run) entry(id uuid.UUID) entry {
	found := entry{ID: id}
	r.Must(r.Row(r.Ctx, "probe entry", `select projection_version, summary, updated_at from chronicle_entries where id = $1`, id).
		Scan(&found.Version, &found.Summary, &found.Updated))
	return found
}
