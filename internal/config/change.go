package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Changed returns the keys of the settings that are different in next, in table order.
// A setting that neither has been given does not count: each Load may make its default anew.
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

// Given reports whether some layer sets key.
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
