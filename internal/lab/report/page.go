package report

import (
	"bytes"
	_ "embed" // the page
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/evidence"
)

//go:embed page.html.tmpl
var pageText string

const (
	maxEvents = 60
	maxLog    = 120
	maxText   = 400 // of one cell
)

// page is all that is on it.
type page struct {
	Recipe   evidence.Recipe
	Result   *evidence.Result // nil when the run was not judged
	Failing  []evidence.Check
	Took     string
	Facts    []fact
	Settings []instanceSettings
	Timeline timeline
	Moments  []moment
	Charts   []chart
	Events   []eventRow
	Hidden   int // events that are not shown
	Traces   []traceRow
	Exported string // what the export says of itself
	Log      []logRow
	LogCut   int
	Files    []string
}

type fact struct{ Name, Value string }

type instanceSettings struct {
	Instance string
	Facts    []fact
}

type eventRow struct {
	ID, Entity, Op, Role     string
	Version                  int64
	Status, Attempts, Reason string
	Traces                   []link
}

type link struct{ Text, URL string }

type traceRow struct {
	By, ID, Operation string
	Traces, Spans     int
	File              link
	More              []link
}

type logRow struct {
	At, File, Level, Event, Text string
	Trace                        link
}

// Write makes the page of a run, report.html in its directory, and returns its path.
// jaegerURL may be empty.
func Write(d evidence.Dir, jaegerURL string) (string, error) {
	e, err := evidence.Open(d)
	if err != nil {
		return "", err
	}
	p, err := newPage(e, strings.TrimRight(jaegerURL, "/"))
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := p.render(&out); err != nil {
		return "", fmt.Errorf("report: %w", err)
	}
	return d.File(evidence.ReportFile), d.WriteText(evidence.ReportFile, out.Bytes())
}

func (p *page) render(out *bytes.Buffer) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"num": func(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) },
	}).Parse(pageText)
	if err != nil {
		return err
	}
	return t.Execute(out, p)
}

func newPage(e *evidence.Evidence, jaegerURL string) (*page, error) {
	p := &page{Recipe: e.Recipe}
	var result evidence.Result
	switch err := e.Read(evidence.ResultFile, &result); {
	case err == nil:
		p.Result = &result
		for _, c := range result.Checks {
			if !c.Pass {
				p.Failing = append(p.Failing, c)
			}
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	from, to := e.Recipe.Started, e.Recipe.Ended
	if to.IsZero() { // it crashed
		to = from
		for _, m := range e.Timeline {
			if m.At.After(to) {
				to = m.At
			}
		}
	}
	p.Took = seconds(to.Sub(from))
	p.Facts = facts(e.Recipe)
	for _, name := range slices.Sorted(maps.Keys(e.Recipe.Settings)) {
		p.Settings = append(p.Settings, instanceSettings{name, sorted(e.Recipe.Settings[name])})
	}
	p.Timeline, p.Moments = newTimeline(e.Timeline, from, to), moments(e.Timeline, from)
	changes, err := evidence.ReadLines[evidence.Change](e.Dir, evidence.SeriesFile)
	if err != nil {
		return nil, err
	}
	var faults []time.Time
	for _, m := range e.Timeline {
		if m.Kind == evidence.Fault {
			faults = append(faults, m.At)
		}
	}
	p.Charts = charts(changes, from, to, faults)
	traceOf := func(id string) link { return traceLink(jaegerURL, id) }
	if err := p.events(e, traceOf); err != nil {
		return nil, err
	}
	if err := p.traces(e, traceOf); err != nil {
		return nil, err
	}
	p.log(e, traceOf, from)
	p.Files, err = files(e.Dir)
	return p, err
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s" }

func facts(r evidence.Recipe) []fact {
	out := []fact{
		{"run", r.Run}, {"ended", string(r.Outcome) + " " + r.Error}, {"began", r.Started.Format(time.RFC3339)}, {"environment", r.Environment + ", servers " + r.Servers},
		{"PostgreSQL", r.Postgres}, {"Elasticsearch", r.Elastic}, {"schema", r.Schema}, {"index", r.Index}, {"group", r.Group}, {"weft", r.Weft}, {"service", r.Service},
	}
	if r.WithoutFault {
		out = append(out, fact{"without fault", "the failure was left out on purpose"})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Parameters)) {
		out = append(out, fact{"parameter " + name, fmt.Sprint(r.Parameters[name])})
	}
	for i, f := range r.Faults {
		out = append(out, fact{fmt.Sprintf("fault %d", i+1), f})
	}
	return out
}

func sorted(m map[string]string) (out []fact) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fact{k, m[k]})
	}
	return out
}

