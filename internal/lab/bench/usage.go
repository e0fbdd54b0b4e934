package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/procfs"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// tick is the kernel's unit of CPU time on every Linux that Go runs on.
const tick = 0.01 // seconds

// serversCPU is CPU time in seconds.
type serversCPU struct{ postgres, elastic float64 }

func (b *bench) serversCPU() serversCPU {
	return serversCPU{b.treeCPU(b.place.Servers.PID(stack.Postgres)), b.treeCPU(b.place.Servers.PID(stack.Elastic))}
}

func (b *bench) treeCPU(root int) float64 { return rig.Try(treeCPU(root)).Must(b) }

func (b *bench) peakRSS(i *rig.Instance) float64 { return rig.Try(peakRSS(i.PID())).Must(b) }

// treeCPU adds up the CPU seconds of a process and its descendants, the ended ones too.
func treeCPU(root int) (seconds float64, err error) {
	for _, pid := range append([]int{root}, process.Descendants(root)...) {
		var stat procfs.ProcStat
		p, err := procfs.NewProc(pid)
		if err == nil {
			stat, err = p.Stat()
		}
		if err != nil && pid == root {
			return 0, fmt.Errorf("process %d is gone", root)
		}
		if err == nil { // else the process has ended; its parent has its time
			seconds += tick * float64(int(stat.UTime+stat.STime)+stat.CUTime+stat.CSTime)
		}
	}
	return seconds, nil
}

// peakRSS returns the most memory a process has had at once, in MB of 10⁶ bytes.
func peakRSS(pid int) (float64, error) {
	var status procfs.ProcStatus
	p, err := procfs.NewProc(pid)
	if err == nil {
		status, err = p.NewStatus()
	}
	return float64(status.VmHWM) / 1e6, rig.Wrap(fmt.Sprintf("memory of process %d", pid), err)
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
func (b *bench) mark(i *rig.Instance) (m mark) {
	ctx, cancel := context.WithTimeout(b.Ctx, queryTimeout)
	defer cancel()
	m.wal = rig.Try(walPosition(ctx, b.place.Pool)).MustDo(b, "position of the WAL")
	if i != nil {
		families := rig.Try(verdict.Scrape(ctx, i)).Must(b)
		metrics := families.Samples()
		m.weft, m.mallocs = metrics.Sum("process_cpu_seconds_total"), metrics.Sum("go_memstats_mallocs_total")
		m.events, m.bulks = metrics.Sum("outbox_processed_total")+metrics.Sum("projection_rebuild_rows_total"), metrics.Sum("outbox_es_bulk_requests_total")
		m.retries = metrics.Sum("outbox_retry_scheduled_total")
	}
	m.servers = b.serversCPU()
	return m
}

// idleShare returns how much of a core each instance takes during d, in per cent.
func (b *bench) idleShare(instances []*rig.Instance, d time.Duration) []float64 {
	read := func() []float64 {
		return rig.Map(instances, func(i *rig.Instance) float64 { return b.treeCPU(i.PID()) })
	}
	before := read()
	began := time.Now()
	b.Pause(d)
	took := time.Since(began).Seconds()
	shares := read()
	for i := range shares {
		shares[i] = 100 * (shares[i] - before[i]) / took
	}
	return shares
}
