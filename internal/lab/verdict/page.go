package verdict

import (
	"bytes"
	_ "embed" // the page
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
)

// Command returns `weftlab report`.
func Command() *cobra.Command {
	var root, run string
	cmd := &cobra.Command{
		Use:   "report SCENARIO|DIR",
		Short: "Make one page for a browser of a drill's evidence",
		Long: `Write report.html into the directory of a run: recipe, timeline with terms of leadership
and faults, charts of the metrics, assertions (after verify), events with their traces,
what the logs say. The page needs no network; with JAEGER_URL it has links to the traces
there.`,
		Example: `  weftlab report es_429_inject
  weftlab report evidence/es_429_inject/20261121T164207Z`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := directory(root, args[0], run)
			if err != nil {
				return err
			}
			if err := WritePage(d, os.Getenv("JAEGER_URL")); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(d.String(), ReportFile))
			return nil
		},
	}
	EvidenceFlag(cmd, &root)
	RunFlag(cmd, &run)
	return cmd
}

// EvidenceFlag adds the flag that says where the evidence is.
func EvidenceFlag(cmd *cobra.Command, root *string) {
	cmd.Flags().StringVar(root, "evidence", "evidence", "`DIR` of the evidence")
}

// RunFlag adds the flag that says which run is meant.
func RunFlag(cmd *cobra.Command, run *string) {
	cmd.Flags().StringVar(run, "run", "", "the run to look at (default the newest)")
}

// directory is that of a run: itself, or the one of a scenario.
func directory(root, named, run string) (Dir, error) {
	if _, err := os.Stat(filepath.Join(named, RecipeFile)); err == nil && run == "" {
		path, err := filepath.Abs(named)
		return Dir{Path: path, Scenario: filepath.Base(filepath.Dir(path)), Run: filepath.Base(path)}, rig.Wrap("report", err)
	}
	d, err := Find(root, named, run)
	if errors.Is(err, ErrNone) {
		err = fmt.Errorf("%w; name a scenario or the directory of a run", err)
	}
	return d, err
}

//go:embed page.html.tmpl
var pageText string

const (
	maxEvents = 60
	maxLog    = 120
	maxText   = 400 // of one cell
)

type page struct {
	Recipe   Recipe
	Result   *Result // nil when the run was not judged
	Failing  []Check
	Took     string
	Timeline []row
	Moments  []Mark
	Charts   []chart
	Events   []eventRow
	Hidden   int // events that are not shown
	Exported *Exported
	Traces   []traceRow
	Log      []logRow
	LogCut   int
	Files    []string

	jaeger string // URL; may be empty
}

// eventRow is an event that the drill wrote, as it ended.
type eventRow struct {
	Event
	Row    outboxRow
	Traces []link
}

// outboxRow is what the page shows of an event's row.
type outboxRow struct {
	ID       uuid.UUID `json:"id"`
	Status   string    `json:"status"`
	Attempts int       `json:"attempts"`
	Reason   string    `json:"error_reason"`
}

type link struct{ Text, URL string }

// traceRow is a question of an export with the traces that answer it.
type traceRow struct {
	Query
	Links []link
}

type logRow struct {
	At, File, Level, Event, Text string
	Trace                        link
}

// WritePage makes the page of a run, report.html in its directory. jaegerURL may be empty.
func WritePage(d Dir, jaegerURL string) error {
	e, err := Open(d)
	if err != nil {
		return err
	}
	p, err := newPage(e, strings.TrimRight(jaegerURL, "/"))
	if err != nil {
		return err
	}
	text, err := render("report", pageText, p)
	if err != nil {
		return err
	}
	return d.WriteText(ReportFile, text)
}

