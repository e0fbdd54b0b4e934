//go:build observability

package trail

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/watch"
	"github.com/samuelhu324-dev/weft/outbox"
)

// warm is how many events are to be done before anything happens.
const warm = 50

// evidence is what a run has shown.
type evidence struct {
	began, ended time.Time
	trails       []*Trail // of each symptom the one that has moved most comes first
	stillAway    []*Trail // retries, followed while Elasticsearch was away
	poisoned     outbox.NewEvent
	deleted      outbox.NewEvent
}

// of returns the trails of a symptom.
func (e *evidence) of(name string) (all []*Trail) {
	for _, t := range e.trails {
		if t.Symptom == name {
			all = append(all, t)
		}
	}
	return all
}

// play lets an outage, a poisoned document and a delete of nothing happen under load, and
// follows every series that moves.
func (l *lab) play(ctx context.Context) (_ *evidence, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	written := make(chan error, 1)
	writing, stop := context.WithCancel(ctx)
	go func() {
		err := l.everyday(writing)
		if err != nil {
			cancel(err)
		}
		written <- err
	}()
	e, err := l.happen(ctx)
	stop()
	return e, errors.Join(err, <-written)
}

func (l *lab) happen(ctx context.Context) (*evidence, error) {
	err := l.awaitQuery(ctx, fmt.Sprintf("%d events that are done", warm), `select count(*) >= $1 from search_outbox_events where status = 'done'`, warm)
	if err != nil {
		return nil, err
	}
	before, err := l.readAll(ctx)
	if err != nil {
		return nil, err
	}
	e := &evidence{began: time.Now()}
	if err := l.outage(ctx, e, before); err != nil {
		return nil, err
	}
	if e.poisoned, err = l.publish(ctx); err != nil {
		return nil, err
	}
	events, err := l.write(ctx, "delete block", outbox.Delete, 0)
	if err != nil {
		return nil, err
	}
	e.deleted = events[0]
	if err := l.awaitSettled(ctx, e.poisoned, e.deleted); err != nil {
		return nil, err
	}
	e.ended = time.Now()
	for _, s := range symptoms() {
		trails, err := l.followAll(ctx, &s, before)
		if err != nil {
			return nil, err
		}
		e.trails = append(e.trails, trails...)
	}
	return e, nil
}

// outage takes Elasticsearch away, follows the retries, and waits until all is caught up.
func (l *lab) outage(ctx context.Context, e *evidence, before map[string]values) (err error) {
	if err := l.awaitPhase(ctx, "open"); err != nil {
		return err
	}
	if err := l.link.Cut(); err != nil {
		return err
	}
	if e.stillAway, err = l.followAll(ctx, &symptoms()[0], before); err != nil {
		return err
	}
	if err := l.awaitPhase(ctx, "outage"); err != nil {
		return err
	}
	if err := l.link.Heal(); err != nil {
		return err
	}
	return l.awaitQuery(ctx, "outbox in which nothing waits for a retry", `select not exists (
		select from search_outbox_events where status in ('pending', 'processing') and attempts > 0)`)
}

