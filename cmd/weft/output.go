package main

import (
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// show prints v as JSON, or by table for a person.
func (a *app) show(asJSON bool, v any, table func(io.Writer) error) error {
	if asJSON {
		return a.json(v)
	}
	return table(a.stdout)
}

func (a *app) json(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// plain puts a text from the database on one line, without characters that control a terminal.
func plain(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}

// short is plain, cut to 60 characters so that a table fits.
func short(s string) string {
	const most = 60
	r := []rune(plain(s))
	if len(r) == 0 {
		return "-"
	}
	if len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return string(r)
}

// span writes a number of seconds with about three digits.
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	default:
		return strconv.Itoa(int(d/(24*time.Hour))) + "d"
	}
}

func clock(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.RFC3339)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}
