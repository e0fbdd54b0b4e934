package verdict

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pastRun leaves the evidence of a run with a fault after a second, a warning, a new term and a
// repair so many milliseconds later.
func pastRun(t *testing.T, root, scenario string, at time.Time, detection, takeover, repair int, ok bool) {
	t.Helper()
	d, err := Create(root, scenario, at)
	if err != nil {
		t.Fatal(err)
	}
	fault := at.Add(time.Second)
	after := func(ms int) time.Time { return fault.Add(time.Duration(ms) * time.Millisecond) }
	line := func(ms int, rest string) string {
		return `{"ts":"` + after(ms).Format(time.RFC3339Nano) + `",` + rest + "}\n"
	}
	for _, err := range []error{
		d.Write(RecipeFile, Recipe{Scenario: scenario, Run: d.Run, Started: at, Outcome: Completed, Weft: "v1"}),
		d.Write(ResultFile, Result{OK: ok}),
		WriteLines(d, TimelineFile, []Mark{{At: fault, Kind: Fault, What: "x"}, {At: after(repair), Kind: Heal, What: "over"}}),
		d.WriteText(LogDir+"/weft-a.jsonl", []byte(line(-500, `"level":"warn","event":"before"`)+line(detection, `"level":"warn","event":"leader.lost"`)+
			line(takeover, `"level":"info","event":"leader.acquired"`))),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestPastShowsTimesAndTrend(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	at := time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
	pastRun(t, root, "leader_sigkill", at, 50, 200, 3000, true)
	pastRun(t, root, "leader_sigkill", at.Add(time.Hour), 50, 400, 3000, true)
	pastRun(t, root, "leader_sigkill", at.Add(2*time.Hour), 100, 600, 3000, false)
	pastRun(t, root, "es_restart", at.Add(3*time.Hour), 10, 20, 30, true)
	if err := os.Mkdir(filepath.Join(root, "stray"), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := HistoryCommand()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(append(args, "--evidence", root))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	fields := strings.Join(strings.Fields(run()), " ")
	for _, want := range []string{
		"leader_sigkill 20261120T080000Z ok 0.05 s 0.20 s 3.00 s", "leader_sigkill 20261120T100000Z failed 0.10 s 0.60 s 3.00 s",
		"leader_sigkill detection 3 0.10 s 0.05 s +100 %", "leader_sigkill takeover 3 0.60 s 0.30 s +100 %", "leader_sigkill repair 3 3.00 s 3.00 s +0 %",
	} {
		if !strings.Contains(fields, want) {
			t.Errorf("got %s, want %q", fields, want)
		}
	}
	if strings.Contains(fields, "es_restart takeover") {
		t.Errorf("got %s, want no trend of a single run", fields)
	}
	if got := run("es_restart", "--json"); !strings.Contains(got, `"takeover_seconds": 0.02`) || strings.Contains(got, "leader_sigkill") {
		t.Errorf("got %s, want es_restart alone", got)
	}
	file := filepath.Join(t.TempDir(), "history.html")
	run("--page", file)
	page, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(page), `<polyline points="0.0,`) || strings.Count(string(page), "<tr class=") != 4 {
		t.Errorf("got %s, %v, want a row for each run and a line for each time", page, err)
	}
}