// followAll waits until series of a symptom have grown, and follows each.
func (l *lab) followAll(ctx context.Context, s *symptom, before map[string]values) (all []*Trail, err error) {
	deltas, err := l.awaitMoved(ctx, s, before[s.Name])
	if err != nil {
		return nil, err
	}
	for _, d := range deltas {
		t, err := l.follow(ctx, s, d)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// awaitPhase waits until the graph of the phases shows one.
func (l *lab) awaitPhase(ctx context.Context, phase string) error {
	expression := fmt.Sprintf(`weft_pipeline_phase{projection=%q, phase=%q} == 1`, shown, phase)
	return l.await(ctx, "a scrape in the phase "+phase, func(ctx context.Context) (bool, error) {
		all, err := l.prometheus.Vector(ctx, expression)
		return len(all) > 0, err
	})
}

// awaitSettled waits until the events are done or failed.
func (l *lab) awaitSettled(ctx context.Context, events ...outbox.NewEvent) error {
	return l.awaitQuery(ctx, "the events are settled", `select count(*) = cardinality($1::uuid[]) from search_outbox_events
		where id = any($1) and status in ('done', 'failed')`, outbox.IDs(events, func(e *outbox.NewEvent) *outbox.ID { return &e.ID }))
}

// The operations of weft's spans.
const (
	service   = "weft"
	spanBatch = "projection.process_batch"
	spanClaim = "outbox.claim_batch"
	spanEvent = "outbox.process"
)

// symptom is a graph that somebody looks at, and where in the traces its labels are tags.
type symptom struct {
	Name      string
	metric    string
	selector  string // beyond component="worker"
	keys      []string
	operation string
	tags      map[string]string // beyond the keys
}

func symptoms() []symptom {
	keys := []string{"env", "projection", "op", "reason"}
	return []symptom{
		{"retry", "outbox_retry_scheduled_total", "", keys, spanEvent, map[string]string{"result": "retry"}},
		{"failed", "outbox_terminal_failed_total", "", keys, spanEvent, map[string]string{"result": "failed"}},
		{"partial", "outbox_es_bulk_requests_total", `, result="partial"`, []string{"env", "projection", "result"}, spanBatch, nil},
		{"noop", "outbox_idempotent_noop_total", "", keys, spanEvent, map[string]string{"noop": "true"}},
	}
}

// expression is what a graph of the symptom shows the rate of.
func (s *symptom) expression() string {
	return fmt.Sprintf(`sum by (%s) (%s{component="worker"%s})`, strings.Join(s.keys, ", "), s.metric, s.selector)
}

// query is the one for the traces behind a series.
func (s *symptom) query(labels map[string]string) watch.Query {
	tags := maps.Clone(s.tags)
	if tags == nil {
		tags = map[string]string{}
	}
	for label, value := range labels {
		tags[attributeOf(label)] = value
	}
	return watch.Query{Service: service, Operation: s.operation, Tags: tags}
}

// values are those of a symptom's series at one time.
type values map[string]value

type value struct {
	labels map[string]string
	is     float64
}

func (l *lab) read(ctx context.Context, s *symptom) (values, error) {
	all, err := l.prometheus.Vector(ctx, s.expression())
	if err != nil {
		return nil, err
	}
	v := values{}
	for _, series := range all {
		labels := map[string]string{}
		for name, of := range series.Metric {
			labels[string(name)] = string(of)
		}
		v[labelText(labels)] = value{labels, float64(series.Value)}
	}
	return v, nil
}

// readAll reads all symptoms; each has a series already, at 0.
func (l *lab) readAll(ctx context.Context) (map[string]values, error) {
	all := map[string]values{}
	for _, s := range symptoms() {
		err := l.await(ctx, "series of "+s.metric, func(ctx context.Context) (bool, error) {
			v, err := l.read(ctx, &s)
			all[s.Name] = v
			return len(v) > 0, err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Delta is how far a series has moved.
type Delta struct {
	Expression    string
	Labels        map[string]string
	Before, After float64
}

// moved returns the series of a symptom that have grown since before, the one that has
// grown most first.
func (s *symptom) moved(before, after values) (all []Delta) {
	for _, key := range sortedKeys(after) {
		d := Delta{s.expression(), after[key].labels, before[key].is, after[key].is}
		if d.After > d.Before {
			all = append(all, d)
		}
	}
	slices.SortStableFunc(all, func(a, b Delta) int { return int(b.After - b.Before - a.After + a.Before) })
	return all
}

// awaitMoved waits until a series has grown.
func (l *lab) awaitMoved(ctx context.Context, s *symptom, before values) (all []Delta, err error) {
	err = l.await(ctx, s.metric+" grows", func(ctx context.Context) (bool, error) {
		after, err := l.read(ctx, s)
		all = s.moved(before, after)
		return len(all) > 0, err
	})
	return all, err
}

// labelText writes labels as PromQL does.
func labelText(labels map[string]string) string {
	var parts []string
	for _, name := range sortedKeys(labels) {
		parts = append(parts, fmt.Sprintf("%s=%q", name, labels[name]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
