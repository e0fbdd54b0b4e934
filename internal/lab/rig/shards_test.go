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

// The group of a shard is that of all: who joins one is in the others, and leaves them, too.
func TestGroupOfAShardSharesItsMembers(t *testing.T) {
	t.Parallel()
	all := &Group{Place: &Place{Group: "g"}}
	shard := all.At(&Place{Group: "g-shard-1", Shard: "1"})
	m := &Member{Name: "a", group: all}
	all.members = append(all.members, m)
	if shard.Member("a") != m || shard.Place.Group != "g-shard-1" {
		t.Errorf("got %v in group %s, want the member of all in group g-shard-1", shard.Members(), shard.Place.Group)
	}
	if err := shard.Leave(m); err != nil || len(all.Members()) != 0 {
		t.Errorf("after it left: got %v (%v), want nobody", all.Members(), err)
	}
}
