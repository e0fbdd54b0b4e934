package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	loadBatch   = 500
	loadWriters = 2

	streamWriters = 4
	streamRate    = 300 // events per second
	hotDocuments  = 100

	drainTimeout = 25 * time.Second
	// spare is what must be left for another takeover to begin.
	spare = 20 * time.Second

	catchUpTimeout = 5 * time.Second
	closeBehind    = 500 // events

	tick = 250 * time.Millisecond
)

// show is the demo proper.
func (r *run) show(docs []Document) *outcome {
	loaded := r.load(docs)
	takeovers := r.live(docs, loaded)
	r.screen.Refresh("")
	return r.verify(takeovers, loaded)
}

// live is the part in which things change, with a status line.
func (r *run) live(docs []Document, loaded int64) []takeover {
	defer rig.During(r.Ctx, r.progress)()
	r.pair()
	pinned, everyday := split(docs)
	var streamed error
	stop := rig.During(r.Ctx, func(ctx context.Context) {
		if streamed = r.stream(everyday).Run(ctx); streamed != nil {
			r.cancel(streamed) // nothing of what follows would be worth seeing
		}
	})
	defer stop() // also when a takeover fails
	takeovers := r.midstream(loaded)
	stop()
	r.Must(streamed)
	r.named(pinned)
	r.drain()
	return takeovers
}

// stream edits documents, deletes them and lets them come back.
func (r *run) stream(docs []Document) *traffic.Stream {
	return &traffic.Stream{
		App: r.app, Writers: streamWriters, Rate: streamRate, Seed: uint64(r.began.UnixNano()), Hot: hotDocuments,
		Entities: rig.Map(docs, func(d Document) outbox.Key { return d.Key }),
		Row: func(random *rand.Rand, n int) traffic.Row {
			row := docs[n].row()
			row.Text += fmt.Sprintf("\n\nEdit %x.", random.Uint32())
			return row
		},
	}
}

// load makes the schema and writes the corpus; it returns a version behind the last one of it.
func (r *run) load(docs []Document) int64 {
	r.screen.Enter("migrating the database")
	r.Must(r.Fleet.Run(r.Ctx, "migrate", "up"))
	r.Must(history.Install(r.Ctx, r.Pool, rig.Outbox))
	r.screen.Enter("writing the documents")
	start := time.Now()
	g, ctx := errgroup.WithContext(r.Ctx)
	g.SetLimit(loadWriters)
	for batch := range slices.Chunk(docs, loadBatch) {
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return r.write(ctx, outbox.Upsert, traffic.IfAbsent, batch)
		})
	}
	r.MustDo("load documents", g.Wait())
	r.screen.Line("Wrote %s rows, each with its event in the same transaction, in %.1f s", rig.Number(len(docs)), time.Since(start).Seconds())
	return r.app.Clock.Next()
}

// write changes documents in one transaction, each of which must meet the condition.
func (r *run) write(ctx context.Context, op outbox.Op, condition traffic.Condition, docs []Document) error {
	events, err := r.app.Write(ctx, rig.Map(docs, func(d Document) traffic.Change {
		return traffic.Change{Key: d.Key, Op: op, If: condition, Row: d.row()}
	})...)
	return rig.Want(err, len(events) == len(docs), "%d of %d documents are as they must be before", len(events), len(docs))
}

// pair starts two instances and waits until one leads and both are ready.
func (r *run) pair() {
	r.screen.Enter("starting two instances")
	r.Must(r.LaunchAll(r.Ctx, "a", "b"))
	r.await(takeoverTimeout, watchPoll, "leader", func(ctx context.Context) error {
		l, err := r.Leader(ctx)
		if err = rig.Want(err, l.Epoch > 0, "nobody leads"); err == nil {
			r.screen.Line("Started instances a and b: %v, the other stands by", l)
		}
		return err
	})
}

