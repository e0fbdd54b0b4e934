package drill

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
)

// skipPhase is one of the two parts of lab003_skip_locked.
type skipPhase struct {
	Seconds  float64        `json:"seconds"`
	Events   int            `json:"events"`
	PerSec   float64        `json:"events_per_second"` // of the median two batches
	Claims   int            `json:"claims"`
	Longest  float64        `json:"longest_claim_ms"`
	Owners   map[string]int `json:"owners"`   // events of each
	Samples  int            `json:"samples"`  // looks at the sessions while there was work
	Blocked  int            `json:"blocked"`  // … in which a claimer waited for the other's lock
	TwoWork  int            `json:"two_work"` // … in which both held claimed rows
	Blockers map[string]int `json:"blockers"` // who waited for whom
}

const (
	withSkip    = "skip_locked"
	withoutSkip = "no_skip_locked"
)

// lab003SkipLocked claims the same backlog twice: with SKIP LOCKED, and without.
func lab003SkipLocked() Scenario {
	return Scenario{
		Name: "lab003_skip_locked", runbooks: []string{"lag-growing"},
		About: "two claimers of the drill's own work off a backlog with FOR UPDATE SKIP LOCKED, and then one without SKIP LOCKED",
		Shows: "claims that wait for the other claimer, a lower throughput, and one claimer at work at a time",
		Params: []Param{
			{"events", "200", "events of each part"},
			{"batch", "20", "events of one claim"},
			{"work_ms", "500", "work on a batch within the claim's transaction, in milliseconds"},
		},
		Slow: true,
		run: func(r *run) {
			book := &ledger{}
			first := r.claimPhase(withSkip, " skip locked", book)
			clause := " skip locked"
			r.inject("claims without SKIP LOCKED", func(context.Context) error { clause = ""; return nil }, nil)
			second := r.claimPhase(withoutSkip, clause, book)
			r.keepLedger(book)
			r.probe("phases", map[string]*skipPhase{withSkip: first, withoutSkip: second})
		},
		verify: func(j *judge) {
			phases := verdict.Probed[map[string]skipPhase](j.Judge, "phases")
			file := verdict.ProbeFile("phases")
			with, without := phases[withSkip], phases[withoutSkip]
			j.counted("with SKIP LOCKED: looks that found a claimer waiting for the other", "phases", with.Blocked, 0)
			j.atLeast("without: looks that found a claimer waiting for the other", "phases", without.Blocked, 1)
			j.Check("without: … of those there were", file, fmt.Sprintf("%d of %d (%v)", without.Blocked, without.Samples, without.Blockers), "most", 2*without.Blocked > without.Samples)
			j.Check("throughput without, in events per second", file, fmt.Sprintf("%.0f, with it %.0f", without.PerSec, with.PerSec), "less than three quarters",
				without.PerSec > 0 && without.PerSec < 0.75*with.PerSec)
			j.Check("longest claim without", file, fmt.Sprintf("%.1f ms, with it %.1f ms", without.Longest, with.Longest), "longer", without.Longest > with.Longest)
			j.atLeast("with SKIP LOCKED: looks in which both claimers were at work", "phases", with.TwoWork, 1)
			j.Check("without: share of the looks in which only one was", file, share(without.Samples-without.TwoWork, without.Samples)+fmt.Sprintf(", with it %s; owners %v", share(with.Samples-with.TwoWork, with.Samples), without.Owners),
				"at least two thirds, and more than with it", without.Samples > 0 && 3*without.TwoWork <= without.Samples && without.TwoWork*with.Samples < with.TwoWork*without.Samples)
			for _, p := range []string{withSkip, withoutSkip} {
				j.Number(p+": events processed", verdict.MetricsDir, j.Delta("weftlab_processed_events_total", "phase="+p), float64(phases[p].Events))
			}
			j.ended("", "done")
		},
	}
}

func share(n, of int) string {
	if of == 0 {
		return "none"
	}
	return fmt.Sprintf("%d %%", 100*n/of)
}

// claimPhase lets two claimers work off a backlog.
func (r *run) claimPhase(phase, clause string, book *ledger) *skipPhase {
	n, batch, work := r.count("events", 10, 100000), r.count("batch", 1, 1000), r.count("work_ms", 1, 1000)
	r.enqueue(upserts(n, phase)...)
	p := &skipPhase{Events: n, Owners: map[string]int{}, Blockers: map[string]int{}}
	began := time.Now()
	r.both(phase, book, func(c *claimer) int {
		return c.claimAndWork(clause, batch, time.Duration(work)*time.Millisecond)
	}, func(ctx context.Context) error { return r.look(ctx, p) })
	p.Seconds = time.Since(began).Seconds()
	var claims []claimEntry
	for _, e := range book.of(phase) {
		if e.Event == "claim" {
			p.Claims++
			p.Longest = max(p.Longest, e.Waited)
			if e.Claimed > 0 {
				claims = append(claims, e)
				p.Owners[e.Claimer] += e.Claimed
			}
		}
	}
	p.PerSec = pace(claims)
	r.step("%s: %d events in %.2f s, %.0f a second; %d of %d looks found a claimer waiting; owners %v", phase, n, p.Seconds, p.PerSec, p.Blocked, p.Samples, p.Owners)
	return p
}

