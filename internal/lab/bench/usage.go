package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/procfs"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// tick is the kernel's unit of CPU time on every Linux that Go runs on.
const tick = 0.01 // seconds

// serversCPU is CPU time in seconds.
type serversCPU struct{ postgres, elastic float64 }

func (p *place) serversCPU() (c serversCPU, err error) {
	if c.postgres, err = treeCPU(p.Servers.PID(stack.Postgres)); err != nil {
		return c, err
	}
	c.elastic, err = treeCPU(p.Servers.PID(stack.Elastic))
	return c, err
}

// treeCPU adds up the CPU seconds of a process and its descendants, the ended ones too.
func treeCPU(root int) (float64, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	children, seconds := map[int][]int{}, map[int]float64{}
	for _, p := range processes {
		stat, err := p.Stat()
		if err != nil {
			continue // the process has ended; its parent has its time
		}
		children[stat.PPID] = append(children[stat.PPID], stat.PID)
		seconds[stat.PID] = tick * float64(int(stat.UTime+stat.STime)+stat.CUTime+stat.CSTime)
	}
	if _, ok := seconds[root]; !ok {
		return 0, fmt.Errorf("process %d is gone", root)
	}
	sum := 0.0
	for todo := []int{root}; len(todo) > 0; todo = todo[1:] {
		sum += seconds[todo[0]]
		todo = append(todo, children[todo[0]]...)
	}
	return sum, nil
}

// peakRSS returns the most memory a process has had at once, in MB of 10⁶ bytes.
func peakRSS(pid int) (float64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	status, err := p.NewStatus()
	if err != nil {
		return 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	return float64(status.VmHWM) / 1e6, nil
}

// mark is a moment of a drain.
type mark struct {
	servers serversCPU
	weft    float64 // CPU seconds
	mallocs float64
	events  float64 // that have left the pipeline
	bulks   float64 // requests
	retries float64
	wal     float64 // bytes
}

// mark takes the metrics in the middle: what they say of events fits the rest.
func (p *place) mark(ctx context.Context, i *rig.Instance) (m mark, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err = p.Pool.QueryRow(ctx, "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8").Scan(&m.wal); err != nil {
		return m, fmt.Errorf("position of the WAL: %w", err)
	}
	if i != nil {
		text, err := i.Get(ctx, "/metrics")
		if err != nil {
			return m, fmt.Errorf("metrics of %s: %w", i.Name, err)
		}
		families, err := verdict.Parse(text)
		if err != nil {
			return m, fmt.Errorf("metrics of %s: %w", i.Name, err)
		}
		metrics := families.Samples()
		m.weft, m.mallocs = metrics.Sum("process_cpu_seconds_total"), metrics.Sum("go_memstats_mallocs_total")
		m.events, m.bulks = metrics.Sum("outbox_processed_total")+metrics.Sum("projection_rebuild_rows_total"), metrics.Sum("outbox_es_bulk_requests_total")
		m.retries = metrics.Sum("outbox_retry_scheduled_total")
	}
	m.servers, err = p.serversCPU()
	return m, err
}

// idleShare returns how much of a core each instance takes during d, in per cent.
func idleShare(ctx context.Context, instances []*rig.Instance, d time.Duration, progress func(share float64)) ([]float64, error) {
	read := func() (cpu []float64, err error) {
		for _, i := range instances {
			seconds, err := treeCPU(i.PID)
			if err != nil {
				return nil, err
			}
			cpu = append(cpu, seconds)
		}
		return cpu, nil
	}
	before, err := read()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for time.Since(began) < d {
		progress(float64(time.Since(began)) / float64(d))
		if err := rig.Sleep(ctx, min(time.Second, d-time.Since(began))); err != nil {
			return nil, err
		}
	}
	took := time.Since(began).Seconds()
	shares, err := read()
	for i := range shares {
		shares[i] = 100 * (shares[i] - before[i]) / took
	}
	return shares, err
}
