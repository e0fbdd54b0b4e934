package verdict

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
)

// The names in a directory.
const (
	RecipeFile   = "_recipe.json"
	ResultFile   = "_result.json"
	TimelineFile = "_timeline.jsonl"
	BeforeFile   = "_metrics/metrics-before.txt"
	AfterFile    = "_metrics/metrics-after.txt"
	SeriesFile   = "_metrics/series.jsonl"
	MetricsDir   = "_metrics"
	LogDir       = "_logs"
	ExportDir    = "_exports"
	SpansFile    = "_exports/spans.jsonl"
	ReportFile   = "report.html"

	probePrefix = "_probe_"
	runFormat   = "20060102T150405Z"
)

// Dir is the directory of one run.
type Dir struct {
	Path     string // absolute
	Scenario string
	Run      string
}

// String returns the path relative to the working directory, if it is below that.
func (d Dir) String() string {
	if here, err := os.Getwd(); err == nil {
		if path, err := filepath.Rel(here, d.Path); err == nil && filepath.IsLocal(path) {
			return path
		}
	}
	return d.Path
}

// Create makes the directory of a run that begins now.
func Create(root, scenario string, now time.Time) (Dir, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return Dir{}, fmt.Errorf("evidence: %w", err)
	}
	parent := filepath.Join(root, scenario)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return Dir{}, fmt.Errorf("evidence: %w", err)
	}
	id := now.UTC().Format(runFormat)
	for n := 2; ; n++ {
		d := Dir{Path: filepath.Join(parent, id), Scenario: scenario, Run: id}
		if err = os.Mkdir(d.Path, 0o755); !errors.Is(err, fs.ErrExist) {
			for _, sub := range []string{MetricsDir, LogDir, ExportDir} {
				err = cmp.Or(err, os.Mkdir(d.File(sub), 0o755))
			}
			return d, rig.Wrap("evidence", err)
		}
		id = fmt.Sprintf("%s-%d", now.UTC().Format(runFormat), n)
	}
}

// runID is what Create calls a run.
var runID = regexp.MustCompile(`^\d{8}T\d{6}Z(-\d+)?$`)

// Runs returns the runs of a scenario below root, the oldest first.
func Runs(root, scenario string) ([]Dir, error) {
	parent := filepath.Join(root, scenario)
	entries, err := os.ReadDir(parent)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	var dirs []Dir
	for _, e := range entries {
		if !e.IsDir() || !runID.MatchString(e.Name()) {
			continue
		}
		path, err := filepath.Abs(filepath.Join(parent, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("evidence: %w", err)
		}
		dirs = append(dirs, Dir{path, scenario, e.Name()})
	}
	// Of two runs within a second the second one has a longer name.
	slices.SortFunc(dirs, func(a, b Dir) int {
		return cmp.Or(strings.Compare(a.Run[:16], b.Run[:16]), cmp.Compare(len(a.Run), len(b.Run)), strings.Compare(a.Run, b.Run))
	})
	return dirs, nil
}

// Find returns a run of a scenario, the newest when run is empty.
func Find(root, scenario, run string) (Dir, error) {
	dirs, err := Runs(root, scenario)
	if err != nil {
		return Dir{}, err
	}
	for _, d := range slices.Backward(dirs) {
		if run == "" || d.Run == run {
			return d, nil
		}
	}
	what := "no run"
	if run != "" {
		what = "no run " + run
	}
	return Dir{}, fmt.Errorf("%w: %s of %s below %s", ErrNone, what, scenario, root)
}

// ErrNone is the error of [Find] when there is nothing.
var ErrNone = errors.New("no evidence")

// Keep removes all but the newest n runs of a scenario and returns what it removed.
func Keep(root, scenario string, n int) ([]Dir, error) {
	dirs, err := Runs(root, scenario)
	if err != nil || len(dirs) <= n {
		return nil, err
	}
	old := dirs[:len(dirs)-n]
	for _, d := range old {
		if err := os.RemoveAll(d.Path); err != nil {
			return nil, fmt.Errorf("remove evidence: %w", err)
		}
	}
	return old, nil
}

// File returns the path of a file in the directory.
func (d Dir) File(name string) string { return filepath.Join(d.Path, filepath.FromSlash(name)) }

// ProbeFile is the name of a probe's file.
func ProbeFile(name string) string { return probePrefix + name + ".json" }

// Write writes a file as indented JSON, whole or not at all.
func (d Dir) Write(name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("evidence %s: %w", name, err)
	}
	return d.WriteText(name, append(text, '\n'))
}