// traceLink leads to a trace in Jaeger, or is its id alone.
func traceLink(jaegerURL, id string) link {
	if id == "" || jaegerURL == "" {
		return link{Text: id}
	}
	return link{id, jaegerURL + "/trace/" + id}
}

// events are those that the drill wrote, as they ended.
func (p *page) events(e *evidence.Evidence, traceOf func(string) link) error {
	var rows []struct {
		ID       string  `json:"id"`
		Status   string  `json:"status"`
		Attempts int     `json:"attempts"`
		Reason   *string `json:"error_reason"`
	}
	if err := e.Probe("outbox", &rows); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	traces := map[string][]link{}
	for _, s := range e.Spans {
		if id, ok := s.Attrs["wordloom.outbox_event_id"]; ok {
			l := traceOf(s.Trace)
			if of := traces[fmt.Sprint(id)]; !slices.Contains(of, l) {
				traces[fmt.Sprint(id)] = append(of, l)
			}
		}
	}
	for i, event := range e.Recipe.Events {
		if i == maxEvents {
			p.Hidden = len(e.Recipe.Events) - maxEvents
			break
		}
		row := eventRow{ID: event.ID.String(), Entity: event.Entity, Op: event.Op, Role: event.Role, Version: event.Version, Traces: traces[event.ID.String()]}
		for _, r := range rows {
			if r.ID == row.ID {
				row.Status, row.Attempts = r.Status, strconv.Itoa(r.Attempts)
				if r.Reason != nil {
					row.Reason = *r.Reason
				}
			}
		}
		p.Events = append(p.Events, row)
	}
	return nil
}

// traces are those that were exported.
func (p *page) traces(e *evidence.Evidence, traceOf func(string) link) error {
	var counts struct {
		Source  string `json:"source"`
		Traces  int    `json:"traces"`
		Spans   int    `json:"spans"`
		Queries []struct {
			By        string `json:"by"`
			ID        string `json:"id"`
			Operation string `json:"operation"`
			File      string `json:"file"`
			Traces    int    `json:"traces"`
			Spans     int    `json:"spans"`
		} `json:"queries"`
	}
	err := e.Read(evidence.ExportDir+"/_exported.json", &counts)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	p.Exported = fmt.Sprintf("%d traces with %d spans from %s", counts.Traces, counts.Spans, counts.Source)
	for _, q := range counts.Queries {
		row := traceRow{By: q.By, ID: q.ID, Operation: q.Operation, Traces: q.Traces, Spans: q.Spans, File: link{filepath.Base(q.File), q.File}}
		var answer struct {
			Data []struct {
				ID string `json:"traceID"`
			} `json:"data"`
		}
		if err := e.Read(q.File, &answer); err != nil {
			return err
		}
		for _, t := range answer.Data {
			row.More = append(row.More, traceOf(t.ID))
		}
		p.Traces = append(p.Traces, row)
	}
	return nil
}

// log is what a person would look for: all but what is for debugging, and the events that
// have a reason for how they ended.
func (p *page) log(e *evidence.Evidence, traceOf func(string) link, from time.Time) {
	lines := slices.DeleteFunc(slices.Clone(e.Lines), func(l evidence.Line) bool { return !telling(l) })
	slices.SortStableFunc(lines, func(a, b evidence.Line) int { return a.At.Compare(b.At) })
	if len(lines) > maxLog {
		p.LogCut = len(lines) - maxLog
		lines = lines[:maxLog]
	}
	for _, l := range lines {
		rest := map[string]any{}
		for k, v := range l.Fields {
			switch k {
			case "ts", "level", "event", "msg", "logger", "trace_id", "span_id", "env", "component", "obs_schema", "caller", "group", "instance":
			default:
				rest[k] = v
			}
		}
		text := l.Get("msg")
		if b, err := json.Marshal(rest); err == nil && len(rest) > 0 {
			text += " " + string(b)
		}
		p.Log = append(p.Log, logRow{
			At: seconds(l.At.Sub(from)), File: strings.TrimSuffix(l.File, ".jsonl"), Level: l.Get("level"), Event: l.Get("event"),
			Text: cut(text), Trace: traceOf(l.Get("trace_id")),
		})
	}
}

func telling(l evidence.Line) bool {
	return l.Get("level") != "debug" || l.Get("event") == "projection.event" && l.Get("reason") != ""
}

func cut(text string) string {
	if r := []rune(text); len(r) > maxText {
		return string(r[:maxText]) + " …"
	}
	return text
}

func files(d evidence.Dir) (names []string, err error) {
	err = filepath.WalkDir(d.Path, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(d.Path, path)
		if name != evidence.ReportFile {
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return names, nil
}
