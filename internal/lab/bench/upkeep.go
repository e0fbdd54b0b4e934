package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/projections"
)

// The scenarios of upkeep.
const (
	verifyScenario  = "verify"
	rebuildScenario = "rebuild"
	scrubScenario   = "scrub"
)

const (
	verifyRate    = 2000 // live events per second beside a comparison
	rebuildRate   = 500  // and beside a rebuild
	livePeriod    = 10 * time.Millisecond
	watchedCount  = 10
	scrubWindow   = 20 * time.Second
	scrubbedASec  = 200 // rows and documents; what the scrubber looks at at least
	kilobytes     = 1024.0
	millionOfRows = 1e6
)

// Upkeep is what comparing and rebuilding cost. A figure that the scenario does not have is missing;
// figures of several rounds are their median.
type Upkeep struct {
	Rows       int            `json:"rows"`
	Rounds     int            `json:"rounds"`
	IdleRPS    float64        `json:"verify_rows_per_second,omitempty"`
	BusyRPS    float64        `json:"verify_rows_per_second_busy,omitempty"`
	MemoryMB   float64        `json:"verify_memory_mb,omitempty"`             // of the command, above that of one that compares nothing
	SlopeMB    float64        `json:"verify_memory_mb_per_million,omitempty"` // from half of the rows to all
	RebuildRPS float64        `json:"rebuild_rows_per_second,omitempty"`
	RawRPS     float64        `json:"raw_rows_per_second,omitempty"`
	RatioToRaw *verdict.Range `json:"ratio_to_raw,omitempty"`
	LiveP50MS  float64        `json:"live_p50_ms,omitempty"`
	LiveP99MS  float64        `json:"live_p99_ms,omitempty"`
	MoveMS     float64        `json:"alias_move_ms,omitempty"` // the longest, between two searches
	Searches   int            `json:"searches,omitempty"`
	Failed     int            `json:"searches_failed"`
	Stale      int            `json:"searches_stale"`
	ScrubCPU   float64        `json:"scrub_cpu_percent,omitempty"` // of all cores, servers included
}

// onFilledSite calls do with a site that has rows, a leader, and an index that a rebuild has filled.
func (b *bench) onFilledSite(binary string, w workload, env []string, do func(s *site, leader *rig.Instance)) {
	b.onSite(binary, w, func(s *site) {
		for _, sql := range []string{w.sql(sourceRows), beginScrub} {
			rig.Try(s.pool.Exec(s.Ctx, sql)).MustDo(s, fmt.Sprintf("write %d rows", w.entities))
		}
		s.fleet.Env = append(s.fleet.Env, env...)
		leader := s.start("leader")
		s.Must(leader.Ready(s.Ctx))
		s.rebuild()
		s.expect(weftIndex, w.entities)
		do(s, leader)
	})
}

// beginScrub has a leader that compares in the background begin at once.
const beginScrub = `insert into weft_verify (projection, part, entity_type, entity_id, report, began_at, updated_at)
	values ('` + projections.SearchIndexToElastic + `', 'scrub', '', '', '{}', now(), now())`

// rebuild has the index built again, and drops the old one.
func (s *site) rebuild() {
	name := projections.SearchIndexToElastic
	s.Must(s.fleet.Run(s.Ctx, "rebuild", name, "--by", group, "--why", group))
	s.Must(s.fleet.Run(s.Ctx, "rebuild", "drop-old", name, "--by", group, "--why", group))
}

// compared is the report of a comparison, with the memory that the command took.
type compared struct {
	Rows       float64 `json:"rows"`
	DurationMS float64 `json:"duration_ms"`
	memory     float64 // MB
}

func (c compared) rate() float64 { return c.Rows / (c.DurationMS / 1000) }

// unsettled is how weft verify ends when entities had open events to the end, as hot ones do.
const unsettled = 3

