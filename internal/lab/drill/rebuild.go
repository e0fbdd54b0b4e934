package drill

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	watchedDocuments = 10
	watchedPeriod    = 50 * time.Millisecond // between two changes of a watched entity
	rebuildPart      = 500                   // rows of one transaction before the rebuild

	// moveBound is for the searcher's own view of the move, on a busy machine.
	moveBound = time.Second
)

// rebuilt is the probe of a rebuild, from weft_rebuild.
type rebuilt struct {
	Phase    string    `json:"phase"`
	OldIndex string    `json:"old_index"`
	NewIndex string    `json:"new_index"`
	Filled   int       `json:"filled"`
	Terms    []int64   `json:"epochs"`
	Began    time.Time `json:"began_at"`
	Finished time.Time `json:"finished_at"`
}

// rebuilding is a drill in which a pair rebuilds its index under load, beside searches, while a
// fault hits it. takeover is as in [failover].
func rebuilding(s Scenario, takeover time.Duration, fault func(*run, *failure), more func(*judge)) Scenario {
	s.Params = append(loadParams(), Param{"rows", "3000", "rows that are there before"})
	s.instances = quickPair()
	s.Minutes, s.runbooks = true, []string{"index-rebuild"}
	s.Shows = "a new index equal to the source behind the alias, no search that fails or goes back; " + s.Shows
	s.run = func(r *run) {
		stop := r.search(r.fillSource(r.count("rows", watchedDocuments, 100_000)))
		defer stop() // also where the script ends before
		r.underFault(takeover > 0, fault, func() { r.probe("searches", stop()) })
		rows := rig.Try(readRows[rebuilt](r.Ctx, r, "select phase, old_index, new_index, filled, epochs, began_at, finished_at from weft_rebuild")).MustDo(r, "read rebuild")
		r.probe("rebuild", slices.Concat(rows, []rebuilt{{Phase: "none"}})[0])
		r.compare(r.Fleet, searchProjection, "after")
	}
	s.verify = func(j *judge) {
		j.loaded()
		j.searchedOn()
		after, row := verdict.Probed[compared](j.Judge, "after"), verdict.Probed[rebuilt](j.Judge, "rebuild")
		j.Equal("phase of the rebuild", verdict.ProbeFile("rebuild"), row.Phase, string(outbox.RebuildDone))
		j.counted("documents that differ afterwards", "after", after.differs(), 0)
		j.atLeast("rows that were compared", "after", after.Rows, watchedDocuments)
		if row.NewIndex == "" {
			row.NewIndex = j.Recipe.Index + "-v1"
		}
		j.sound(j.Recipe.Index, row.NewIndex)
		more(j)
	}
	return s
}

// searchedOn asserts what the searcher has seen.
func (j *judge) searchedOn() {
	seen, file := verdict.Probed[traffic.Searches](j.Judge, "searches"), verdict.ProbeFile("searches")
	j.atLeast("searches with an answer", "searches", seen.Answered, 100)
	j.Check("searches that were refused", file, fmt.Sprintf("%d %s", seen.Failed, seen.First), "0", seen.Failed == 0)
	j.Check("searches that missed a document or found an older one", file, fmt.Sprintf("%d %s", seen.Stale, seen.First), "0", seen.Stale == 0)
	j.counted("moves of the alias that they saw", "searches", len(seen.Moves), 1)
	for _, m := range seen.Moves {
		j.Check("from the last search in the old index to the first in the new", file, fmt.Sprintf("%.1f ms", m.GapMS), "at most "+moveBound.String(), m.GapMS <= verdict.InMillis(moveBound))
	}
}

// fillSource writes rows with their events, and returns those of the documents to watch.
func (r *run) fillSource(rows int) (watched []outbox.Key) {
	var keys []outbox.Key
	for range rows {
		keys = append(keys, traffic.NewKey())
	}
	for part := range slices.Chunk(keys, rebuildPart) {
		changes := rig.Map(part, func(k outbox.Key) traffic.Change { return traffic.Upsert(k, "written before the rebuild") })
		rig.Try(r.app.Write(r.Ctx, changes...)).MustDo(r, "write rows")
	}
	r.drained()
	r.MustDo("refresh", r.Elastic.Do(r.Ctx, http.MethodPost, "/"+r.Index+"/_refresh", nil, nil))
	r.step("%d rows are written, and their documents can be found", rows)
	return keys[:watchedDocuments]
}

