package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"golang.org/x/term"

	"github.com/samuelhu324-dev/weft/internal/records"
)

// show prints v as JSON, or by table for a person.
func (a *app) show(v any, table func(io.Writer) error) error {
	if a.asJSON {
		return a.json(v)
	}
	return table(a.stdout)
}

func (a *app) json(v any) error { return records.JSON(a.stdout, v) }

// checked keeps the first error of a writer, for all who print without looking at one.
type checked struct {
	io.Writer
	err error
}

// Write implements io.Writer.
func (c *checked) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	if c.err == nil {
		c.err = err
	}
	return n, err
}

// table prints rows of cells as aligned columns, once it is flushed. A text in a cell is inert.
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
		fmt.Fprint(t, records.Cell(fmt.Sprint(c)))
	}
	fmt.Fprintln(t)
}

// short returns a text for a cell: on one line, and cut where a person reads the table on a terminal. A program gets the whole
// text to search.
func short(w io.Writer, text string) string {
	if c, ok := w.(*checked); ok {
		w = c.Writer
	}
	if out, ok := w.(*os.File); ok && term.IsTerminal(int(out.Fd())) {
		return records.Short(text)
	}
	return records.Dash(records.Plain(text))
}

// writePairs prints names and what they have.
func writePairs(w io.Writer, pairs [][2]string) error {
	t := newTable(w)
	for _, p := range pairs {
		t.row(p[0], p[1])
	}
	return t.Flush()
}

// beyond returns how many to read so that cut knows whether there are more than limit. The largest number has none beyond it.
func beyond(limit int) int { return max(limit, limit+1) }

// cut returns the first of all, of which beyond(limit) were read, and what says below a table that there are more.
func cut[T any](all []T, limit int) ([]T, func(io.Writer) error) {
	if len(all) <= limit {
		return all, func(io.Writer) error { return nil }
	}
	return all[:limit], func(w io.Writer) error {
		_, err := fmt.Fprintln(w, "and older ones; a higher --limit lists them")
		return err
	}
}