// await waits for a condition, unless an instance ends before.
func (r *run) await(bound, period time.Duration, what string, check func(context.Context) error) {
	r.Must(r.Fleet.Await(r.Ctx, bound, period, what, check))
}

// midstream waits for the load to be projected and kills leaders while edits go on.
func (r *run) midstream(loaded int64) (out []takeover) {
	r.screen.Enter("projecting the load")
	r.await(wholeLimit, tick, "end of the load", func(ctx context.Context) error {
		return r.Holds(ctx, `select not exists (select from `+rig.Outbox+` where event_version <= $1 and status in ('pending', 'processing'))`, loaded)
	})
	r.screen.Line("The load is projected; edits go on")
	// A kill in the middle of a backlog measures the backlog: wait, not for ever, until the
	// leader is close behind the edits.
	_ = rig.Await(r.Ctx, catchUpTimeout, tick, "end of the backlog", func(ctx context.Context) error { return r.Abreast(ctx, closeBehind) })
	for n := range kills {
		if n > 0 && time.Until(r.deadline) < spare {
			r.screen.Line("No time is left for another takeover")
			break
		}
		r.screen.Enter("takeover %d of %d", n+1, kills)
		r.Pause(streamBetween)
		var t takeover
		r.Part(r.screen.Step(), 0, func() { t = r.kill() })
		out = append(out, t)
		r.screen.Line("SIGKILL of %s (epoch %d) with %d events claimed: %s after %s, its first event is settled after %s",
			t.From.Instance, t.From.Epoch, t.Claimed, t.To, rig.Millis(t.Lead), rig.Millis(t.Settle))
	}
	r.screen.Enter("editing after the last takeover")
	r.Pause(streamBetween)
	return out
}

// named updates and deletes symbols that the stream leaves alone.
func (r *run) named(p pinnedDocuments) {
	r.screen.Enter("updating and deleting symbols")
	var names []string
	for i := range p.updated {
		p.updated[i].Text += "\n\nSeen by the weft demo."
		names = append(names, p.updated[i].Symbol)
	}
	updated := strings.Join(names, ", ")
	r.MustDo("update "+updated, r.write(r.Ctx, outbox.Upsert, traffic.IfPresent, p.updated))
	r.MustDo("delete "+goneLibrary, r.write(r.Ctx, outbox.Delete, traffic.IfPresent, p.deleted))
	r.screen.Line("Updated %s; deleted the %d symbols of %s", updated, len(p.deleted), goneLibrary)
}

// drain waits until every event is done or failed.
func (r *run) drain() {
	r.screen.Enter("draining")
	start := time.Now()
	r.Must(r.Drained(r.Ctx, drainTimeout, r.Fleet.Alive))
	_, failed, err := r.Unsettled(r.Ctx)
	r.Must(err)
	r.screen.Line("Drained in %.1f s: %s events done, %d failed", time.Since(start).Seconds(), rig.Number(r.app.Produced()-failed), failed)
}

// verify reads the record and both stores and runs the searches.
func (r *run) verify(takeovers []takeover, loaded int64) *outcome {
	r.screen.Enter("comparing PostgreSQL with Elasticsearch")
	compared := rig.Try(reconcile.Run(r.Ctx, r.Pool, r.Elastic, r.Index, reconcile.SearchIndex)).MustDo(r, "reconcile")
	how := "equal"
	if !compared.Equal() {
		how = "NOT equal"
	}
	r.screen.Line("Compared %s rows with %s documents, field by field: %s", rig.Number(compared.Rows), rig.Number(compared.Documents), how)
	log := rig.Try(history.Read(r.Ctx, r.Pool, rig.Outbox, r.Place.Group)).Must(r)
	for _, s := range searches() {
		f := rig.Try(s.run(r.Ctx, r.Elastic, r.Index)).Must(r)
		r.screen.Line("Search for %s: %s hits", s.title, rig.Number(f.Total.Value))
		f.write(r.screen)
	}
	return judge(log, r.app.Acknowledged(), compared, takeovers, loaded)
}