// pace returns the events per second of the median time that two batches take: a machine that stands
// still for a moment makes no difference.
func pace(claims []claimEntry) float64 {
	var rates verdict.Distribution
	for i := range max(0, len(claims)-2) {
		if took := claims[i+2].At.Sub(claims[i].At).Seconds(); took > 0 {
			rates = append(rates, float64(claims[i].Claimed+claims[i+1].Claimed)/took)
		}
	}
	return rates.Median()
}

// claimAndWork claims a batch, and works on it and settles it in the same transaction.
func (c *claimer) claimAndWork(clause string, batch int, work time.Duration) int {
	tx := rig.Try(c.conn.Begin(c.Ctx)).Must(c)
	defer func() { _ = tx.Rollback(context.WithoutCancel(c.Ctx)) }()
	began := time.Now()
	ids := c.ids(tx.Query(c.Ctx, `select id from `+searchOutbox+` where status = 'pending' order by event_version, id limit $1 for update`+clause, batch))
	c.book.claim(c, began, ids)
	if len(ids) == 0 {
		return 0
	}
	c.exec(tx, `update `+searchOutbox+` set status = 'processing', owner = $2, processing_started_at = clock_timestamp() where id = any ($1)`, ids, c.name)
	c.Pause(work)
	for _, id := range ids {
		c.book.process(c, id)
	}
	c.exec(tx, `update `+searchOutbox+` set status = 'done', processed_at = clock_timestamp() where id = any ($1)`, ids)
	c.Must(tx.Commit(c.Ctx))
	return len(ids)
}

// look counts who works and who waits for whom.
func (r *run) look(ctx context.Context, p *skipPhase) error {
	rows, _ := r.Pool.Query(ctx, `
select a.application_name, coalesce(b.application_name, ''), a.state <> 'idle'
from pg_stat_activity a
left join pg_stat_activity b on b.pid = any (pg_blocking_pids(a.pid)) and a.wait_event in ('transactionid', 'tuple')
where a.application_name in ('`+rig.AppName+`/w1', '`+rig.AppName+`/w2') and a.datname = current_database()`)
	working, blocked := 0, false
	var name, by string
	var busy bool
	_, err := pgx.ForEachRow(rows, []any{&name, &by, &busy}, func() error { // returns the query's error, too
		switch {
		case by != "":
			blocked = true
			p.Blockers[strings.TrimPrefix(name, rig.AppName+"/")+" for "+strings.TrimPrefix(by, rig.AppName+"/")]++
		case busy:
			working++
		}
		return nil
	})
	if err != nil || working == 0 && !blocked {
		return err
	}
	p.Samples++
	if blocked {
		p.Blocked++
	}
	if working == 2 {
		p.TwoWork++
	}
	return nil
}

// atomicResult is what lab003_atomic_claim has found.
type atomicResult struct {
	Events     int                  `json:"events"`
	Processed  int                  `json:"processed"`  // each time counts
	Twice      map[string][]string  `json:"twice"`      // claimers of each event that was processed more than once
	Documents  map[string]int64     `json:"documents"`  // writes of each document, by Elasticsearch's own count
	Overwrites int                  `json:"overwrites"` // documents that were written more than once
	OwnerOnly  map[uuid.UUID]string `json:"owner_only"` // what the table says of the events that were processed twice
}

