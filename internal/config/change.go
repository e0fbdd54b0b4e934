package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Changed returns the keys of the settings that are different in next, in table order; "projections" also
// for a changed declaration. A setting that neither was given does not count: each Load makes a new name for
// the instance, for example.
func (c Config) Changed(next Config) (keys []string) {
	for _, s := range table() {
		if s.get(&c) != s.get(&next) && (c.Given(s.key) || next.Given(s.key)) {
			keys = append(keys, s.key)
		}
	}
	if !reflect.DeepEqual(c.Declared, next.Declared) && !slices.Contains(keys, "projections") {
		keys = append(keys, "projections")
	}
	return keys
}

// Given reports whether the file, the environment or a flag sets key. A value derived from another does not count.
func (c Config) Given(key string) bool {
	src := c.sources[key]
	return src != "" && !strings.HasPrefix(src, derived)
}

// With returns c with the settings of keys as they are in next.
func (c Config) With(next Config, keys ...string) Config {
	c.sources = maps.Clone(c.sources)
	for _, s := range table() {
		if !slices.Contains(keys, s.key) {
			continue
		}
		// What get writes, set reads; both configurations have passed Validate.
		_ = s.set(&c, s.get(&next))
		c.sources[s.key] = next.sources[s.key]
	}
	return c
}
