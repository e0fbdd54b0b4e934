package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/fleet"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// tick is the kernel's unit of CPU time on every Linux that Go runs on.
const tick = 0.01 // seconds

// serversCPU is CPU time in seconds.
type serversCPU struct{ postgres, elastic float64 }

func (p *place) serversCPU() (c serversCPU, err error) {
	if c.postgres, err = treeCPU(p.servers.PID(stack.Postgres)); err != nil {
		return c, err
	}
	c.elastic, err = treeCPU(p.servers.PID(stack.Elastic))
	return c, err
}

// treeCPU sums up a process and what descends from it, the ended ones too.
func treeCPU(root int) (float64, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	children, seconds := map[int][]int{}, map[int]float64{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // has ended; its parent has its time
		}
		pid, parent, cpu, err := parseStat(string(content))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		children[parent], seconds[pid] = append(children[parent], pid), cpu
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

// parseStat reads /proc/PID/stat; cpu covers the children that were waited for.
func parseStat(text string) (pid, parent int, cpu float64, err error) {
	head, _, _ := strings.Cut(text, " (")
	rest := text[strings.LastIndexByte(text, ')')+1:] // the name in brackets may hold anything
	fields := strings.Fields(rest)
	const ppid, utime, cstime = 1, 11, 14
	if len(fields) <= cstime {
		return 0, 0, 0, fmt.Errorf("%d fields after the name", len(fields))
	}
	pid, err = strconv.Atoi(head)
	if err != nil {
		return 0, 0, 0, err
	}
	parent, err = strconv.Atoi(fields[ppid])
	for _, f := range fields[utime : cstime+1] {
		ticks, e := strconv.ParseFloat(f, 64)
		cpu, err = cpu+ticks*tick, errors.Join(err, e)
	}
	return pid, parent, cpu, err
}

// peakRSS returns the most memory a process has had at once, in MB of 10⁶ bytes.
func peakRSS(pid int) (float64, error) {
	file := fmt.Sprintf("/proc/%d/status", pid)
	content, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 64)
			return kib * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("%s: %w", file, fs.ErrNotExist)
}

// mark is a moment of a drain.
type mark struct {
	at      time.Time
	servers serversCPU
	weft    float64 // CPU seconds
	mallocs float64
	events  float64 // that have left the pipeline
	bulks   float64 // requests
	retries float64
	wal     float64 // bytes
}

// mark takes the metrics in the middle: what they say of events fits the rest.
func (p *place) mark(ctx context.Context, i *fleet.Instance) (m mark, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	m.at = time.Now()
	if m.wal, err = p.walPosition(ctx); err != nil {
		return m, err
	}
	if i != nil {
		metrics, err := scrape(ctx, i)
		if err != nil {
			return m, err
		}
		m.weft, m.mallocs = metrics["process_cpu_seconds_total"], metrics["go_memstats_mallocs_total"]
		m.events, m.bulks = metrics["outbox_processed_total"], metrics["outbox_es_bulk_requests_total"]
		m.retries = metrics["outbox_retry_scheduled_total"]
	}
	m.servers, err = p.serversCPU()
	return m, err
}

func (p *place) walPosition(ctx context.Context) (bytes float64, err error) {
	if err := p.admin.QueryRow(ctx, "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8").Scan(&bytes); err != nil {
		return 0, fmt.Errorf("position of the WAL: %w", err)
	}
	return bytes, nil
}

// scrape returns the metrics of an instance, each the sum of its series.
func scrape(ctx context.Context, i *fleet.Instance) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, i.URL("/metrics"), nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", i.Name, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", i.Name, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics of %s: %s", i.Name, res.Status)
	}
	return parseMetrics(body), nil
}

func parseMetrics(text []byte) map[string]float64 {
	sums := map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		series, value, found := cutLast(lines.Text(), " ")
		name, _, _ := strings.Cut(series, "{")
		if v, err := strconv.ParseFloat(value, 64); found && err == nil && !strings.HasPrefix(series, "#") {
			sums[name] += v
		}
	}
	return sums
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
