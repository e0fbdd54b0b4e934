package rig

import (
	"strings"
	"testing"
)

func TestEven(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		leaders, names string // one letter each; a capital for one that has released its term
		want           string // empty: no error
	}{
		"Equal":        {"aabb", "ab", ""},
		"OneMore":      {"aab", "ab", ""},
		"MoreThanThat": {"ab", "abc", ""},
		"TwoMore":      {"aaab", "ab", "one instance leads 3 shards, and another 1"},
		"OneHasCome":   {"aabb", "abc", "one instance leads 2 shards, and another 0"},
		"Vacant":       {"aaBb", "ab", "shard 2: nobody leads"},
		"OfOneThatWas": {"aacb", "ab", "shard 2: c leads (epoch 1)"},
		"NoInstances":  {"aa", "", "no instance is there"},
	} {
		var leaders []Leadership
		for _, l := range strings.Split(tc.leaders, "") {
			leaders = append(leaders, Leadership{Epoch: 1, Instance: strings.ToLower(l), Released: l != strings.ToLower(l)})
		}
		err := even(leaders, strings.Split(tc.names, "")[:len(tc.names)])
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