// WriteText writes a file, whole or not at all.
func (d Dir) WriteText(name string, text []byte) error {
	file := d.File(name)
	part := file + ".part"
	err := os.WriteFile(part, text, 0o644)
	if err == nil {
		err = os.Rename(part, file)
	}
	return rig.Wrap("evidence "+name, err)
}

// Read reads a file of JSON; numbers in an interface become [json.Number].
func (d Dir) Read(name string, v any) error {
	text, err := os.ReadFile(d.File(name))
	if err == nil {
		err = decode(string(text), v)
	}
	return rig.Wrap("evidence "+name, err)
}

func decode(text string, v any) error {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	return dec.Decode(v)
}

// WriteLines writes one line of JSON for each of vs.
func WriteLines[T any](d Dir, name string, vs []T) error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	for i := range vs {
		if err := enc.Encode(vs[i]); err != nil {
			return fmt.Errorf("evidence %s: %w", name, err)
		}
	}
	return d.WriteText(name, []byte(b.String()))
}

// ReadLines reads lines of JSON; a line that is none is left out: a process that was
// killed may have written half of one. No file is no lines.
func ReadLines[T any](d Dir, name string) ([]T, error) {
	text, err := os.ReadFile(d.File(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []T
	for line := range strings.Lines(string(text)) {
		var v T
		if decode(line, &v) == nil {
			out = append(out, v)
		}
	}
	return out, rig.Wrap("evidence "+name, err)
}

// Evidence is a directory as it was read.
type Evidence struct {
	Dir
	Recipe   Recipe
	Before   Metrics
	After    Metrics
	Timeline []Mark
	Lines    []Line
	Spans    []collector.Span
}

// Line is one line of a log.
type Line struct {
	File   string
	At     time.Time
	Fields map[string]any // numbers are json.Number
}

// Get returns a field as text; empty when there is none.
func (l Line) Get(name string) string {
	v, ok := l.Fields[name]
	if !ok || v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// Open reads a directory. What a run that was cut short has not written is empty; only
// the recipe must be there.
func Open(d Dir) (*Evidence, error) {
	e := &Evidence{Dir: d}
	var errs [6]error
	errs[0] = d.Read(RecipeFile, &e.Recipe)
	e.Before, errs[1] = d.metrics(BeforeFile)
	e.After, errs[2] = d.metrics(AfterFile)
	e.Timeline, errs[3] = ReadLines[Mark](d, TimelineFile)
	e.Spans, errs[4] = ReadLines[collector.Span](d, SpansFile)
	e.Lines, errs[5] = d.lines()
	return e, errors.Join(errs[:]...)
}

func (d Dir) metrics(name string) (Metrics, error) {
	text, err := os.ReadFile(d.File(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var families Families
	if err == nil {
		families, err = Parse(text)
	}
	return families.Samples(), rig.Wrap("evidence "+name, err)
}

func (d Dir) lines() (all []Line, err error) {
	files, err := filepath.Glob(filepath.Join(d.File(LogDir), "*.jsonl"))
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		lines, err := ReadLines[map[string]any](d, LogDir+"/"+name)
		if err != nil {
			return nil, err
		}
		for _, fields := range lines {
			l := Line{File: name, Fields: fields}
			l.At, _ = time.Parse(time.RFC3339Nano, l.Get("ts"))
			all = append(all, l)
		}
	}
	return all, nil
}

// Delta is how much the series of that name with these labels grew while the run lasted;
// see [Metrics.Sum].
func (e *Evidence) Delta(name string, labels ...string) float64 {
	return e.After.Sum(name, labels...) - e.Before.Sum(name, labels...)
}

// Find returns the log lines that have all of these fields, each written as name=value.
func (e *Evidence) Find(fields ...string) []Line {
	return slices.DeleteFunc(slices.Clone(e.Lines), func(l Line) bool { return !has(fields, l.Get) })
}

// has reports whether get returns what each of these says, which is written as name=value.
func has(wanted []string, get func(name string) string) bool {
	return !slices.ContainsFunc(wanted, func(one string) bool {
		name, value, _ := strings.Cut(one, "=")
		return get(name) != value
	})
}

// SpansOf returns the spans of that name that have all of these attributes.
func (e *Evidence) SpansOf(name string, attrs ...string) []collector.Span {
	return slices.DeleteFunc(slices.Clone(e.Spans), func(s collector.Span) bool {
		return s.Name != name || !has(attrs, func(key string) string { return fmt.Sprint(s.Attrs[key]) })
	})
}
