package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
)

const someLog = `2026-01-01 00:00:00.000 UTC|3/1|weft/bench/w/work|LOG:  duration: 0.100 ms  execute stmtcache_1: 
	with candidates as (
	  select 1
	update t set status = 'processing'
2026-01-01 00:00:01.000 UTC|4/1|weft/bench/w/work|LOG:  duration: 0.250 ms  parse stmtcache_1: 
	update t
	set status = 'processing'
2026-01-01 00:00:01.001 UTC|4/1|weft/bench/w/work|LOG:  duration: 1.000 ms  bind stmtcache_1: 
	update t
	set status = 'processing'
2026-01-01 00:00:01.002 UTC|9/9||LOG:  checkpoint starting: time
2026-01-01 00:00:01.003 UTC|4/1|weft/bench/w/work|LOG:  duration: 2.500 ms  execute stmtcache_1: 
	update t
	set status = 'processing'
2026-01-01 00:00:01.004 UTC|5/7|weft/bench/w/lock|LOG:  duration: 9.000 ms  execute stmtcache_2: select 1
2026-01-01 00:00:01.005 UTC|3/2|weft/bench/w/work|LOG:  duration: 8.000 ms  execute stmtcache_3: update t set status = 'done'
2026-01-01 00:00:01.006 UTC|3/3|weft/bench/w/work|LOG:  duration: 4.000 ms  execute stmtcache_4: 
	select id
	from t
	where status = 'pending' and next_retry_at is null
2026-01-01 00:00:01.100 UTC|3/5|weft/bench/w/work|LOG:  duration: 10.000 ms  execute stmtcache_1: update t set status = 'processing'
2026-01-01 00:00:01.120 UTC|6/1|weft/bench/w/work|LOG:  duration: 30.000 ms  execute stmtcache_4: select id from t where status = 'pending' and next_retry_at is null
2026-01-01 00:00:01.130 UTC|3/6|weft/bench/w/work|LOG:  duration: 20.000 ms  execute stmtcache_1: update t set status = 'processing'
2026-01-01 00:00:01.140 UTC|6/2|weft/bench/w/work|LOG:  duration: 1.000 ms  execute stmtcache_5: delete from weft_lease
2026-01-01 00:00:02.000 UTC|3/4|weft/bench/w/work|LOG:  duration: 7.000 ms  execute stmtcache_1: update t set status = 'processing'
`

func TestReadLog(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "server.log")
	const before = "2026-01-01 00:00:01.000 UTC|2/2|weft/bench/w/work|LOG:  duration: 5.000 ms  execute x: set status = 'processing'\n"
	if err := os.WriteFile(file, []byte(before+someLog), 0o600); err != nil {
		t.Fatal(err)
	}
	second := time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)
	got, err := readLog(file, int64(len(before)), second.Add(300*time.Microsecond), second.Add(500*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	want := statementLog{
		roundTrips: 7, claims: verdict.Distribution{3.75, 4, 10, 30, 20}, lists: verdict.Distribution{4, 30},
		first: second.Add(-750 * time.Microsecond), last: second.Add(140 * time.Millisecond),
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(statementLog{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := readLog(file+".gone", 0, second, second); err == nil || !strings.HasPrefix(err.Error(), "log of PostgreSQL: ") {
		t.Errorf("no log: got %v", err)
	}
}

func TestOwnUsage(t *testing.T) {
	t.Parallel()
	cpu, err := treeCPU(os.Getpid())
	if err != nil || cpu < 0 || cpu > 3600 {
		t.Errorf("CPU time of this process: got %v s, %v", cpu, err)
	}
	rss, err := peakRSS(os.Getpid())
	if err != nil || rss < 1 || rss > 10_000 {
		t.Errorf("peak memory of this process: got %v MB, %v", rss, err)
	}
	if _, err := treeCPU(-1); err == nil || err.Error() != "process -1 is gone" {
		t.Errorf("a process that is none: got %v", err)
	}
}

func TestCheckRaw(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		`{"errors":false}`: "",
		`{"errors":true,"items":[{"index":{"error":{"type":"version_conflict_engine_exception","reason":"x"}}}]}`:                                                 "",
		`{"errors":true,"items":[{"index":{"error":{"type":"version_conflict_engine_exception"}}},{"delete":{"error":{"type":"es_rejected","reason":"queue"}}}]}`: "bulk answer: es_rejected: queue",
		`{}`:         "bulk answer: it does not say whether there were errors",
		`{"errors":`: "bulk answer: unexpected end of JSON input",
	} {
		err := checkRaw([]byte(answer))
		if got := errorText(err); got != want {
			t.Errorf("%s: got %q, want %q", answer, got, want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestPick(t *testing.T) {
	t.Parallel()
	if _, err := pick([]string{"distinct", "cold"}); err == nil ||
		err.Error() != `no scenario is named "cold"; there are `+strings.Join(scenarioNames(), ", ") {
		t.Errorf("got %v", err)
	}
	retrying := scenarioNamed(t, "retrying").load.scaled(2000)
	if retrying.events != 2000 || retrying.entities != 2000 || retrying.waiting != 20_000 {
		t.Errorf("scaled: got %+v, want all of it a tenth", retrying)
	}
	if got := retrying.reference(); got.events != 2000 || got.waiting != 0 || got.drains != referenceDrains {
		t.Errorf("reference: got %+v, want the same number, and nothing that waits", got)
	}
}
