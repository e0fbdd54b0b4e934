package schedule_test

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/consumer/schedule"
	"github.com/samuelhu324-dev/weft/outbox"
)

// world is a model of an outbox table, of its database's rules for lists, leases and
// settles, and of a destination: what a scheduler needs to be driven, without I/O.
type world struct {
	t     *testing.T
	rnd   *rand.Rand
	now   time.Time
	queue answers
	s     *schedule.Scheduler
	plan  plan

	rows   []*row                   // in the order of (version, id)
	byKey  map[outbox.Key][]*row    // in the order of their commits
	open   int                      // rows that are pending
	leased map[*row]*schedule.Batch // what is in flight
	nextID int64
	commit int64
	ids    uint64
	steps  int

	partial             bool // a shard is known to be missing
	asked, busy, flying int  // requests, those that were one too many, and those that are under way

	bad      map[outbox.Key]bool // a request with one of them fails as a whole
	closed   map[outbox.Key]bool // the database refuses each change of their rows
	doomed   map[outbox.Key]bool // refused for good
	outage   bool
	restless bool // faults may happen

	quarantined map[outbox.Key]bool // by an operator
	obeyed      map[outbox.Key]bool // as the scheduler was told
	passed      int                 // events leased under a throttle
	paused      bool                // by an operator
	foreign     bool                // another worker claims rows, as the scheduler was told

	calls map[string][]time.Time   // that were in vain, the last of each
	flown map[outbox.Key]time.Time // when something of an entity was in flight last
}

// plan says how a world behaves.
type plan struct {
	entities             int
	late                 float64 // share of events that commit after a later version was given out
	expensive            float64 // share of lists at the head that step over many dead index entries
	lost, locked, change float64 // shares of leases, settles and rows that meet trouble
	retry                float64 // share of events that are refused for a while
	outages              bool
	odd                  float64 // share of requests with other answers
	parked               float64 // share of events that somebody parks
	strict               bool
	fail                 float64 // share of events that end in failed, until somebody replays or discards them
	few                  int     // entities that meet trouble; 0 for all. The events of the others are done soon.
	closed               bool    // rows of some entities cannot be changed
	crowds               bool    // thousands of events of one of them become due at once
	crashes              bool    // the instance ends now and then, several times in a row
	takeovers            bool    // another instance takes over now and then
	quarantine           bool    // somebody puts entities into quarantine, and releases them
	rate                 float64 // events a second that may be leased; 0 for all
	foreign              bool    // another worker claims rows
	pauses               bool    // somebody pauses the projection
	batch                int     // most entities of a batch; 0 for 50
	pace                 pace    // of the destination
	atOnce               int     // requests that the destination takes at once; 0 for all
	busyItems            bool    // it refuses each item of the others, and not the request
	shards               int64   // of the destination, the first of which is missing; 0 for none
}

// The destination waits for a shard that is missing, and not so long once others have answered beside it.
const (
	shardWait = 3 * time.Second
	knownWait = 500 * time.Millisecond
)

// shardless reports whether the entity's shard is missing.
func (p *plan) shardless(key outbox.Key) bool {
	n, _ := key.ID.Number()
	return p.shards > 0 && n%p.shards == 0
}

type row struct {
	id       outbox.ID
	key      outbox.Key
	version  int64
	commit   int64 // order of the commits
	status   string
	retryAt  time.Time
	parked   bool
	behind   bool
	attempts int
	reclaims int  // in a row
	shared   bool // waits because of the destination
	written  int  // changes, as xmin
	doneAt   time.Time
	made     time.Time
}

func (r *row) waits(now time.Time) bool {
	return r.status == "pending" && !r.behind && (r.parked || r.retryAt.After(now))
}

// ready is what the ready index holds.
func (r *row) ready() bool {
	return r.status == "pending" && !r.behind && !r.parked && r.retryAt.IsZero()
}

func (r *row) due(now time.Time) bool {
	return r.status == "pending" && !r.behind && !r.parked && !r.retryAt.IsZero() && !r.retryAt.After(now)
}

// answers are events of the model in the order of time.
type answers []answer

type answer struct {
	at   time.Time
	seq  int
	what func()
}