func render(name, text string, data any) ([]byte, error) {
	t, err := template.New(name).Funcs(template.FuncMap{"secs": secs, "day": day, "px": px}).Parse(text)
	var out bytes.Buffer
	if err == nil {
		err = t.Execute(&out, data)
	}
	return out.Bytes(), rig.Wrap(name, err)
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") }

func px(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

func newPage(e *Evidence, jaegerURL string) (*page, error) {
	p := &page{Recipe: e.Recipe, jaeger: jaegerURL}
	var result Result
	switch err := e.Read(ResultFile, &result); {
	case err == nil:
		p.Result = &result
		p.Failing = slices.DeleteFunc(slices.Clone(result.Checks), func(c Check) bool { return c.Pass })
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	during := span{e.Recipe.Started, e.Recipe.Ended}
	if during.to.IsZero() { // the run crashed
		during.to = during.from
		for _, m := range e.Timeline {
			if m.At.After(during.to) {
				during.to = m.At
			}
		}
	}
	p.Took = p.Since(during.to)
	p.Timeline, p.Moments = timeline(e.Timeline, during), e.Timeline
	changes, err := ReadLines[Change](e.Dir, SeriesFile)
	if err != nil {
		return nil, err
	}
	var faults []time.Time
	for _, m := range e.Timeline {
		if m.Kind == Fault {
			faults = append(faults, m.At)
		}
	}
	p.Charts = charts(changes, during, faults)
	p.log(e)
	p.Files, err = files(e.Dir)
	return p, errors.Join(err, p.events(e), p.traces(e))
}

// Since says how long after the begin of the run a moment was.
func (p *page) Since(at time.Time) string {
	return strconv.FormatFloat(at.Sub(p.Recipe.Started).Seconds(), 'f', 1, 64) + " s"
}

// traceLink leads to a trace in Jaeger; without a Jaeger it is the trace's id alone.
func (p *page) traceLink(id string) link {
	if id == "" || p.jaeger == "" {
		return link{Text: id}
	}
	return link{id, p.jaeger + "/trace/" + id}
}

func (p *page) events(e *Evidence) error {
	var rows []outboxRow
	if err := e.Read(ProbeFile("outbox"), &rows); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	traces := map[string][]link{}
	for _, s := range e.Spans {
		if id, ok := s.Attrs["wordloom.outbox_event_id"]; ok {
			l := p.traceLink(s.Trace)
			if of := traces[fmt.Sprint(id)]; !slices.Contains(of, l) {
				traces[fmt.Sprint(id)] = append(of, l)
			}
		}
	}
	shown := e.Recipe.Events[:min(len(e.Recipe.Events), maxEvents)]
	p.Hidden = len(e.Recipe.Events) - len(shown)
	for _, event := range shown {
		row := eventRow{Event: event, Traces: traces[event.ID.String()]}
		if n := slices.IndexFunc(rows, func(r outboxRow) bool { return r.ID == event.ID }); n >= 0 {
			row.Row = rows[n]
		}
		p.Events = append(p.Events, row)
	}
	return nil
}

func (p *page) traces(e *Evidence) error {
	var exported Exported
	err := e.Read(ExportedFile, &exported)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	p.Exported = &exported
	for _, q := range exported.Queries {
		row := traceRow{Query: q}
		var answer struct {
			Data []struct {
				ID string `json:"traceID"`
			} `json:"data"`
		}
		if err := e.Read(q.File, &answer); err != nil {
			return err
		}
		for _, t := range answer.Data {
			row.Links = append(row.Links, p.traceLink(t.ID))
		}
		p.Traces = append(p.Traces, row)
	}
	return nil
}

// log shows what a person would look for: all but debug lines.
func (p *page) log(e *Evidence) {
	lines := slices.DeleteFunc(slices.Clone(e.Lines), func(l Line) bool {
		return l.Get("level") == "debug"
	})
	slices.SortStableFunc(lines, func(a, b Line) int { return a.At.Compare(b.At) })
	shown := lines[:min(len(lines), maxLog)]
	p.LogCut = len(lines) - len(shown)
	for _, l := range shown {
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
		if r := []rune(text); len(r) > maxText {
			text = string(r[:maxText]) + " …"
		}
		p.Log = append(p.Log, logRow{
			At: p.Since(l.At), File: strings.TrimSuffix(l.File, ".jsonl"), Level: l.Get("level"), Event: l.Get("event"),
			Text: text, Trace: p.traceLink(l.Get("trace_id")),
		})
	}
}

// files returns the names of all files of a run but the page itself.
func files(d Dir) (names []string, err error) {
	err = fs.WalkDir(os.DirFS(d.Path), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && name != ReportFile {
			names = append(names, name)
		}
		return err
	})
	return names, rig.Wrap("report", err)
}
