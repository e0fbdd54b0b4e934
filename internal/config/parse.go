package config

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Each parse function returns the value, or an error that says what is wanted and
// does not repeat the value.

func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "true", "1", "yes", "on":
		return true, nil
	case "false", "0", "no", "off":
		return false, nil
	}
	return false, errors.New("want true or false")
}

func parseInt(s string, lo, hi int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("want a whole number from %d to %d", lo, hi)
	}
	if n < lo || n > hi {
		return 0, fmt.Errorf("out of range: want %d to %d", lo, hi)
	}
	return n, nil
}

func parseDuration(s string, lo, hi time.Duration) (time.Duration, error) {
	d, err := ParseAge(s)
	if err != nil {
		if _, ferr := strconv.ParseFloat(s, 64); ferr == nil {
			return 0, fmt.Errorf("the unit is missing: want a duration such as %ss or %sms", s, s)
		}
		return 0, errors.New("want a duration such as 500ms, 30s or 5m")
	}
	return d, inRange(d, lo, hi)
}

// ParseAge is [time.ParseDuration] that also reads whole days, as in 30d.
func ParseAge(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * day, err
	}
	return time.ParseDuration(s)
}

// parseSeconds reads the OUTBOX_*_SECONDS names: plain seconds, with a fraction.
func parseSeconds(s string, lo, hi time.Duration) (time.Duration, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, errors.New("want seconds as a plain number such as 30 or 0.5")
	}
	if math.Abs(f) > float64(math.MaxInt64/int64(time.Second)) {
		return 0, outOfRange(lo, hi)
	}
	d := time.Duration(math.Round(f * float64(time.Second)))
	return d, inRange(d, lo, hi)
}

func inRange(d, lo, hi time.Duration) error {
	if d < lo || d > hi {
		return outOfRange(lo, hi)
	}
	return nil
}

func outOfRange(lo, hi time.Duration) error {
	return fmt.Errorf("out of range: want %s to %s", short(lo), short(hi))
}

// short writes a duration without its zero parts: 5m, not 5m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

var sizeUnits = []struct {
	suffix string
	factor int
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1},
}

func parseSize(s string, lo, hi int) (int, error) {
	num, factor := s, 1
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			num, factor = strings.TrimSpace(rest), u.factor
			break
		}
	}
	n, err := strconv.Atoi(num)
	if err != nil {
		return 0, errors.New("want a size such as 5MiB, 500kB or a number of bytes")
	}
	if n < 0 || n > hi/factor || n*factor < lo {
		return 0, fmt.Errorf("out of range: want %s to %s", formatSize(lo), formatSize(hi))
	}
	return n * factor, nil
}

func formatSize(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.Itoa(n>>20) + "MiB"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.Itoa(n>>10) + "KiB"
	default:
		return strconv.Itoa(n) + "B"
	}
}

func parseOneOf(s string, allowed ...string) (string, error) {
	if slices.Contains(allowed, s) {
		return s, nil
	}
	return "", fmt.Errorf("want one of %s%s", strings.Join(allowed, ", "), suggest(s, allowed))
}

func parseEnvironment(s string) (string, error) {
	switch strings.ToLower(s) {
	case "":
		return "", nil
	case "dev", "development":
		return "dev", nil
	case "test", "testing":
		return "test", nil
	case "sandbox":
		return "sandbox", nil
	}
	return "", errors.New("want dev, test or sandbox")
}

// maxName is the width of the columns of names, in characters.
const maxName = 120

// parseName reads the names that become part of application_name and of columns
// of 120 characters.
func parseName(s string) (string, error) {
	if s == "" {
		return "", errors.New("must not be empty")
	}
	if len([]rune(s)) > maxName {
		return "", errors.New("too long: at most 120 characters")
	}
	for _, r := range s {
		if r == '/' || unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return "", errors.New("must not hold spaces, slashes or control characters")
		}
	}
	return s, nil
}

// parseGroup keeps group names short of what application_name mangles.
func parseGroup(s string) (string, error) {
	if strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII }) {
		return "", errors.New("must be ASCII")
	}
	return parseName(s)
}

// shardsPrefix needs no quotes in SQL, and leaves room for a number in a name of 63 bytes.
var shardsPrefix = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)

func parseShardsPrefix(s string) (string, error) {
	if !shardsPrefix.MatchString(s) {
		return "", errors.New("want small letters, digits and underscores, at most 40, and no digit first")
	}
	return s, nil
}

// parseFinished reads one of keep, archive and delete for all projections, or pairs of a
// projection and one of them. It returns pairs in the order of the projections' names.
func parseFinished(s string, projections []string) (string, error) {
	values := []string{finishedKeep, "archive", "delete"}
	if !strings.ContainsAny(s, "=,") {
		return parseOneOf(strings.ToLower(s), values...)
	}
	of := map[string]string{}
	for pair := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		name = strings.TrimSpace(name)
		if !ok {
			return "", fmt.Errorf("want one of %s, or PROJECTION=VALUE pairs separated by commas", strings.Join(values, ", "))
		}
		if _, err := parseOneOf(name, projections...); err != nil {
			return "", fmt.Errorf("unknown projection %q: %w", name, err)
		}
		if of[name] != "" {
			return "", fmt.Errorf("%s is named twice", name)
		}
		v, err := parseOneOf(strings.ToLower(strings.TrimSpace(value)), values...)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		of[name] = v
	}
	var pairs []string
	for _, name := range projections {
		if v := of[name]; v != "" {
			pairs = append(pairs, name+"="+v)
		}
	}
	return strings.Join(pairs, ","), nil
}

func parseList(s string, allowed []string) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		if _, err := parseOneOf(part, allowed...); err != nil {
			return nil, fmt.Errorf("unknown name %q: %w", part, err)
		}
		if slices.Contains(out, part) {
			return nil, fmt.Errorf("%s is named twice", part)
		}
		out = append(out, part)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("want at least one of %s", strings.Join(allowed, ", "))
	}
	return out, nil
}