func (a answers) Len() int { return len(a) }
func (a answers) Less(i, j int) bool {
	return a[i].at.Before(a[j].at) || a[i].at.Equal(a[j].at) && a[i].seq < a[j].seq
}
func (a answers) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *answers) Push(x any)   { *a = append(*a, x.(answer)) }
func (a *answers) Pop() any {
	x := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return x
}

var (
	errAway    = errors.New("away")
	errRefused = &pgconn.PgError{Code: pgerrcode.RaiseException, Message: "refused"}
)

func newWorld(t *testing.T, seed uint64, p plan) *world {
	w := &world{
		t: t, rnd: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_000_000, 0), plan: p,
		byKey: map[outbox.Key][]*row{}, leased: map[*row]*schedule.Batch{},
		flown: map[outbox.Key]time.Time{},
		bad:   map[outbox.Key]bool{}, closed: map[outbox.Key]bool{}, doomed: map[outbox.Key]bool{}, restless: true, quarantined: map[outbox.Key]bool{}, calls: map[string][]time.Time{},
	}
	w.lead()
	return w
}

// lead begins a term: a scheduler that remembers nothing, and is told what operators hold back
// before it leases anything. The leases of the term before are taken back.
func (w *world) lead() {
	for r := range w.leased {
		if r.status == "pending" {
			r.retryAt, r.behind = w.now, false
			r.reclaims++
			r.written++
		}
	}
	clear(w.leased)
	w.s = schedule.New(schedule.Config{
		BatchSize: cmp.Or(w.plan.batch, 50), Concurrency: 3, Page: 4 * cmp.Or(w.plan.batch, 50), Poll: 100 * time.Millisecond, BreakerThreshold: 20, Strict: w.plan.strict,
		Retry:  schedule.RetryPolicy{MaxAttempts: 1000, BaseBackoff: 500 * time.Millisecond, MaxBackoff: 30 * time.Second},
		Jitter: func(d time.Duration) time.Duration { return time.Duration(w.rnd.Int64N(int64(d) + 1)) },
		NewID: func() uuid.UUID {
			w.ids++
			return uuid.UUID{8: byte(w.ids >> 24), 9: byte(w.ids >> 16), 10: byte(w.ids >> 8), 11: byte(w.ids)}
		},
	})
	w.obey()
	if n := w.s.Blocked(); n != 0 {
		w.t.Fatalf("%d entities wait behind an event of theirs in a term that has seen none", n)
	}
}

// obey tells the scheduler what operators hold back.
func (w *world) obey() {
	w.obeyed = maps.Clone(w.quarantined)
	w.s.Quarantine(w.now, sortedKeys(w.obeyed))
	rate := w.plan.rate
	if !w.restless {
		rate = 0
	}
	w.s.Throttle(w.now, rate)
}

// sortedKeys returns entities in an order of their own, so that a seed plays the same each time.
func sortedKeys(of map[outbox.Key]bool) []outbox.Key {
	return slices.SortedFunc(maps.Keys(of), func(a, b outbox.Key) int { return a.ID.Compare(b.ID) })
}

func (w *world) chance(share float64) bool { return w.restless && w.rnd.Float64() < share }

// after runs what at a time.
func (w *world) after(d time.Duration, what func()) {
	w.steps++
	heap.Push(&w.queue, answer{w.now.Add(d), w.steps, what})
}

// noAnswer returns why a call has no answer.
func (w *world) noAnswer() error {
	return []error{errAway, context.DeadlineExceeded}[w.rnd.IntN(2)]
}

func (w *world) latency() time.Duration { return time.Duration(1+w.rnd.IntN(4000)) * time.Microsecond }

// enqueue commits events of one entity, now or, those of late transactions, soon.
func (w *world) enqueue(key outbox.Key, due ...time.Time) {
	w.nextID++
	r := &row{id: outbox.Number(w.nextID), key: key, version: w.nextID, status: "pending"}
	if w.rnd.Float64() < 0.02 && w.nextID > 1 { // versions may tie
		r.version--
	}
	put := func() {
		for _, at := range due {
			r.retryAt = at
		}
		w.commit++
		r.commit, r.made = w.commit, w.now
		at, _ := slices.BinarySearchFunc(w.rows, r, compareRows)
		w.rows = slices.Insert(w.rows, at, r)
		w.byKey[key] = append(w.byKey[key], r)
		w.open++
		if w.troubled(key) && w.chance(w.plan.parked) {
			r.parked = true
			w.after(time.Duration(w.rnd.IntN(20))*time.Second, func() {
				r.parked, r.retryAt = false, w.now
				r.written++
			})
		}
	}
	if w.rnd.Float64() < w.plan.late && len(due) == 0 {
		w.after(time.Duration(w.rnd.IntN(3000))*time.Millisecond, put)
		return
	}
	put()
}

