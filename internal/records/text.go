package records

import (
	"math"
	"strconv"
	"time"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Plain puts a text from the database on one line, without characters that control a terminal.
func Plain(s string) string {
	return outbox.OneLine(s, math.MaxInt)
}

// Short is plain, cut to 60 characters so that a table fits.
func Short(s string) string {
	return Dash(outbox.OneLine(s, 60))
}

// Span writes a number of seconds with about three digits.
func Span(seconds float64) string {
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

// Clock writes a time, or a dash for none.
func Clock(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.RFC3339)
}

// Dash returns s, or a dash when it is empty.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// UTC returns t in UTC; nil stays nil.
func UTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}
