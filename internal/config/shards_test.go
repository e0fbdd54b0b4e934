package config_test

import (
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/config"
)

func TestShards(t *testing.T) {
	t.Parallel()
	environ := []string{"DATABASE_URL=postgres://a@h/d"}
	if c, err := config.Load(config.Options{Environ: environ}); err != nil || c.Shards.Count != 1 || c.Shards.Prefix != "shard_" {
		t.Errorf("default: got %+v, %v, want one shard", c.Shards, err)
	}
	environ = append(environ, "WEFT_SHARDS=4")
	if c, err := config.Load(config.Options{Environ: environ}); err != nil || c.Shards.Count != 4 {
		t.Errorf("got %+v, %v, want 4 shards", c.Shards, err)
	}
	for setting, want := range map[string]string{
		"WEFT_SHARDS=0":                                 "out of range: want 1 to 64",
		"WEFT_SHARDS_PREFIX=Shard-":                     "want small letters, digits and underscores",
		"WEFT_SHARDS_PREFIX=1_":                         "no digit first",
		"WEFT_GROUP=" + strings.Repeat("g", 111):        "with several shards want at most 110 characters",
		"WEFT_SHARDS_PREFIX=" + strings.Repeat("x", 41): "at most 40",
	} {
		if _, err := config.Load(config.Options{Environ: append(environ, setting)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", setting, err, want)
		}
	}
	c := config.Default()
	c.Database.URL, c.Shards.Count, c.Registered, c.Projections = "postgres://a@h/d", 2, []string{"mine"}, []string{"mine"}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "projection mine has an outbox that is not dealt out") {
		t.Errorf("a projection of the application: got %v, want a refusal", err)
	}
}