func compareRows(a, b *row) int {
	x, y := a.listed(), b.listed()
	return x.Compare(y)
}

func (r *row) position() outbox.Position { return outbox.Position{Version: r.version, ID: r.id} }

func (r *row) listed() outbox.Row { return outbox.Row{ID: r.id, Key: r.key, Version: r.version} }

// run lets the scheduler work for a time.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for w.now.Before(end) {
		var until time.Time
		for ok := true; ok; {
			var a schedule.Action
			if a, until, ok = w.s.Next(w.now); ok {
				w.start(a)
			}
		}
		next := end
		if until.Before(next) {
			next = until
		}
		if len(w.queue) > 0 && !w.queue[0].at.After(next) {
			a := heap.Pop(&w.queue).(answer)
			w.now = a.at
			a.what()
			continue
		}
		w.now = next
	}
}

// start carries an action out: the statement sees the table some time after it was asked
// for, and the answer comes some time later. Those of a term that is over are fenced.
func (w *world) start(a schedule.Action) {
	term := w.s
	after := func(d time.Duration, what func()) {
		w.after(d, func() {
			if w.s == term {
				what()
			}
		})
	}
	statement := func(run func() (answer func())) {
		after(w.latency(), func() {
			answer := run()
			after(w.latency(), answer)
		})
	}
	for _, g := range a.Groups {
		if w.obeyed[g.Key] {
			w.t.Fatalf("%s is in quarantine, and %d events of it are to be leased", g.Key, len(g.Rows))
		}
	}
	switch a.Kind {
	case schedule.DoList:
		statement(func() func() {
			if w.chance(0.02) {
				return func() { w.s.Listed(w.now, a.List, nil, w.noAnswer()) }
			}
			l := w.list(a.List)
			return func() { w.s.Listed(w.now, a.List, l, nil) }
		})
	case schedule.DoLease:
		statement(func() func() {
			l := w.lease(a.Batch, a.Groups)
			if w.chance(w.plan.lost) { // nothing is sent under it
				w.release(a.Batch)
				return func() { w.s.Leased(w.now, a.Batch, nil, w.noAnswer()) }
			}
			return func() { w.s.Leased(w.now, a.Batch, l, nil) }
		})
	case schedule.DoSend:
		w.asked++
		if w.plan.atOnce > 0 && w.flying >= w.plan.atOnce {
			w.busy++
			d := w.latency()
			f := &outbox.Fault{Reason: outbox.ReasonES429, Shared: true, Err: errAway}
			var out []outbox.Outcome
			if w.plan.busyItems {
				out, f = slices.Repeat([]outbox.Outcome{outbox.Reject(f.Reason, "busy")}, len(a.Part.Groups)), nil
			}
			after(d, func() { w.s.Sent(w.now, a.Part, out, f, d) })
			return
		}
		w.flying++
		out, f := w.project(a.Part)
		d, deadline := w.latency()+w.plan.pace.takes(w.now, len(a.Part.Groups)), cmp.Or(a.Part.Limit, 15*time.Second)
		lacks := 0
		for _, g := range a.Part.Groups {
			if w.plan.shardless(g.Key) {
				lacks++
			}
		}
		switch {
		case lacks > 0 && w.partial:
			d += knownWait
		case lacks > 0:
			d += shardWait
			after(d, func() { w.partial = w.partial || lacks < len(a.Part.Groups) })
		}
		if d > deadline {
			out, f = nil, &outbox.Fault{Reason: outbox.ReasonESTimeout, Shared: true, Err: errAway}
		}
		if f != nil && f.Reason == outbox.ReasonESTimeout {
			d = deadline
		}
		w.after(d, func() { w.flying-- })
		after(d, func() { w.s.Sent(w.now, a.Part, out, f, d) })
	case schedule.DoSettle:
		statement(func() func() {
			got := outbox.Settled{Guessed: w.chance(w.plan.lost)}
			for key := range w.settle(a.Batch) {
				if !got.Guessed { // else somebody has changed the rows since that were left
					got.Left = append(got.Left, outbox.Left{Key: key})
				}
			}
			if w.chance(w.plan.lost) {
				got.Slow = a.Batch.Size()
			}
			return func() { w.s.Settled(w.now, a.Batch, got) }
		})
	case schedule.DoProbe:
		var err error
		if w.outage {
			err = errAway
		}
		after(w.latency(), func() { w.s.Probed(w.now, err) })
	case schedule.DoWake:
		statement(func() func() {
			n, err := w.wake(a.Limit)
			if w.chance(w.plan.lost) {
				n, err = 0, w.noAnswer()
			}
			return func() { w.s.Woken(w.now, n, err) }
		})
	case schedule.DoPutOff:
		statement(func() func() {
			n, err := 0, error(nil)
			if w.closed[a.Key] {
				err = errRefused
			} else {
				n = w.putOff(a.Key, a.Behind, a.Limit)
			}
			if n == 0 {
				w.vain("put-off", a.Key)
			}
			if w.chance(w.plan.lost) {
				n, err = 0, w.noAnswer()
			}
			return func() { w.s.PutOff(w.now, n, err) }
		})
	case schedule.DoNamePutOff:
		statement(func() func() {
			var keys []outbox.Key
			for key, rows := range w.byKey {
				if slices.ContainsFunc(rows, func(r *row) bool { return r.behind && r.status == "pending" }) {
					keys = append(keys, key)
				}
			}
			slices.SortFunc(keys, func(a, b outbox.Key) int { return a.ID.Compare(b.ID) })
			if w.chance(w.plan.lost) {
				return func() { w.s.PutOffNamed(w.now, nil, nil, outbox.ID{}, w.noAnswer()) }
			}
			keys = slices.DeleteFunc(keys, func(k outbox.Key) bool { return !a.After.IsZero() && k.ID.Compare(a.After) <= 0 })
			last := outbox.ID{}
			if len(keys) >= a.Limit {
				keys, last = keys[:a.Limit], keys[a.Limit-1].ID
			}
			var free, waiting []outbox.Key
			for _, key := range keys {
				rows := slices.SortedFunc(slices.Values(w.byKey[key]), compareRows)
				if first := rows[slices.IndexFunc(rows, w.blocks)]; first.status != "pending" || first.waits(w.now) {
					waiting = append(waiting, key)
				} else {
					free = append(free, key)
				}
			}
			return func() { w.s.PutOffNamed(w.now, free, waiting, last, nil) }
		})
	}
}

