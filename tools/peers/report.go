package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// report is what a run has found.
type report struct {
	Date             string    `json:"date"`
	CPUs             int       `json:"cpus"`
	LoadBefore       string    `json:"load_before"`
	LoadAfter        string    `json:"load_after"`
	Postgres         string    `json:"postgres"`
	PostgresSettings []string  `json:"postgres_settings"`
	Elastic          string    `json:"elasticsearch"`
	Rows             int       `json:"rows"`
	Peers            []figures `json:"peers"`
}

// figures are those of one peer. Reason says why some or all are missing.
type figures struct {
	Name         string      `json:"name"`
	Version      string      `json:"version"`
	Settings     []string    `json:"settings,omitempty"`
	Load         string      `json:"load,omitempty"` // before it
	Reason       string      `json:"reason,omitempty"`
	Wrote        string      `json:"wrote,omitempty"`
	SettledMeans string      `json:"settled_means,omitempty"`
	Standby      string      `json:"standby,omitempty"`
	Backlog      *backlog    `json:"backlog,omitempty"`
	Takeovers    []takeovers `json:"takeovers,omitempty"`
}

// takeovers are those after one fault.
type takeovers struct {
	Fault string    `json:"fault"`
	Note  string    `json:"note,omitempty"`
	First []float64 `json:"first_seconds,omitempty"`
	All   []float64 `json:"all_seconds,omitempty"`
	Wrong int       `json:"wrong_documents"`
}

func (t *takeovers) add(one takeover) {
	t.First = append(t.First, one.First)
	if one.All > 0 {
		t.All = append(t.All, one.All)
	}
	t.Wrong += one.Wrong.total()
}

// print prints the settings and a table.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%s, %d CPUs, load average %s before and %s after\nPostgreSQL %s: %s\nElasticsearch %s, all defaults\n\n",
		r.Date, r.CPUs, r.LoadBefore, r.LoadAfter, r.Postgres, strings.Join(r.PostgresSettings, " "), r.Elastic)
	for _, p := range r.Peers {
		fmt.Fprintf(w, "%s %s (load average %s)\n", p.Name, p.Version, cmp.Or(p.Load, "-"))
		for _, s := range p.Settings {
			fmt.Fprintf(w, "    %s\n", s)
		}
	}
	fmt.Fprintf(w, "\n%d rows; takeovers: seconds, least, median and most\n", r.Rows)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "peer\tsearchable\tsettled\twrong\tkill -9: first\tall\tSIGSTOP: first\tall\twrong after")
	for _, p := range r.Peers {
		fmt.Fprintln(table, strings.Join(p.cells(), "\t"))
	}
	_ = table.Flush()
	for _, p := range r.Peers {
		for _, t := range p.Takeovers {
			if t.Note != "" {
				fmt.Fprintf(w, "%s, %s: %s\n", p.Name, t.Fault, t.Note)
			}
		}
		if p.Reason != "" {
			fmt.Fprintf(w, "%s: not measured: %s\n", p.Name, p.Reason)
		}
		if p.Backlog != nil && p.Backlog.Wrong.total() > 0 {
			fmt.Fprintf(w, "%s: wrong documents, such as: %s\n", p.Name, p.Backlog.Wrong.Example)
		}
	}
}

// cells returns a peer's line of the table.
func (f figures) cells() []string {
	line := []string{f.Name, "-", "-", "-"}
	if b := f.Backlog; b != nil {
		line = []string{f.Name, fmt.Sprintf("%.1f s", b.Searchable), fmt.Sprintf("%.1f s", b.Settled), fmt.Sprint(b.Wrong.total())}
	}
	after := 0
	for _, fault := range faults() {
		n := slices.IndexFunc(f.Takeovers, func(t takeovers) bool { return t.Fault == fault.name })
		if n < 0 {
			line = append(line, "-", "-")
			continue
		}
		line = append(line, spread(f.Takeovers[n].First), spread(f.Takeovers[n].All))
		after += f.Takeovers[n].Wrong
	}
	if len(f.Takeovers) == 0 || f.Backlog == nil {
		return append(line, "-")
	}
	return append(line, fmt.Sprint(after))
}

// spread returns the least, the median and the most.
func spread(seconds []float64) string {
	if len(seconds) == 0 {
		return "-"
	}
	s := slices.Sorted(slices.Values(seconds))
	if len(s) == 1 {
		return fmt.Sprintf("%.1f", s[0])
	}
	return fmt.Sprintf("%.1f %.1f %.1f", s[0], s[len(s)/2], s[len(s)-1])
}

// withoutHosts returns an error's text without the addresses of registries.
func withoutHosts(err error) string {
	if err == nil {
		return "it can be fetched now, and this command does not know how to run it"
	}
	return regexp.MustCompile(`https?://[^/\s:]+`).ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), "REGISTRY")
}

// loadAverage returns that of the last minute.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
