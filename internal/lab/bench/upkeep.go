package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
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

// measureUpkeep runs a scenario of upkeep.
func (b *bench) measureUpkeep(ctx context.Context, s scenario, binary string) (*Upkeep, error) {
	w := s.load.scaled(b.opts.Events)
	out := &Upkeep{Rows: w.entities, Rounds: b.opts.Rounds}
	run := map[string]func(context.Context, string, workload, *Upkeep) error{
		verifyScenario: b.verifies, rebuildScenario: b.rebuilds, scrubScenario: b.scrubs,
	}[s.name]
	if err := run(ctx, binary, w, out); err != nil {
		return nil, err
	}
	return out, nil
}

// filledSite is a site with rows, a leader, and an index that a rebuild has filled.
func (b *bench) filledSite(ctx context.Context, binary string, w workload, env ...string) (s *site, leader *rig.Instance, err error) {
	if s, err = b.newSite(ctx, binary, w); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	for _, sql := range []string{w.sql(sourceRows), beginScrub} {
		if _, err = s.pool.Exec(ctx, sql); err != nil {
			return nil, nil, fmt.Errorf("write %d rows: %w", w.entities, err)
		}
	}
	s.fleet.Env = append(s.fleet.Env, env...)
	if leader, err = s.start(ctx, "leader"); err != nil {
		return nil, nil, err
	}
	if err = leader.Ready(ctx); err != nil {
		return nil, nil, err
	}
	if err = s.rebuild(ctx); err != nil {
		return nil, nil, err
	}
	return s, leader, s.place.expect(ctx, weftIndex, w.entities)
}

// beginScrub has a leader that compares in the background begin at once.
const beginScrub = `insert into weft_verify (projection, part, entity_type, entity_id, report, began_at, updated_at)
values ('` + projections.SearchIndexToElastic + `', 'scrub', '', '', '{}', now(), now())`

// rebuild has the index built again, and drops the old one.
func (s *site) rebuild(ctx context.Context) error {
	name := projections.SearchIndexToElastic
	if err := s.fleet.Run(ctx, "rebuild", name, "--by", group, "--why", group); err != nil {
		return err
	}
	return s.fleet.Run(ctx, "rebuild", "drop-old", name, "--by", group, "--why", group)
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
func (s *site) verify(ctx context.Context) (c compared, err error) {
	name := projections.SearchIndexToElastic
	cmd := exec.CommandContext(ctx, s.fleet.Binary, "verify", name, "--json")
	cmd.Env, cmd.Dir = s.fleet.Env, s.fleet.Dir
	text, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() != unsettled {
		return c, fmt.Errorf("weft verify: %w: %s", err, text)
	}
	var reports []compared
	if err := json.Unmarshal(text, &reports); err != nil || len(reports) != 1 {
		return c, fmt.Errorf("report of weft verify: %q: %w", text, err)
	}
	c = reports[0]
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		c.memory = float64(usage.Maxrss) * kilobytes / 1e6
	}
	return c, nil
}

// verifies measures comparisons beside an idle leader, and beside live events.
func (b *bench) verifies(ctx context.Context, binary string, w workload, out *Upkeep) error {
	var idle, busy, memory verdict.Distribution
	for _, rows := range []int{1, w.entities / 2, w.entities} {
		part := w
		part.events, part.entities = rows, rows
		s, leader, err := b.filledSite(ctx, binary, part)
		if err != nil {
			return err
		}
		for round := range b.opts.Rounds {
			c, err := s.verify(ctx)
			if err != nil {
				return errors.Join(err, s.close(ctx))
			}
			if memory = append(memory, c.memory); rows < w.entities {
				break
			}
			idle = append(idle, c.rate())
			live := s.live(ctx, part, verifyRate)
			c, err = s.verify(ctx)
			_, failed := live()
			if err = errors.Join(err, failed); err == nil {
				err = s.settled(ctx, leader)
			}
			if err != nil {
				return errors.Join(err, s.close(ctx))
			}
			busy = append(busy, c.rate())
			b.screen.Line("verify %d/%d  %s rows/s idle, %s with %d events/s", round+1, b.opts.Rounds, number(idle[round]), number(busy[round]), verifyRate)
		}
		if err := s.close(ctx); err != nil {
			return err
		}
	}
	out.IdleRPS, out.BusyRPS = idle.Median(), busy.Median()
	all := memory[2:].Median()
	out.MemoryMB, out.SlopeMB = all-memory[0], (all-memory[1])/(float64(w.entities-w.entities/2)/millionOfRows)
	b.screen.Line("verify of %d rows: %.1f MB more than of one row, %.1f MB for each million", w.entities, out.MemoryMB, out.SlopeMB)
	return nil
}