// verify runs weft verify, which must find no difference.
func (s *site) verify() (c compared) {
	name := projections.SearchIndexToElastic
	cmd := exec.CommandContext(s.Ctx, s.fleet.Binary, "verify", name, "--json")
	cmd.Env, cmd.Dir = s.fleet.Env, s.fleet.Dir
	text, err := cmd.Output()
	s.Expect(err == nil || cmd.ProcessState.ExitCode() == unsettled, "weft verify: %w: %s", err, text)
	var reports []compared
	err = json.Unmarshal(text, &reports)
	s.Expect(err == nil && len(reports) == 1, "report of weft verify: %q: %w", text, err)
	c = reports[0]
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		c.memory = float64(usage.Maxrss) * kilobytes / 1e6
	}
	return c
}

// verifies measures comparisons beside an idle leader, and beside live events.
func (b *bench) verifies(binary string, w workload, out *Upkeep) {
	var idle, busy, memory verdict.Distribution
	for _, rows := range []int{1, w.entities / 2, w.entities} {
		part := w
		part.events, part.entities = rows, rows
		b.onFilledSite(binary, part, nil, func(s *site, _ *rig.Instance) {
			for round := range b.opts.Rounds {
				c := s.verify()
				if memory = append(memory, c.memory); rows < w.entities {
					break
				}
				idle = append(idle, c.rate())
				s.beside(part, verifyRate, func() { c = s.verify() })
				busy = append(busy, c.rate())
				b.screen.Line("verify %d/%d  %s rows/s idle, %s with %d events/s", round+1, b.opts.Rounds, number(idle[round]), number(busy[round]), verifyRate)
			}
		})
	}
	out.IdleRPS, out.BusyRPS = idle.Median(), busy.Median()
	all := memory[2:].Median()
	out.MemoryMB, out.SlopeMB = all-memory[0], (all-memory[1])/(float64(w.entities-w.entities/2)/millionOfRows)
	b.screen.Line("verify of %d rows: %.1f MB more than of one row, %.1f MB for each million", w.entities, out.MemoryMB, out.SlopeMB)
}

// rebuilds measures rebuilds beside live events, in turns with the bare loader, and what searches
// see of the move.
func (b *bench) rebuilds(binary string, w workload, out *Upkeep) {
	raw := b.rawSide(binary, w)
	var rates, raws, p50, p99 verdict.Distribution
	b.onFilledSite(binary, w, nil, func(s *site, _ *rig.Instance) {
		for round := range b.opts.Rounds {
			b.step("rebuild: bare loader")
			loaded := raw.run()
			wrote := s.beside(w, rebuildRate, s.rebuild)
			var rate float64
			s.ask("rate of the rebuild", `select filled / extract(epoch from finished_at - began_at)::float8 from weft_rebuild`, nil, &rate)
			latencies := s.latencies(wrote)
			s.searchedRebuild(w, out)
			rates, raws = append(rates, rate), append(raws, loaded.EPS)
			p50, p99 = append(p50, latencies.Percentile(50)), append(p99, latencies.Percentile(99))
			b.screen.Line("rebuild %d/%d  %s rows/s, bare loader %s; live p99 %.0f ms; %d searches, %d failed, %d stale, %.1f ms around the move",
				round+1, b.opts.Rounds, number(rate), number(loaded.EPS), latencies.Percentile(99), out.Searches, out.Failed, out.Stale, out.MoveMS)
		}
	})
	out.RebuildRPS, out.RawRPS, out.RatioToRaw = rates.Median(), raws.Median(), rates.Over(raws).Range()
	out.LiveP50MS, out.LiveP99MS = p50.Median(), p99.Median()
}

