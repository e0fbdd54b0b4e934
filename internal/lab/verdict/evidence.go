package verdict

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/collector"
)

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
	if err != nil {
		return nil, fmt.Errorf("evidence %s: %w", name, err)
	}
	return families.Samples(), nil
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

// Probe reads what a probe has found.
func (e *Evidence) Probe(name string, v any) error { return e.Read(ProbeFile(name), v) }

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