// lab003AtomicClaim claims in two steps: who is pending, and then mine.
func lab003AtomicClaim() Scenario {
	return Scenario{
		Name:  "lab003_atomic_claim",
		About: "two claimers of the drill's own select pending events, pause, and update them to be theirs without looking again",
		Shows: "the same events processed by both, by id, and documents written twice, of which the table says nothing",
		Params: []Param{
			{"events", "60", "events"},
			{"batch", "10", "events of one claim"},
			{"pause_ms", "50", "between the select and the update, in milliseconds"},
		},
		run: func(r *run) {
			n, batch, pause := r.count("events", 2, 10000), r.count("batch", 1, 1000), r.count("pause_ms", 1, 10000)
			book := &ledger{}
			r.Must(r.Elastic.Do(r.Ctx, http.MethodPut, "/"+r.Index, map[string]any{"settings": map[string]any{"number_of_replicas": 0}}, nil))
			entities := map[uuid.UUID]string{}
			for _, e := range r.enqueue(upserts(n, "raced for")...) {
				entities[e.ID] = e.Entity
			}
			claim := (*claimer).claimAtOnce
			r.inject("claims in two steps", func(context.Context) error { claim = (*claimer).claimInTwoSteps; return nil }, nil)
			const phase = "race"
			r.both(phase, book, func(c *claimer) int {
				ids := claim(c, batch, time.Duration(pause)*time.Millisecond)
				c.projectAll(ids, entities)
				return len(ids)
			}, nil)
			r.keepLedger(book)
			r.raced(book.of(phase), entities)
		},
		verify: func(j *judge) {
			got := verdict.Probed[atomicResult](j.Judge, "race")
			file := verdict.ProbeFile("race")
			j.atLeast("events that both claimers have processed", "race", len(got.Twice), 1)
			for _, id := range slices.Sorted(maps.Keys(got.Twice))[:min(3, len(got.Twice))] {
				by := got.Twice[id]
				j.Check("claimers of "+id, file, strings.Join(by, ", "), "w1, w2", slices.Contains(by, "w1") && slices.Contains(by, "w2"))
				j.Least("… in their log", verdict.LogDir, float64(len(j.Find("event=process", "event_id="+id))), 2)
			}
			j.Check("events processed, each time counted", verdict.MetricsDir, verdict.Figure(j.Delta("weftlab_processed_events_total")), fmt.Sprintf("more than the %d there are", got.Events),
				j.Delta("weftlab_processed_events_total") > float64(got.Events) && got.Events > 0)
			j.counted("documents that Elasticsearch was made to write more than once", "race", got.Overwrites, len(got.Twice))
			j.ended("", "done")
			j.counted("of those events, rows that name one owner, as if nothing had been: the table does not tell", "race", len(got.OwnerOnly), len(got.Twice))
		},
	}
}

// claimInTwoSteps is the bug.
func (c *claimer) claimInTwoSteps(batch int, pause time.Duration) []uuid.UUID {
	began := time.Now()
	ids := c.ids(c.conn.Query(c.Ctx, `select id from `+searchOutbox+` where status = 'pending' order by event_version, id limit $1`, batch))
	c.Pause(pause)
	for _, id := range ids {
		c.exec(c.conn, `update `+searchOutbox+` set status = 'processing', owner = $2, processing_started_at = clock_timestamp() where id = $1`, id, c.name)
	}
	c.book.claim(c, began, ids)
	return ids
}

// claimAtOnce is how it is done.
func (c *claimer) claimAtOnce(batch int, pause time.Duration) []uuid.UUID {
	began := time.Now()
	ids := c.ids(c.conn.Query(c.Ctx, `
update `+searchOutbox+` set status = 'processing', owner = $2, processing_started_at = clock_timestamp()
where id = any (array(select id from `+searchOutbox+` where status = 'pending' order by event_version, id limit $1 for update skip locked))
returning id`, batch, c.name))
	c.book.claim(c, began, ids)
	c.Pause(pause)
	return ids
}

// projectAll writes a document for each event and settles them. Elasticsearch counts the
// writes of a document.
func (c *claimer) projectAll(ids []uuid.UUID, entities map[uuid.UUID]string) {
	for _, id := range ids {
		body := map[string]any{"by": c.name, "event_id": id}
		c.Must(c.r.Elastic.Do(c.Ctx, http.MethodPut, "/"+c.r.Index+"/_doc/"+url.PathEscape(entities[id]), body, nil))
		c.book.process(c, id)
		c.exec(c.conn, `update `+searchOutbox+` set status = 'done', processed_at = clock_timestamp() where id = $1`, id)
	}
}

// raced finds out who has processed what, and what the table says of it.
func (r *run) raced(entries []claimEntry, entities map[uuid.UUID]string) {
	got := atomicResult{Events: len(entities), Twice: map[string][]string{}, Documents: map[string]int64{}, OwnerOnly: map[uuid.UUID]string{}}
	by := map[uuid.UUID][]string{}
	for _, e := range entries {
		if e.Event == "process" {
			got.Processed++
			by[*e.ID] = append(by[*e.ID], e.Claimer)
		}
	}
	for _, o := range r.table() {
		if claimers := by[o.ID]; len(claimers) > 1 {
			slices.Sort(claimers)
			got.Twice[o.ID.String()] = claimers
			if o.Owner != nil {
				got.OwnerOnly[o.ID] = *o.Owner
			}
		}
	}
	for _, entity := range entities {
		d := rig.Try(r.document(r.Ctx, entity)).MustDo(r, "probe documents")
		got.Documents[entity] = d.Version
		if d.Version > 1 {
			got.Overwrites++
		}
	}
	r.step("%d of %d events were processed twice, %d documents written more than once", len(got.Twice), got.Events, got.Overwrites)
	r.probe("race", got)
}