func (w *world) list(r outbox.ListRequest) *outbox.List {
	l := &outbox.List{}
	if r.Entity != nil {
		rows := slices.SortedFunc(slices.Values(w.byKey[*r.Entity]), compareRows)
		for _, x := range rows {
			if x.ready() || x.due(w.now) || x.behind && x.status == "pending" {
				l.Due = append(l.Due, x.listed())
			}
		}
		l.Due = l.Due[:min(len(l.Due), r.Ready)]
		if len(l.Due) == 0 {
			w.vain("look-up", *r.Entity)
		}
		return l
	}
	from := 0
	if r.From == nil && w.rnd.Float64() < w.plan.expensive {
		l.Look = time.Duration(w.rnd.IntN(100)) * time.Millisecond
		l.Took = l.Look
	}
	if r.From != nil {
		from, _ = slices.BinarySearchFunc(w.rows, &row{id: r.From.ID, version: r.From.Version}, compareRows)
	}
	for _, x := range w.rows[from:] {
		if b := w.leased[x]; b != nil && slices.Contains(r.Without, b.ID) {
			continue
		}
		if x.ready() && len(l.Ready) < r.Ready {
			l.Ready = append(l.Ready, x.listed())
		}
	}
	if r.Newest {
		l.Ready = nil
		for _, x := range slices.Backward(w.rows) {
			if x.ready() && len(l.Ready) < r.Ready {
				l.Ready = append(l.Ready, x.listed())
			}
		}
		slices.Reverse(l.Ready)
	}
	var due []*row
	for _, x := range w.rows {
		if x.due(w.now) {
			due = append(due, x)
		}
	}
	slices.SortStableFunc(due, func(a, b *row) int { return a.retryAt.Compare(b.retryAt) })
	for _, x := range due[:min(len(due), r.Due)] {
		l.Due = append(l.Due, x.listed())
		if x.reclaims >= 3 {
			if l.Suspects == nil {
				l.Suspects = map[outbox.ID]bool{}
			}
			l.Suspects[x.id] = true
		}
	}
	return l
}

