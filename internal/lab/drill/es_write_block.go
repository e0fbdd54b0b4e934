package drill

import (
	"github.com/samuelhu324-dev/weft/internal/lab/faults"
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
		run: func(r *run) {
			n := r.count("events", 1, 19)
			blocked := r.injectFault("index.blocks.write on the index", faults.WriteBlock, r.Member("a"))
			events := r.enqueue(upserts(n, "blocked")...)
			r.become(events, "failed", "done")
			r.probe("blocked", r.table())
			r.heal()
			if !blocked {
				return
			}
			r.step("weft replay --reason es_4xx --by %s --why %q", replayBy, replayWhy)
			out, err := r.Fleet.Output(r.Ctx, "replay", "--reason", "es_4xx", "--by", replayBy, "--why", replayWhy, "--json")
			r.Must(err)
			r.Must(r.dir.WriteText(verdict.LogDir+"/replay.json", out))
			r.become(events, "done")
		},
		verify: func(j *judge) {
			events := j.Recipe.Events
			n := len(events)
			j.GrewBy(float64(n), "outbox_failed_total", "op=upsert", "reason=es_4xx")
			j.GrewBy(float64(n), "outbox_terminal_failed_total", "op=upsert", "reason=es_4xx")
			j.GrewBy(0, "outbox_retry_scheduled_total")
			failed := 0
			for _, o := range verdict.Probed[[]row](j.Judge, "blocked") {
				if o.Status == "failed" && is(o.Reason, string(outbox.ReasonES4xx)) && o.Error != nil && *o.Error != "" {
					failed++
				}
			}
			j.counted("rows in failed with es_4xx and the server's words, while the block was on", "blocked", failed, n)
			for _, e := range events {
				j.Equal("attempts at "+e.ID.String()+", anew after the replay", verdict.SpansFile, j.results(e), "failed(1), ok(1)")
			}
			j.Logged(n, "event=projection.event", "level=error", "result=failed", "reason=es_4xx")
			j.ended("", "done")
			replayed, audited, found, rows := 0, 0, 0, j.rows()
			for _, e := range events {
				if o := rows[e.ID]; o.Replays == 1 && is(o.ReplayedBy, replayBy) && is(o.ReplayReason, replayWhy) {
					replayed++
				}
			}
			j.counted("rows that say who replayed them and why", "outbox", replayed, n)
			for _, a := range j.audits("replay") {
				if a.Actor == replayBy && a.Why == replayWhy {
					audited += a.Count
				}
			}
			j.counted("replayed rows in the audit", "audit", audited, n)
			for _, d := range j.documents() {
				if d.Found {
					found++
				}
			}
			j.counted("documents in the end", "documents", found, n)
			j.storesEqual()
		},
	}
}

// is reports whether a column of text has a value.
func is(column *string, value string) bool {
	return column != nil && *column == value
}
