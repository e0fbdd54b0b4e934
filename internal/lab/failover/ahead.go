package failover

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/outbox"
)

// examine finds what went with the old primary, and sees that weft names what it left
// behind in Elasticsearch.
func (r *run) examine(round *Round) {
	r.stream.Pause()
	defer r.stream.Resume()
	lost := r.missing()
	round.Lost = len(lost)
	for _, e := range lost {
		r.gone[e] = true
	}
	if r.opts.Replication == stack.Synchronous {
		return // the verdict has the rest
	}
	r.drained()
	end := r.end()
	var keys []outbox.Key
	for _, d := range end.Differences {
		keys = append(keys, history.KeyOf(d.ID))
	}
	if round.Ahead = len(keys); round.Ahead == 0 {
		return
	}
	known := r.known(keys)
	for n, d := range end.Differences {
		k := keys[n]
		v, there := end.Documents[d.ID]
		r.Expect(!there || v > known[k].version, "%s is different and no newer than what the new primary knows (version %d): %v", k, known[k].version, d)
	}
	named := r.provoke(keys, known)
	for _, k := range keys {
		if named[k] {
			round.Named++
		}
	}
	r.Must(r.app.Renew(r.Ctx, keys...))
	r.drained()
	if end = r.end(); !end.Compared.Equal() {
		r.Must(fmt.Errorf("%d documents differ after a newer change of their entities, the first: %v", len(end.Differences), end.Differences[0]))
	}
}

func (r *run) end() *history.End {
	return rig.Try(history.ReadEnd(r.Ctx, r.Pool, r.Elastic, r.Index, reconcile.SearchIndex)).Must(r)
}

// missing returns the acknowledged events that the primary has not, of those that no
// round has looked for.
func (r *run) missing() []history.Enqueued {
	var fresh []history.Enqueued
	for _, app := range r.applications() {
		all := app.Acknowledged()
		fresh = append(fresh, all[r.judged[app]:]...)
		r.judged[app] = len(all)
	}
	ids := outbox.IDs(fresh, func(e *history.Enqueued) *outbox.ID { return &e.Event })
	var places []int
	r.MustDo("missing events", r.Pool.QueryRow(r.Ctx, `select coalesce(array_agg(ord order by ord), '{}') from unnest($1::uuid[]) with ordinality as e(id, ord)
		where not exists (select from search_outbox_events o where o.id = e.id)`, ids).Scan(&places))
	return rig.Map(places, func(ord int) history.Enqueued { return fresh[ord-1] })
}

// source is what the primary knows of an entity.
type source struct {
	row     bool
	version int64 // the highest of the row and the events
}

func (r *run) known(keys []outbox.Key) map[outbox.Key]source {
	known := map[outbox.Key]source{}
	for _, k := range keys {
		var s source
		r.MustDo("known version of "+k.String(), r.Pool.QueryRow(r.Ctx, `
			select exists (select from search_index where entity_type = $1 and entity_id = $2),
			       greatest((select event_version from search_index where entity_type = $1 and entity_id = $2),
			                (select max(event_version) from search_outbox_events where entity_type = $1 and entity_id = $2), 0)`,
			k.Type, &k.ID).Scan(&s.row, &s.version))
		known[k] = s
	}
	return known
}

const (
	// namedAtOnce is not more than weft's log names of one batch.
	namedAtOnce = 5
	// provokeBound is for all of them; on a slow machine weft looks only now and then.
	provokeBound = 45 * time.Second
)

// provoke lets an event of each entity come by, as it is, and returns whom weft names.
func (r *run) provoke(keys []outbox.Key, known map[outbox.Key]source) map[outbox.Key]bool {
	// alarmed returns whom the log of each member names.
	alarmed := func() map[string][]outbox.Key {
		all := map[string][]outbox.Key{}
		for _, m := range r.Members() {
			found := rig.Try(alarms(m.Instance().Log)).MustDo(r, "log of "+m.Name)
			all[m.Name] = found
		}
		return all
	}
	before := alarmed()
	named := map[outbox.Key]bool{}
	for deadline := time.Now().Add(provokeBound); ; {
		for part := range slices.Chunk(keys, namedAtOnce) {
			r.comeBy(part, known)
		}
		for name, found := range alarmed() {
			for _, k := range found[len(before[name]):] {
				named[k] = true
			}
		}
		keys = slices.DeleteFunc(slices.Clone(keys), func(k outbox.Key) bool { return named[k] })
		if len(keys) == 0 || time.Now().After(deadline) {
			return named
		}
	}
}

// comeBy returns when the events are settled.
func (r *run) comeBy(keys []outbox.Key, known map[outbox.Key]source) {
	r.MustDo("events of documents ahead", pgx.BeginFunc(r.Ctx, r.Pool, func(tx pgx.Tx) error {
		for _, k := range keys {
			e := outbox.NewEvent{ID: outbox.UUID(uuid.New()), Key: k, Op: outbox.Delete, Version: max(known[k].version, 1)}
			if known[k].row {
				e.Op = outbox.Upsert
			}
			if err := outbox.Enqueue(r.Ctx, tx, rig.Outbox, e); err != nil {
				return err
			}
		}
		return nil
	}))
	r.drained()
}

// alarms returns the entities that an instance's log names, in the order of its lines.
func alarms(log string) (named []outbox.Key, err error) {
	type alarm struct {
		Event string    `json:"event"`
		Type  string    `json:"entity_type"`
		ID    uuid.UUID `json:"entity_id"`
	}
	lines, err := verdict.ReadLines[alarm](verdict.Dir{Path: filepath.Dir(log)}, filepath.Base(log))
	for _, line := range lines {
		if line.Event == "version.ahead_of_source" && line.Type != "" {
			named = append(named, outbox.Key{Type: line.Type, ID: outbox.UUID(line.ID)})
		}
	}
	return named, err
}