// lease is lease.sql: it looks an entity up only when it is marked or has a waiting row.
func (w *world) lease(b *schedule.Batch, groups []outbox.Group) *outbox.Lease {
	l := &outbox.Lease{Events: make([][]outbox.Event, len(groups)), Obstacles: make([]*outbox.Obstacle, len(groups))}
	seen := map[outbox.Key]bool{}
	for i, g := range groups {
		if seen[g.Key] {
			w.t.Fatalf("batch has two groups of %s", g.Key)
		}
		seen[g.Key] = true
		var picked []*row
		doubt := g.Check
		if w.plan.strict && (!g.Check || len(g.Rows) != 1) {
			w.t.Fatalf("under strict order %d rows of %s are to be leased, check %v; want a single one that is checked", len(g.Rows), g.Key, g.Check)
		}
		for _, x := range w.byKey[g.Key] {
			doubt = doubt || x.status == "processing" || x.waits(w.now) || x.due(w.now) || x.behind && x.status == "pending"
			if slices.ContainsFunc(g.Rows, func(r outbox.Row) bool { return r.ID == x.id }) &&
				(x.ready() || x.due(w.now) || x.behind && x.status == "pending") {
				picked = append(picked, x)
			}
		}
		if len(picked) == 0 {
			continue
		}
		slices.SortFunc(picked, compareRows)
		newest := picked[len(picked)-1]
		if doubt {
			var first *row
			for _, x := range w.byKey[g.Key] {
				if w.blocks(x) && compareRows(x, newest) < 0 && !slices.Contains(picked, x) && (first == nil || compareRows(x, first) < 0) {
					first = x
				}
			}
			if first != nil {
				o := &outbox.Obstacle{Position: first.position(), Ready: (first.retryAt.IsZero() || first.behind) && !first.parked}
				if first.status == "processing" {
					o.Ready, o.Foreign = false, true
				} else if first.status == "failed" {
					o.Ready, o.Wait = false, 24*time.Hour
				} else if first.parked {
					o.Wait = 24 * time.Hour
				} else if first.retryAt.After(w.now) {
					o.Wait = first.retryAt.Sub(w.now)
				}
				l.Obstacles[i] = o
				w.vain("lease", g.Key)
				continue
			}
		}
		for _, x := range picked {
			if other := w.leased[x]; other != nil {
				w.t.Fatalf("event %s of %s is in two batches", x.id, x.key)
			}
			w.leased[x] = b
			w.passed++
			l.Events[i] = append(l.Events[i], outbox.Event{Row: x.listed(), Op: outbox.Upsert, Attempts: x.attempts})
			if w.chance(w.plan.change) { // somebody changes it while it is in flight
				w.after(w.latency(), func() {
					if x.status == "pending" {
						x.written++
					}
				})
			}
		}
	}
	return l
}

// vain notes a call that was of no use, and holds that none is made again and again.
func (w *world) vain(call string, key outbox.Key) {
	const most = 25
	name := call + " of " + key.String()
	at := append(w.calls[name], w.now)
	if at = at[max(0, len(at)-most):]; len(at) == most && w.now.Sub(at[0]) < time.Second {
		w.t.Fatalf("the %s was in vain %d times within %v", name, most, w.now.Sub(at[0]))
	}
	w.calls[name] = at
}

func (w *world) release(b *schedule.Batch) {
	for r, of := range w.leased {
		if of == b {
			delete(w.leased, r)
		}
	}
}

func (w *world) row(id outbox.ID, key outbox.Key) *row {
	for _, r := range w.byKey[key] {
		if r.id == id {
			return r
		}
	}
	w.t.Fatalf("no row %s", id)
	return nil
}

