package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// show prints v as JSON, or by table for a person.
func (a *app) show(v any, table func(io.Writer) error) error {
	if a.asJSON {
		return a.json(v)
	}
	return table(a.stdout)
}

func (a *app) json(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// table prints rows of cells as aligned columns, once it is flushed.
type table struct{ *tabwriter.Writer }

func newTable(w io.Writer, head ...any) table {
	t := table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	if len(head) > 0 {
		t.row(head...)
	}
	return t
}

func (t table) row(cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t, "\t")
		}
		fmt.Fprint(t, c)
	}
	fmt.Fprintln(t)
}

// writePairs prints names and what they have.
func writePairs(w io.Writer, pairs [][2]string) error {
	t := newTable(w)
	for _, p := range pairs {
		t.row(p[0], p[1])
	}
	return t.Flush()
}
