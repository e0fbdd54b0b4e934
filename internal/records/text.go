package records

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Plain puts a text from the database on one line, without characters that control a terminal.
func Plain(s string) string {
	return outbox.OneLine(s, math.MaxInt)
}

// Inert replaces characters that control a terminal or the direction of writing with their
// number, so that a text cannot disguise what it is.
func Inert(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c == '\n' || c == '\t':
			b.WriteRune(c)
		case unicode.Is(unicode.Cc, c) || unicode.Is(unicode.Cf, c) || c == '\u2028' || c == '\u2029' || c == unicode.ReplacementChar:
			fmt.Fprintf(&b, "\\u{%x}", c)
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
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