// project is the destination.
func (w *world) project(p *schedule.Part) ([]outbox.Outcome, *outbox.Fault) {
	events := p.Events()
	fault := func(r outbox.Reason) *outbox.Fault { return &outbox.Fault{Reason: r, Shared: true, Err: errAway} }
	if w.outage {
		return nil, fault(outbox.ReasonESConnect)
	}
	if w.chance(w.plan.odd) {
		return w.oddly(events)
	}
	out := make([]outbox.Outcome, len(events))
	for i := range events {
		switch key := events[i].Key; {
		case w.bad[key]:
			return nil, fault([]outbox.Reason{outbox.ReasonESRequest, outbox.ReasonESTimeout}[w.rnd.IntN(2)])
		case w.doomed[key], w.chance(w.plan.fail):
			out[i] = outbox.Reject(outbox.ReasonES4xx, "refused")
		case w.plan.shardless(key), w.troubled(key) && w.chance(w.plan.retry):
			out[i] = outbox.Reject(outbox.ReasonES5xx, "later")
		default:
			out[i] = outbox.OK()
		}
	}
	return out, nil
}

// settle is a settle: an entity whole or not at all.
func (w *world) settle(b *schedule.Batch) map[outbox.Key]bool {
	left := map[outbox.Key]bool{}
	for i := range b.Groups {
		if len(b.Settlements) > 0 && (w.chance(w.plan.locked) || w.closed[b.Groups[i].Key]) {
			left[b.Groups[i].Key] = true
		}
	}
	for i := range b.Settlements {
		if r := w.row(b.Settlements[i].Event.ID, b.Settlements[i].Event.Key); r.status != "pending" {
			left[r.key] = true
		}
	}
	for i := range b.Settlements {
		st := &b.Settlements[i]
		r := w.row(st.Event.ID, st.Event.Key)
		if left[r.key] {
			continue
		}
		if w.leased[r] != b {
			w.t.Fatalf("event %s is settled without its lease", r.id)
		}
		r.written++
		switch st.Verdict {
		case outbox.Done, outbox.Superseded:
			if w.plan.strict && st.Verdict == outbox.Superseded {
				w.t.Fatalf("event %s is superseded under strict order", r.id)
			}
			w.check(r, b)
			r.status, r.doneAt = "done", w.now
			w.open--
		case outbox.Failed:
			r.status = "failed"
			w.open--
			if w.plan.strict {
				w.attend(r)
			}
		case outbox.Retry:
			r.attempts++
			r.reclaims = 0
			r.shared = st.Reason.Transient()
			r.retryAt, r.behind = w.now.Add(st.Delay), false
		}
	}
	w.release(b)
	return left
}

// blocks reports whether a row holds up later ones of its entity.
func (w *world) blocks(r *row) bool {
	return r.status == "pending" || r.status == "processing" || w.plan.strict && r.status == "failed"
}

// attend has a person replay or discard a failed row.
func (w *world) attend(r *row) {
	w.after(time.Duration(w.rnd.IntN(20_000))*time.Millisecond, func() {
		r.written++
		if w.rnd.IntN(3) == 0 {
			r.status = "done"
			return
		}
		r.status, r.retryAt, r.behind = "pending", w.now, false
		w.open++
	})
}

// check is the order of the contract: no earlier event of the entity that was committed
// before this one is open, unless it is settled with it.
func (w *world) check(r *row, b *schedule.Batch) {
	for _, x := range w.byKey[r.key] {
		if w.blocks(x) && compareRows(x, r) < 0 && x.commit <= r.commit && w.leased[x] != b {
			w.t.Fatalf("event %s (version %d) of %s is done while %s (version %d) is open", r.id, r.version, r.key, x.id, x.version)
		}
	}
}

func (w *world) putOff(key outbox.Key, behind outbox.Position, limit int) (n int) {
	for _, r := range slices.SortedFunc(slices.Values(w.byKey[key]), compareRows) {
		if n < limit && (r.ready() || r.due(w.now)) && r.position().Compare(behind) > 0 {
			if w.leased[r] != nil {
				w.t.Fatalf("event %s of %s is put off while it is in flight", r.id, r.key)
			}
			r.behind, r.retryAt = true, w.now.Add(time.Hour)
			r.written++
			n++
		}
	}
	return n
}

// forget drops rows that are done, so that the model stays fast.
func (w *world) forget() {
	done := func(r *row) bool { return !w.blocks(r) && w.leased[r] == nil }
	w.rows = slices.DeleteFunc(w.rows, done)
	for key, rows := range w.byKey {
		if rows = slices.DeleteFunc(rows, done); len(rows) == 0 {
			delete(w.byKey, key)
		} else {
			w.byKey[key] = rows
		}
	}
}