// search searches for documents every millisecond, one of which is changed all the time, until the
// function that it returns is called.
func (r *run) search(watched []outbox.Key) (stop func() traffic.Searches) {
	s := &traffic.Searcher{Elastic: r.Elastic, Index: r.Index, Watched: rig.Map(watched, outbox.Key.String)}
	searched := rig.During(r.Ctx, s.Run)
	changed := rig.During(r.Ctx, func(ctx context.Context) {
		for rig.Sleep(ctx, watchedPeriod) == nil {
			if _, err := r.app.Write(context.WithoutCancel(ctx), traffic.Upsert(watched[0], "changed")); err != nil {
				r.cancel(err)
				return
			}
		}
	})
	return func() traffic.Searches {
		searched()
		changed()
		return s.Found()
	}
}

func rebuildCommand() []string {
	return []string{"rebuild", searchProjection, "--by", operator, "--why", "drill: a new index"}
}

// rebuild runs weft rebuild, waits until it has begun, calls meanwhile, and waits for its end.
func (r *run) rebuild(meanwhile func()) {
	r.step("weft rebuild %s", searchProjection)
	ended := make(chan error, 1)
	go func() { ended <- r.Fleet.Run(r.Ctx, rebuildCommand()...) }()
	r.await("rebuild", func(ctx context.Context) error {
		row, err := outbox.ReadRebuild(ctx, r.Pool, searchProjection, queryBound)
		return rig.Want(err, row.Phase != "" && row.Phase != outbox.RebuildRequested, "the leader has not begun")
	})
	meanwhile()
	r.MustDo("rebuild", <-ended)
	r.step("the rebuild is over")
}

// rebuilds are the drills of a rebuild: that goes well, whose leader ends, and whose server restarts.
func rebuilds() []Scenario {
	const takeover = 20 * time.Second
	return []Scenario{
		rebuilding(Scenario{
			Name:  "rebuild_under_load",
			About: "the index is built again while events come, and search goes on",
			Shows: "the alias moved once, by one leader",
		}, 0, func(r *run, _ *failure) {
			r.inject("weft rebuild", func(ctx context.Context) error { return r.Fleet.Run(ctx, rebuildCommand()...) }, nil)
		}, func(j *judge) {
			j.atLeast("rows that were filled in", "rebuild", verdict.Probed[rebuilt](j.Judge, "rebuild").Filled, watchedDocuments)
			j.GrewBy(0, "outbox_failed_total")
		}),
		rebuilding(Scenario{
			Name: "rebuild_leader_killed", Slow: true,
			About: "the leader is killed while it builds the index again, events come and search goes on",
			Shows: "a standby that goes on with the rebuild",
		}, takeover, func(r *run, f *failure) {
			r.rebuild(func() { ofLeader("SIGKILL of the leader", faults.SIGKILL)(r, f) })
		}, func(j *judge) {
			j.survived(takeover)
			j.atLeast("terms that wrote to both indexes", "rebuild", len(verdict.Probed[rebuilt](j.Judge, "rebuild").Terms), 2)
		}),
		rebuilding(Scenario{
			Name: "rebuild_elastic_restart", Slow: true, Owned: true,
			About: "Elasticsearch is killed and started again while the leader builds the index again, and events come",
			Shows: "a rebuild that goes on when the server takes writes",
		}, 0, func(r *run, f *failure) {
			r.rebuild(func() { ofServer("Elasticsearch is killed", faults.ElasticSIGKILL)(r, f) })
		}, func(j *judge) {
			j.survived(0)
			f, row := verdict.Probed[failure](j.Judge, "failure"), verdict.Probed[rebuilt](j.Judge, "rebuild")
			j.Check("the rebuild was going on during the restart", verdict.ProbeFile("rebuild"),
				fmt.Sprintf("it ended %v after the server took work", row.Finished.Sub(f.Accepts).Round(time.Millisecond)), "more than 0", !f.Accepts.IsZero() && row.Finished.After(f.Accepts))
		}),
	}
}

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
