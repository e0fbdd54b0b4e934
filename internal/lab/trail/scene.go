package trail

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/proxy"
	"github.com/samuelhu324-dev/weft/outbox"
)

// warm is how many events are to be done before anything happens.
const warm = 50

// cuttable opens a link to a URL and returns the one that leads through it.
func (l *lab) cuttable(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" {
		return "", fmt.Errorf("way to Elasticsearch: want a URL with a host")
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme
	}
	if l.link, err = proxy.NewLink(net.JoinHostPort(u.Hostname(), port)); err != nil {
		return "", err
	}
	return l.link.Through(raw)
}

// evidence is what a run has shown.
type evidence struct {
	began, ended time.Time
	marks        []mark
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
		err := l.app.everyday(writing)
		if err != nil {
			cancel(err)
		}
		written <- err
	}()
	e, err := l.happen(ctx)
	stop()
	if werr := <-written; werr != nil {
		return nil, werr
	}
	return e, err
}

func (l *lab) happen(ctx context.Context) (*evidence, error) {
	if err := l.awaitDone(ctx, warm); err != nil {
		return nil, err
	}
	before, err := l.readAll(ctx)
	if err != nil {
		return nil, err
	}
	e := &evidence{began: time.Now()}
	retry := symptoms()[0]
	if err := l.awaitPhase(ctx, "open"); err != nil {
		return nil, err
	}
	if err := sleep(ctx, l.opts.Calm); err != nil {
		return nil, err
	}

	cut := l.mark("Elasticsearch goes away")
	if err := l.link.Cut(); err != nil {
		return nil, err
	}
	deltas, err := l.awaitMoved(ctx, &retry, before[retry.Name])
	if err != nil {
		return nil, err
	}
	for _, d := range deltas {
		t, err := l.follow(ctx, &retry, d)
		if err != nil {
			return nil, err
		}
		e.stillAway = append(e.stillAway, t)
	}
	if err := l.awaitPhase(ctx, "outage"); err != nil {
		return nil, err
	}
	if err := sleep(ctx, l.opts.Outage-time.Since(cut)); err != nil {
		return nil, err
	}
	l.mark("Elasticsearch is back")
	if err := l.link.Heal(); err != nil {
		return nil, err
	}
	if err := l.awaitCaughtUp(ctx); err != nil {
		return nil, err
	}
	if err := sleep(ctx, l.opts.Calm); err != nil {
		return nil, err
	}

	l.mark("one document is poisoned")
	if e.poisoned, err = l.app.publish(ctx); err != nil {
		return nil, err
	}
	events, err := l.app.write(ctx, "delete block", change{op: outbox.Delete})
	if err != nil {
		return nil, err
	}
	e.deleted = events[0]
	if err := l.awaitSettled(ctx, e.poisoned, e.deleted); err != nil {
		return nil, err
	}
	if err := sleep(ctx, l.opts.Calm); err != nil {
		return nil, err
	}
	e.ended = time.Now()

	for _, s := range symptoms() {
		deltas, err := l.awaitMoved(ctx, &s, before[s.Name])
		if err != nil {
			return nil, err
		}
		for _, d := range deltas {
			t, err := l.follow(ctx, &s, d)
			if err != nil {
				return nil, err
			}
			e.trails = append(e.trails, t)
		}
	}
	e.marks = l.marks
	return e, nil
}

func (l *lab) awaitDone(ctx context.Context, n int) error {
	return l.awaitQuery(ctx, fmt.Sprintf("%d events are done", n), `select count(*) >= $1 from search_outbox_events where status = 'done'`, n)
}

// awaitPhase waits until the graph of the phases shows one.
func (l *lab) awaitPhase(ctx context.Context, phase string) error {
	expression := fmt.Sprintf(`weft_pipeline_phase{projection=%q, phase=%q} == 1`, shown, phase)
	return l.await(ctx, "a scrape in the phase "+phase, func(ctx context.Context) (bool, error) {
		all, err := l.prometheus.Query(ctx, expression)
		return len(all) > 0, err
	})
}

// awaitCaughtUp waits until what the outage has put off is done.
func (l *lab) awaitCaughtUp(ctx context.Context) error {
	return l.awaitQuery(ctx, "nothing waits for a retry", `select not exists (
		select from search_outbox_events where status in ('pending', 'processing') and attempts > 0)`)
}

// awaitSettled waits until the events are done or failed.
func (l *lab) awaitSettled(ctx context.Context, events ...outbox.NewEvent) error {
	return l.awaitQuery(ctx, "the events are settled", `select count(*) = cardinality($1::uuid[]) from search_outbox_events
		where id = any($1) and status in ('done', 'failed')`, outbox.IDs(events, func(e *outbox.NewEvent) *outbox.ID { return &e.ID }))
}

func (l *lab) awaitQuery(ctx context.Context, what, sql string, args ...any) error {
	return l.await(ctx, what, func(ctx context.Context) (ok bool, err error) {
		err = l.pool.QueryRow(ctx, sql, args...).Scan(&ok)
		return ok, err
	})
}