func entity(n int) outbox.Key { return outbox.Key{Type: "block", ID: outbox.Number(int64(n))} }

// TestSchedulerKeepsOrderAndLosesNothing drives schedulers through random worlds: commits
// in another order than versions, lost leases, rows that somebody locks, changes or parks,
// outages, entities that spoil every request. At no step may an event pass an earlier one;
// once the trouble is over everything must be done soon.
func TestSchedulerKeepsOrderAndLosesNothing(t *testing.T) {
	t.Parallel()
	plans := map[string]plan{
		"Calm":             {entities: 300},
		"Hot":              {entities: 7, late: 0.05},
		"Late":             {entities: 40, late: 0.3, retry: 0.01},
		"ExpensiveHead":    {entities: 40, late: 0.3, retry: 0.01, parked: 0.005, expensive: 0.5},
		"Lossy":            {entities: 60, late: 0.1, lost: 0.05, locked: 0.02, change: 0.02, retry: 0.02},
		"Outages":          {entities: 100, late: 0.1, retry: 0.02, outages: true},
		"Parked":           {entities: 30, late: 0.1, parked: 0.01, retry: 0.01, foreign: true, pauses: true},
		"Strict":           {entities: 40, late: 0.1, retry: 0.02, fail: 0.02, lost: 0.01, locked: 0.01, change: 0.01, outages: true, strict: true, foreign: true, pauses: true},
		"Quarantine":       {entities: 40, late: 0.1, retry: 0.02, quarantine: true, takeovers: true},
		"StrictQuarantine": {entities: 40, late: 0.1, retry: 0.02, fail: 0.02, quarantine: true, takeovers: true, strict: true},
		"Throttled":        {entities: 40, late: 0.1, retry: 0.02, rate: 60, takeovers: true},
		"Odd":              {entities: 60, late: 0.1, retry: 0.02, odd: 0.05, lost: 0.02},
		"Crashes":          {entities: 60, late: 0.1, retry: 0.02, lost: 0.02, crashes: true},
		"Prompt":           {entities: 60, few: 10, late: 0.1, retry: 0.1, parked: 0.02},
		"PromptExpensive":  {entities: 60, few: 10, late: 0.1, retry: 0.1, parked: 0.02, expensive: 0.5},
		"PromptQuarantine": {entities: 60, few: 10, late: 0.1, retry: 0.1, parked: 0.02, quarantine: true},
		"Crowded":          {entities: 60, few: 10, late: 0.1, retry: 0.1, crowds: true},
		"StrictCrowded":    {entities: 60, late: 0.1, retry: 0.1, fail: 0.01, crowds: true, strict: true},
		"PromptCrashes":    {entities: 60, few: 10, retry: 0.02, crashes: true},
		"PromptClosed":     {entities: 60, few: 10, retry: 0.1, crowds: true, closed: true, outages: true},
		"PromptOutages":    {entities: 60, few: 10, retry: 0.02, outages: true},
		"Nightmare":        {entities: 50, odd: 0.02, crashes: true, late: 0.2, lost: 0.05, locked: 0.03, change: 0.03, retry: 0.05, outages: true, parked: 0.005, quarantine: true, takeovers: true, foreign: true, pauses: true},
	}
	seeds := uint64(modelSeeds)
	if testing.Short() {
		seeds = 1
	}
	for name, p := range plans {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steps, tries := 0, seeds
			if p.crowds { // each of these takes as long as several of the others
				tries = max(1, seeds/4)
			}
			for seed := range tries {
				w := newWorld(t, seed, p)
				w.live()
				w.settleDown()
				steps += w.steps
			}
			t.Logf("%d steps", steps)
		})
	}
}

