package chaos

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// short is a run of a few cheap faults on the test's servers. It returns what was to
// be seen, the figures and the verdict.
func short(t *testing.T, variant *rig.Variant, opts Options) (string, *Result, error) {
	t.Helper()
	dir := t.TempDir()
	binary, err := rig.Build(t.Context(), dir, variant)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	opts.Out, opts.Progress, opts.Environ = &out, io.Discard, os.Environ()
	opts.Instances, opts.Rate, opts.Binary = 2, cmp.Or(opts.Rate, 200), binary
	if opts.Upgrade != "" {
		opts.Upgrade = binary // a build of its own to the run
	}
	opts.JSON, opts.Evidence = filepath.Join(dir, "result.json"), filepath.Join(dir, "evidence")
	opts.DatabaseURL, opts.ElasticURL, opts.Index = testenv.Database(t), testenv.ElasticURL(t), testenv.Index(t)
	tables := []string{"record.csv.gz", "leases.csv.gz", "bulk.csv.gz"}
	if opts.Shards > 1 {
		opts.DatabaseURL = emptySchema(t)
		tables = []string{"record-0.csv.gz", "leases-2.csv.gz", "bulk-1.csv.gz"}
	}
	verdict := Run(t.Context(), opts)
	t.Logf("%s\n%v", &out, verdict)
	var result Result
	text, err := os.ReadFile(opts.JSON)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatal(err)
	}
	for _, file := range append(tables, "schedule.txt", "findings.txt", "weft-a.jsonl") {
		if info, err := os.Stat(filepath.Join(opts.Evidence, file)); err != nil || info.Size() == 0 {
			t.Errorf("evidence %s: got %v, want a file that is not empty", file, err)
		}
	}
	return out.String(), &result, verdict
}

func TestShortRunIsClean(t *testing.T) {
	t.Parallel()
	out, result, err := short(t, nil, Options{Faults: 5, Only: []string{faults.SIGKILL, faults.Throttle429, faults.TerminateLock, faults.PostgresRestartFast}, Seed: 11})
	if err != nil {
		t.Errorf("verdict: got %v, want none", err)
	}
	// A leader that loses its term while the machine stands still has no lock session for a moment.
	ended := result.Skipped[faults.TerminateLock]
	if result.Faults+result.Skipped[faults.PostgresRestartFast]+ended != 5 || result.Skipped[faults.PostgresRestartFast] == 0 || ended > result.Spontaneous {
		t.Errorf("faults: got %d and %v skipped, want 5 in all, with the restart of somebody else's server skipped", result.Faults, result.Skipped)
	}
	if !slices.Equal(result.Impossible, []string{faults.PostgresRestartFast}) {
		t.Errorf("faults that the options rule out: got %v, want the restart", result.Impossible)
	}
	if result.Produced == 0 || result.Bulk == 0 || result.Terms < 2 || result.TakeoverMS[faults.SIGKILL].N+result.TakeoverMS[faults.TerminateLock].N == 0 {
		t.Errorf("result: got %+v, want events, items, terms and takeovers", result)
	}
	for _, want := range []string{"PASS (seed 11)", "skipped: the servers are not of this run", "throttle-429"} {
		if !strings.Contains(out, want) {
			t.Errorf("output: no %q in it", want)
		}
	}
}

// Each start of an instance takes the other build, and both lead.
func TestShortRunOfTwoBuilds(t *testing.T) {
	t.Parallel()
	out, result, err := short(t, nil, Options{Faults: 3, Only: []string{faults.SIGTERM, faults.SIGKILL}, Seed: 14, Upgrade: "binary", Finished: outbox.Discard})
	if err != nil {
		t.Errorf("verdict: got %v, want none", err)
	}
	if result.OtherTerms == 0 || result.OtherTerms == result.Terms || !strings.Contains(out, "terms were of the other build") {
		t.Errorf("terms: got %d of the other build of %d, want some of each", result.OtherTerms, result.Terms)
	}
	if result.Finished != "delete" || !strings.Contains(out, "finished events: delete; 0 stayed in the table") {
		t.Errorf("finished events: got %q with %d kept, want all deleted", result.Finished, result.Kept)
	}
	_, err = otherBuild(t.Context(), "no-such-revision", t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "no-such-revision is neither a file nor a revision") {
		t.Errorf("unknown revision: got %v, want its name", err)
	}
}

// A build that forgets about every other lease when it settles cannot pass.
func TestShortRunRejectsSettlesWithoutALease(t *testing.T) {
	t.Parallel()
	const closes = `	q.Queue(b.store.sql("close_lease"), b.store.cfg.Group, b.epoch, b.store.cfg.Owner, [16]byte(b.batch))
`
	variant, err := rig.Replaced(t.Context(), "outbox/settle.go", closes, "if len(in)%2 == 1 {\n"+closes+"} else {\nq.Queue(\"select\")\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	out, result, err := short(t, variant, Options{Faults: 1, Only: []string{faults.SIGKILL}, Seed: 15})
	if err == nil || result.Unleased == 0 || !strings.Contains(out, "verdicts without a lease") {
		t.Errorf("verdict: got %v with %+v, want verdicts without a lease", err, result)
	}
}

// A build that writes documents without their versions cannot pass.
func TestShortRunRejectsWritesWithoutVersions(t *testing.T) {
	t.Parallel()
	variant, err := rig.Replaced(t.Context(), "projections/elastic/encode.go", `	dst = append(dst, `+"`"+`,"version":`+"`"+`...)
	dst = strconv.AppendInt(dst, a.Version, 10)
	dst = append(dst, `+"`"+`,"version_type":"external_gte"}}`+"`"+`...)
`, "	dst = strconv.AppendInt(dst, a.Version, 10)[:len(dst)]\n	dst = append(dst, `}}`...)\n")
	if err != nil {
		t.Fatal(err)
	}
	out, result, err := short(t, variant, Options{Faults: 1, Only: []string{faults.SIGKILL}, Seed: 12})
	if err == nil || result.Regressions+result.Stale == 0 || !strings.Contains(out, "FAIL: ") {
		t.Errorf("verdict: got %v with %+v, want regressions or stale documents", err, result)
	}
}

// A build in which events pass earlier ones that wait for their retry cannot pass.
func TestShortRunRejectsOvertaking(t *testing.T) {
	t.Parallel()
	variant, err := rig.Replaced(t.Context(), "outbox/sql/lease.sql",
		"where q.entity_id = d.entity_id and q.entity_type = d.entity_type", "where false and q.entity_id = d.entity_id and q.entity_type = d.entity_type")
	if err != nil {
		t.Fatal(err)
	}
	out, result, err := short(t, variant, Options{Faults: 3, Only: []string{faults.Throttle429}, Seed: 13})
	if err == nil || result.OutOfOrder == 0 || !strings.Contains(out, "events out of order") {
		t.Errorf("verdict: got %v with %+v, want events out of order", err, result)
	}
}
