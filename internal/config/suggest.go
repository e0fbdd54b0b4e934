package config

import (
	"cmp"
	"strings"
)

// suggest returns `; did you mean "x"?` for the nearest of names, or nothing when
// none is near.
func suggest(got string, names []string) string {
	if best := nearest(got, names); best != "" {
		return `; did you mean "` + best + `"?`
	}
	return ""
}

// unknown says of a name that it is no setting, and what to do about it.
func unknown(what, got string, names []string) string {
	return "unknown setting" + what + cmp.Or(suggest(got, names), "; take it away, or see docs/configuration.md for the names")
}

func nearest(got string, names []string) string {
	best, bestDist := "", 1+max(2, len(got)/4)
	for _, n := range names {
		d := distance(strings.ToLower(got), strings.ToLower(n))
		if d < bestDist && d < len(n) {
			best, bestDist = n, d
		}
	}
	if best != "" {
		return best
	}
	// A key given without its section, or with a wrong one.
	last := got[strings.LastIndex(got, ".")+1:]
	for _, n := range names {
		if last != "" && n[strings.LastIndex(n, ".")+1:] == last {
			return n
		}
	}
	return ""
}

// distance is the number of single edits, a swap of two neighbours among them,
// that turn a into b.
func distance(a, b string) int {
	const limit = 80 // a longer name is no typing error
	if len(a) > limit || len(b) > limit {
		return limit
	}
	var older []int
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
		older, prev = prev, row
	}
	return prev[len(b)]
}