// searchedRebuild has searches follow the alias through a rebuild, one after the other all the
// time.
func (s *site) searchedRebuild(w workload, out *Upkeep) {
	searcher := &traffic.Searcher{Elastic: s.Elastic, Index: s.Index}
	s.ask("rows to search for", "select array_agg(k) from (select entity_type || ':' || entity_id as k from search_index limit $1) t", []any{watchedCount}, &searcher.Watched)
	s.Must(s.Elastic.Do(s.Ctx, http.MethodPost, "/"+s.Index+"/_refresh", nil, nil))
	stop := rig.During(s.Ctx, searcher.Run)
	defer stop()
	s.beside(w, rebuildRate, s.rebuild)
	stop()
	found := searcher.Found()
	out.Searches, out.Failed, out.Stale = out.Searches+found.Answered, out.Failed+found.Failed, out.Stale+found.Stale
	for _, m := range found.Moves {
		out.MoveMS = max(out.MoveMS, m.GapMS)
	}
}

// scrubs measures what the comparison in the background takes, at the pace of the slowest.
func (b *bench) scrubs(binary string, w workload, out *Upkeep) {
	var shares verdict.Distribution
	every := time.Duration(2*w.entities/scrubbedASec) * time.Second
	for round := range b.opts.Rounds {
		var took [2]float64
		for i, repair := range []string{"off", "report"} {
			b.onFilledSite(binary, w, []string{"WEFT_VERIFY_REPAIR=" + repair, "WEFT_VERIFY_EVERY=" + every.String()}, func(s *site, leader *rig.Instance) {
				took[i] = s.shareOf(leader, runtime.NumCPU())
			})
		}
		shares = append(shares, took[1]-took[0])
		b.screen.Line("scrub %d/%d  %.2f %% of the machine without, %.2f %% with", round+1, b.opts.Rounds, took[0], took[1])
	}
	out.ScrubCPU = shares.Median()
}

// changeRows changes rows at random, and writes their events.
const changeRows = `
with picked as (select distinct md5('entity' || floor(random() * $1)::int)::uuid as entity_id from generate_series(1, $2)),
source as (
  update search_index s set rank_score = random(), event_version = $3, updated_at = now()
  from picked where s.entity_type = 'block' and s.entity_id = picked.entity_id returning s.entity_id)
insert into ` + outboxTable + ` (id, entity_type, entity_id, op, event_version, created_at, status, attempts, updated_at, replay_count)
select gen_random_uuid(), 'block', entity_id, 'upsert', $3, now(), 'pending', 0, now(), 0 from source
returning id, pg_current_xact_id()::text`

// beside calls do while events of existing rows are written at a rate, and waits until they are settled.
func (s *site) beside(w workload, rate int, do func()) *written {
	var failed error
	out := &written{}
	changes := traffic.Loop{Rate: 1 / livePeriod.Seconds(), Concurrency: 1}
	stop := rig.During(s.Ctx, func(ctx context.Context) {
		failed = changes.Run(ctx, func(ctx context.Context, _ int, _ time.Time) error {
			return s.change(context.WithoutCancel(ctx), w, int(float64(rate)*livePeriod.Seconds()), out)
		})
	})
	defer stop() // also when a step fails
	do()
	stop()
	s.Must(failed)
	s.settled()
	return out
}

// change makes one transaction of about n events.
func (s *site) change(ctx context.Context, w workload, n int, out *written) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rows, _ := s.pool.Query(ctx, changeRows, w.entities, max(n, 1), time.Now().UnixMicro())
	var id [16]byte
	var transaction string
	_, err := pgx.ForEachRow(rows, []any{&id, &transaction}, func() error {
		out.ids, out.transactions = append(out.ids, id), append(out.transactions, transaction)
		return nil
	})
	return rig.Wrap("write live events", err)
}

// shareOf returns what a leader and both servers take of the machine, in per cent.
func (s *site) shareOf(leader *rig.Instance, cores int) float64 {
	cpu := func() float64 {
		servers := s.serversCPU()
		return s.treeCPU(leader.PID()) + servers.postgres + servers.elastic
	}
	s.rest()
	before := cpu()
	s.Pause(scrubWindow)
	return 100 * (cpu() - before) / scrubWindow.Seconds() / float64(cores)
}
