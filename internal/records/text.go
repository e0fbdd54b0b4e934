package records

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/samuelhu324-dev/weft/outbox"
)

// Plain puts a text from the database on one line, without characters that control a terminal or
// the direction of writing.
func Plain(s string) string {
	return Inert(outbox.OneLine(s, math.MaxInt))
}

// Cell is [Inert] for a text on one line, where a line feed or a tab would begin something else. Unlike
// [Plain] it keeps two names that differ in such characters apart.
func Cell(s string) string {
	return strings.NewReplacer("\n", `\u{a}`, "\t", `\u{9}`).Replace(Inert(s))
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
	return Dash(Inert(outbox.OneLine(s, 60)))
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

// Counted returns one, a text, where n is 1, or else the format with n in it.
func Counted[N int | int64 | float64](n N, one, many string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf(many, n)
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

// JSON writes v as JSON for people and programs. Characters that control a terminal or the direction of
// writing are escaped, which changes no text.
func JSON(w io.Writer, v any) error {
	var plain, b strings.Builder
	enc := json.NewEncoder(&plain)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	for _, c := range plain.String() {
		if c < 0x7f || !unicode.Is(unicode.Cc, c) && !unicode.Is(unicode.Cf, c) {
			b.WriteRune(c)
			continue
		}
		for _, unit := range utf16.Encode([]rune{c}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ShellWord quotes a word for a shell, unless it is plain. What is not seen is written as the numbers of its bytes,
// which bash, zsh and ksh read.
func ShellWord(word string) string {
	plain := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("-_.:/@", r)
	}
	switch {
	case Plain(word) != word:
		var b strings.Builder
		for _, c := range []byte(word) {
			if c > ' ' && c < 0x7f && c != '\'' && c != '\\' {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		}
		return "$'" + b.String() + "'"
	case word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0:
		return word
	default:
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
}

// UTC returns t in UTC; nil stays nil.
func UTC(t *time.Time) *time.Time { return unlessNil(t, time.Time.UTC) }