// rebuilds measures rebuilds beside live events, in turns with the bare loader, and what searches
// see of the move.
func (b *bench) rebuilds(ctx context.Context, binary string, w workload, out *Upkeep) error {
	raw, err := b.rawSide(ctx, binary, w)
	if err != nil {
		return err
	}
	s, leader, err := b.filledSite(ctx, binary, w)
	if err != nil {
		return err
	}
	defer func() { _ = s.close(ctx) }()
	var rates, raws, p50, p99 verdict.Distribution
	for round := range b.opts.Rounds {
		loaded, err := raw.run(ctx, b.step("rebuild: bare loader"))
		if err != nil {
			return err
		}
		rate, latencies, err := s.timedRebuild(ctx, leader, w)
		if err != nil {
			return err
		}
		if err := s.searchedRebuild(ctx, leader, w, out); err != nil {
			return err
		}
		rates, raws = append(rates, rate), append(raws, loaded.EPS)
		p50, p99 = append(p50, latencies.Percentile(50)), append(p99, latencies.Percentile(99))
		b.screen.Line("rebuild %d/%d  %s rows/s, bare loader %s; live p99 %.0f ms; %d searches, %d failed, %d stale, %.1f ms around the move",
			round+1, b.opts.Rounds, number(rate), number(loaded.EPS), latencies.Percentile(99), out.Searches, out.Failed, out.Stale, out.MoveMS)
	}
	out.RebuildRPS, out.RawRPS, out.RatioToRaw = rates.Median(), raws.Median(), rates.Over(raws).Range()
	out.LiveP50MS, out.LiveP99MS = p50.Median(), p99.Median()
	return nil
}

// timedRebuild measures a rebuild beside live events, in rows per second, and their latencies.
func (s *site) timedRebuild(ctx context.Context, leader *rig.Instance, w workload) (rate float64, latencies verdict.Distribution, err error) {
	wrote, err := s.liveRebuild(ctx, leader, w)
	if err != nil {
		return 0, nil, err
	}
	err = s.pool.QueryRow(ctx, `select filled / extract(epoch from finished_at - began_at)::float8 from weft_rebuild`).Scan(&rate)
	if err != nil {
		return 0, nil, fmt.Errorf("rate of the rebuild: %w", err)
	}
	latencies, err = s.latencies(ctx, wrote)
	return rate, latencies, err
}

// liveRebuild has the index built again beside live events, and waits until they are settled.
func (s *site) liveRebuild(ctx context.Context, leader *rig.Instance, w workload) (*written, error) {
	live := s.live(ctx, w, rebuildRate)
	err := s.rebuild(ctx)
	wrote, failed := live()
	if err = errors.Join(err, failed); err == nil {
		err = s.settled(ctx, leader)
	}
	return wrote, err
}

// searchedRebuild has searches follow the alias through a rebuild, one after the other all the
// time.
func (s *site) searchedRebuild(ctx context.Context, leader *rig.Instance, w workload, out *Upkeep) error {
	search := s.search(ctx)
	_, err := s.liveRebuild(ctx, leader, w)
	found, refused := search()
	if err = errors.Join(err, refused); err != nil {
		return err
	}
	out.Searches, out.Failed, out.Stale = out.Searches+found.Answered, out.Failed+found.Failed, out.Stale+found.Stale
	for _, m := range found.Moves {
		out.MoveMS = max(out.MoveMS, m.GapMS)
	}
	return nil
}

// scrubs measures what the comparison in the background takes, at the pace of the slowest.
func (b *bench) scrubs(ctx context.Context, binary string, w workload, out *Upkeep) error {
	var shares verdict.Distribution
	for round := range b.opts.Rounds {
		var took [2]float64
		for i, repair := range []string{"off", "report"} {
			every := time.Duration(2*w.entities/scrubbedASec) * time.Second
			s, leader, err := b.filledSite(ctx, binary, w, "WEFT_VERIFY_REPAIR="+repair, "WEFT_VERIFY_EVERY="+every.String())
			if err != nil {
				return err
			}
			took[i], err = s.shareOf(ctx, leader, runtime.NumCPU())
			if err = errors.Join(err, s.close(ctx)); err != nil {
				return err
			}
		}
		shares = append(shares, took[1]-took[0])
		b.screen.Line("scrub %d/%d  %.2f %% of the machine without, %.2f %% with", round+1, b.opts.Rounds, took[0], took[1])
	}
	out.ScrubCPU = shares.Median()
	return nil
}