// live lets events come for modelSeconds, with trouble.
func (w *world) live() {
	for second := range modelSeconds {
		for range w.rnd.IntN(200) {
			w.enqueue(entity(w.rnd.IntN(w.plan.entities)))
		}
		if second%20 == 10 {
			clear(w.bad)
			for range w.rnd.IntN(4) { // as many as batches in flight, at most
				w.bad[entity(w.rnd.IntN(cmp.Or(w.plan.few, w.plan.entities)))] = true
			}
		}
		if w.plan.closed && second%20 == 5 {
			clear(w.closed)
			w.closed[entity(w.rnd.IntN(cmp.Or(w.plan.few, w.plan.entities)))] = true
		}
		if w.plan.outages {
			w.outage = w.rnd.IntN(6) == 0
		}
		w.operate(second)
		passed := w.passed
		w.run(time.Second)
		if n := float64(w.passed - passed); w.plan.rate > 0 && n > 1.1*w.plan.rate+1 {
			w.t.Fatalf("%v events were leased in second %d, want at most %v", n, second, w.plan.rate)
		}
		w.forget()
		w.prompt()
		if got, most := w.s.Memory(), 40*w.plan.entities+20_000; got > most {
			w.t.Fatalf("the scheduler remembers %d things, want at most %d", got, most)
		}
	}
}

// operate has operators change the quarantine, and another instance take over, now and then.
func (w *world) operate(second int) {
	if w.plan.quarantine && second%7 == 3 {
		key := entity(w.rnd.IntN(cmp.Or(w.plan.few, w.plan.entities)))
		if bad := sortedKeys(w.bad); len(bad) > 0 { // it is what operators do with such ones
			key = bad[0]
		}
		if w.quarantined[key] = !w.quarantined[key]; !w.quarantined[key] {
			delete(w.quarantined, key)
		}
		w.after(time.Duration(w.rnd.IntN(900))*time.Millisecond, w.obey)
	}
	if w.plan.takeovers && second%30 == 17 {
		w.lead()
	}
	if w.plan.crowds && second == 10 {
		w.crowd()
	}
	if w.plan.crashes && second%30 < 5 {
		w.lead()
	}
	if w.plan.pauses && second%13 == 5 {
		w.hold(&w.paused, true)
		w.after(time.Duration(w.rnd.IntN(3000))*time.Millisecond, func() { w.hold(&w.paused, false) })
	}
	if w.plan.foreign && second%20 == 9 {
		for range 1 + w.rnd.IntN(5) {
			w.claim()
		}
	}
}

// hold tells the scheduler of one of the reasons to lease nothing.
func (w *world) hold(why *bool, yes bool) {
	*why = yes
	w.s.Hold(w.paused || w.foreign)
}

// claim has another worker claim a row, of which the scheduler is told after a while, and settle it,
// or lose it.
func (w *world) claim() {
	i := slices.IndexFunc(w.rows, func(r *row) bool { return r.ready() && w.rnd.IntN(20) == 0 })
	if i < 0 {
		return
	}
	r := w.rows[i]
	r.status = "processing"
	r.written++
	w.after(time.Duration(w.rnd.IntN(1000))*time.Millisecond, func() { w.hold(&w.foreign, true) })
	w.after(3*time.Second, func() { w.hold(&w.foreign, false) })
	w.after(time.Duration(w.rnd.IntN(8000))*time.Millisecond, func() {
		r.written++
		if w.rnd.IntN(2) == 0 {
			r.status = "done"
			w.open--
			return
		}
		r.status, r.retryAt, r.behind = "pending", w.now, false
	})
}

// settleDown ends the trouble, and expects every event to be done within two minutes.
func (w *world) settleDown() {
	clear(w.bad)
	clear(w.closed)
	clear(w.quarantined)
	w.outage, w.restless = false, false
	w.obey()
	w.after(5*time.Second, func() { w.hold(&w.paused, false); w.hold(&w.foreign, false) }) // after all that was said before
	for range 120 {
		w.run(time.Second)
		w.forget()
		if w.open == 0 && len(w.queue) < 10 {
			if modelSeeds == 1 { // the rest is long under the race detector
				return
			}
			w.run(130 * time.Second)
			if blocked, apart := w.s.Blocked(), w.s.Apart(); blocked+apart > 0 {
				w.t.Fatalf("%d entities count as blocked and %d as apart, and every event is done", blocked, apart)
			}
			return
		}
	}
	left := []string{}
	for _, r := range w.rows {
		if r.status == "pending" && len(left) < 5 {
			left = append(left, fmt.Sprintf("%s v%d of %s retry %v behind %v parked %v", r.id, r.version, r.key, r.retryAt.Sub(w.now), r.behind, r.parked))
		}
	}
	w.t.Fatalf("%d events are open two minutes after the trouble, phase %v: %v", w.open, w.s.State(), left)
}
