package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Who replays, and why: the audit must say so.
const (
	replayBy  = "weftlab"
	replayWhy = "drill: the write block is lifted"
)

// esWriteBlock sets a block on the index, which answers each document with a 403 of its
// own.
func esWriteBlock() Scenario {
	return Scenario{
		Name:  "es_write_block_4xx",
		About: "index.blocks.write is set on the index while upserts come; then it is lifted and the dead letters are replayed",
		Shows: "final failures with es_4xx and no retry, and a replay that brings every document, with who did it and why",
		Params: []Param{
			{"events", "5", "events that meet the block; fewer than what opens the breaker"},
		},
		instances: one(),
		run: func(ctx context.Context, r *run) error {
			n, err := r.count("events", 1, 19)
			if err != nil {
				return err
			}
			block := func(v any) func(context.Context) error {
				return func(ctx context.Context) error {
					index, err := r.concrete(ctx)
					if err != nil {
						return err
					}
					return r.es.Do(ctx, http.MethodPut, "/"+url.PathEscape(index)+"/_settings", map[string]any{"index.blocks.write": v}, nil)
				}
			}
			if _, err = r.inject(ctx, "index.blocks.write on the index", block(true), block(nil)); err != nil {
				return err
			}
			events, err := r.enqueue(ctx, upserts(n, "blocked")...)
			if err != nil {
				return err
			}
			if err := r.become(ctx, events, "failed", "done"); err != nil {
				return err
			}
			blocked, err := r.rows(ctx)
			if err != nil {
				return fmt.Errorf("probe while blocked: %w", err)
			}
			if err := errors.Join(r.probe("blocked", blocked), r.heal(ctx)); err != nil {
				return err
			}
			if r.without {
				return nil
			}
			r.step("weft replay --reason es_4xx --by %s --why %q", replayBy, replayWhy)
			out, err := r.fleet.Output(ctx, "replay", "--reason", "es_4xx", "--by", replayBy, "--why", replayWhy, "--json")
			if err != nil {
				return err
			}
			if err := r.dir.WriteText(verdict.LogDir+"/replay.json", out); err != nil {
				return err
			}
			return r.become(ctx, events, "done")
		},
		verify: func(j *judge) {
			n := float64(len(j.Recipe.Events))
			j.GrewBy(n, "outbox_failed_total", "op=upsert", "reason=es_4xx")
			j.GrewBy(n, "outbox_terminal_failed_total", "op=upsert", "reason=es_4xx")
			j.GrewBy(0, "outbox_retry_scheduled_total")
			var blocked []row
			if err := j.Probe("blocked", &blocked); err != nil {
				j.Check("the outbox was probed while the block was on", verdict.ProbeFile("blocked"), err.Error(), "rows", false)
			}
			failed := 0
			for _, o := range blocked {
				if o.Status == "failed" && o.Reason != nil && *o.Reason == string(outbox.ReasonES4xx) && o.Error != nil && *o.Error != "" {
					failed++
				}
			}
			j.Number("rows in failed with es_4xx and the server's words, while the block was on", verdict.ProbeFile("blocked"), float64(failed), n)
			for _, e := range j.Recipe.Events {
				j.Equal("attempts at "+e.ID.String()+", anew after the replay", verdict.SpansFile, j.results(e), "failed(1), ok(1)")
			}
			j.Logged(len(j.Recipe.Events), "event=projection.event", "level=error", "result=failed", "reason=es_4xx")
			j.ended("", "done")
			replayed, rows := 0, j.rows()
			for _, e := range j.Recipe.Events {
				if o := rows[e.ID]; o.Replays == 1 && o.ReplayedBy != nil && *o.ReplayedBy == replayBy && o.ReplayReason != nil && *o.ReplayReason == replayWhy {
					replayed++
				}
			}
			j.Number("rows that say who replayed them and why", verdict.ProbeFile("outbox"), float64(replayed), n)
			count := 0
			for _, a := range j.audits("replay") {
				if a.Actor == replayBy && a.Why == replayWhy {
					count += a.Count
				}
			}
			j.Number("replayed rows in the audit", verdict.ProbeFile("audit"), float64(count), n)
			found := 0
			for _, d := range j.documents() {
				if d.Found {
					found++
				}
			}
			j.Number("documents in the end", verdict.ProbeFile("documents"), float64(found), n)
			j.storesEqual()
		},
	}
}

// concrete is the index behind the name.
func (r *run) concrete(ctx context.Context) (string, error) {
	names, err := r.indices(ctx, r.index)
	if err == nil && len(names) != 1 {
		err = fmt.Errorf("%d indices are named %s", len(names), r.index)
	}
	if err != nil {
		return "", fmt.Errorf("look up the index: %w", err)
	}
	return names[0], nil
}