// progress shows where things are until ctx ends. Who waits for progress reports the errors.
func (r *run) progress(ctx context.Context) {
	for rig.Sleep(ctx, tick) == nil {
		waiting, failed, err := r.Unsettled(ctx)
		l, lerr := r.Leader(ctx)
		if err != nil || lerr != nil {
			continue
		}
		produced := r.app.Produced()
		r.screen.Refresh(fmt.Sprintf("%5.1f s   produced %s   projected %s   lag %s   %s", time.Since(r.began).Seconds(),
			rig.Number(produced), rig.Number(max(0, produced-waiting-failed)), rig.Number(waiting), l))
	}
}

// goneLibrary is deprecated as a whole: a fitting one to delete.
const goneLibrary = "io/ioutil"

// pinnedDocuments are those that only the demo itself edits.
type pinnedDocuments struct{ updated, deleted []Document }

// split takes the documents that are edited by name from those of the stream.
func split(docs []Document) (p pinnedDocuments, everyday []Document) {
	for _, d := range docs {
		switch {
		case slices.Contains([]string{"context.WithCancel", "context.WithTimeout", "sync.WaitGroup", "net/http.Client.Do"}, d.Symbol):
			p.updated = append(p.updated, d) // a new text at the end
		case d.Symbol == goneLibrary, strings.HasPrefix(d.Symbol, goneLibrary+"."):
			p.deleted = append(p.deleted, d)
		default:
			everyday = append(everyday, d)
		}
	}
	return p, everyday
}

const (
	kills = 3
	// streamBetween is how long the stream runs undisturbed before each kill.
	streamBetween   = 1500 * time.Millisecond
	takeoverTimeout = 15 * time.Second
	watchPoll       = 20 * time.Millisecond
	// claimedTimeout bounds the wait for a moment at which events are in flight.
	claimedTimeout = 300 * time.Millisecond
)

// takeover is one kill of the leader and what followed.
type takeover struct {
	From, To rig.Leadership
	Claimed  int           // events that the killed leader held
	Lead     time.Duration // SIGKILL to the commit of the new epoch
	Settle   time.Duration // SIGKILL to the commit of the first settled event
}

// kill ends the leader in mid-stream, waits for the other one's first settled event, and starts
// the killed one again as the standby.
func (r *run) kill() (t takeover) {
	victim, leads, err := r.LeadingMember(r.Ctx, r.Place)
	r.Must(err)
	t.From = leads
	r.Must(r.AllReady(r.Ctx))
	before := rig.Try(history.Position(r.Ctx, r.Pool)).Must(r)
	// A quiet moment is no error.
	_ = rig.Await(r.Ctx, claimedTimeout, time.Millisecond, "claim", func(ctx context.Context) error {
		return r.Holds(ctx, `select exists (select from weft_lease)`)
	})
	fault := faults.New(faults.SIGKILL, &faults.Target{Group: r.Group, Place: r.Place}, victim, faults.Params{})
	r.Must(fault.Inject(r.Ctx))
	r.MustDo("count claimed events", r.Pool.QueryRow(r.Ctx,
		`select count(*) from `+rig.Outbox+`_live where status = 'processing' and epoch = $1`, t.From.Epoch).Scan(&t.Claimed))
	r.Must(r.Succeeded(r.Ctx, t.From.Epoch))
	log := rig.Try(history.Since(r.Ctx, r.Pool, rig.Outbox, r.Place.Group, before)).Must(r)
	next := history.Takeovers(log, []history.FaultMark{{At: fault.At, Epoch: t.From.Epoch}})[0]
	r.Expect(next.Happened(), "no event is settled under a newer epoch than %d", t.From.Epoch)
	t.To = rig.Leadership{Epoch: next.Epoch, Instance: next.Instance}
	t.Lead, t.Settle = next.Lead(), next.Settle()
	r.Must(fault.Heal(r.Ctx))
	r.Must(victim.Instance().Ready(r.Ctx))
	return t
}
