package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/outbox"
)

// readiness is what /health/ready said.
type readiness struct {
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"`
}

func (m *member) readiness(ctx context.Context) (readiness, error) {
	status, body, err := ask(ctx, m.instance.URL("/health/ready"), scrapeBound)
	if err == nil && !json.Valid(body) {
		err = fmt.Errorf("readiness: %d: no JSON: %.200q", status, body)
	}
	return readiness{status, body}, err
}

// saysReady waits for an answer of that status and keeps it as a probe.
func (r *run) saysReady(ctx context.Context, m *member, status int, probe string) error {
	var last readiness
	err := r.await(ctx, fmt.Sprintf("readiness %d of %s", status, m.name), func(ctx context.Context) (err error) {
		if last, err = m.readiness(ctx); err == nil && last.Status != status {
			err = fmt.Errorf("it is %d: %s", last.Status, last.Body)
		}
		return err
	})
	return errors.Join(err, r.probe(probe, last))
}

// esDownConnect: a delete is forced through a call of Elasticsearch even where the entity
// never existed.
func esDownConnect() Scenario {
	return Scenario{
		Name:  "es_down_connect",
		About: "Elasticsearch refuses every connection while a delete and some upserts are written; then it is back",
		Shows: "a retry with es_connect and no failure, readiness that says why, and the backlog done after the recovery",
		Params: []Param{
			{"upserts", "20", "events that are written while it is down, besides the delete"},
		},
		instances: one("OUTBOX_BASE_BACKOFF_SECONDS=0.2"),
		run: func(ctx context.Context, r *run) error {
			n, err := r.count("upserts", 1, 10000)
			if err != nil {
				return err
			}
			m := r.member("a")
			_, err = r.inject(ctx, "Elasticsearch refuses connections", func(context.Context) error { return m.Elastic.Cut() },
				func(context.Context) error { return m.Elastic.Heal() })
			if err != nil {
				return err
			}
			deleted, err := r.enqueue(ctx, change{key: newKey(), op: outbox.Delete, role: "delete"})
			if err != nil {
				return err
			}
			if r.without {
				if err := r.become(ctx, deleted, "done"); err != nil {
					return err
				}
			} else if err := r.triedAgain(ctx, deleted); err != nil {
				return err
			}
			if _, err := r.enqueue(ctx, upserts(n, "upsert")...); err != nil {
				return err
			}
			want := http.StatusServiceUnavailable
			if r.without {
				want = http.StatusOK
			}
			if err := r.saysReady(ctx, m, want, "ready_down"); err != nil {
				return err
			}
			if err := r.heal(ctx); err != nil {
				return err
			}
			if err := r.drained(ctx); err != nil {
				return err
			}
			r.step("caught up")
			return r.saysReady(ctx, m, http.StatusOK, "ready_after")
		},
		verify: func(j *judge) {
			j.Grew("outbox_retry_scheduled_total", "op=delete", "reason=es_connect")
			j.GrewBy(0, "outbox_failed_total")
			j.GrewBy(0, "outbox_terminal_failed_total")
			j.Spans(spanBatch, "result=retry", "reason=es_connect")
			deletes := j.Events("delete")
			for _, e := range deletes {
				seen := j.results(e)
				j.Check("attempts at the delete, by its id", verdict.SpansFile, seen, "retry(1), …, ok", retriedThenDone(seen))
				found := j.Logged(1, "event=projection.event", "event_id="+e.ID.String(), "reason=es_connect", "result=retry")
				j.Check("… they lead to its trace", verdict.LogDir, strconv.FormatBool(len(found) > 0 && found[0].Get("trace_id") != "" && found[0].Get("span_id") != ""), "true",
					len(found) > 0 && found[0].Get("trace_id") != "" && found[0].Get("span_id") != "")
			}
			j.ready("while it was down, readiness", "ready_down", http.StatusServiceUnavailable)
			j.ready("after the recovery, readiness", "ready_after", http.StatusOK)
			j.ended("", "done")
			attempts := j.rows()[firstID(deletes)].Attempts
			j.Least("attempts of the delete that are counted in its row", verdict.ProbeFile("outbox"), float64(attempts), 1)
			j.storesEqual()
		},
	}
}

// triedAgain waits until a retry of all the events is scheduled.
func (r *run) triedAgain(ctx context.Context, events []verdict.Event) error {
	return r.await(ctx, "retry", func(ctx context.Context) error {
		var n int
		err := r.pool.QueryRow(ctx, `select count(*) from `+searchOutbox+` where id = any ($1) and attempts > 0 and error_reason is not null`, idsOf(events)).Scan(&n)
		if err == nil && n < len(events) {
			err = fmt.Errorf("%d of %d have been tried", n, len(events))
		}
		return err
	})
}

func (j *judge) ready(what, probe string, want int) {
	var seen readiness
	if err := j.Probe(probe, &seen); err != nil {
		j.Check(what, verdict.ProbeFile(probe), err.Error(), strconv.Itoa(want), false)
		return
	}
	j.Number(what, verdict.ProbeFile(probe), float64(seen.Status), float64(want))
}
