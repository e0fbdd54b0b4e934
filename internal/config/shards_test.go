package config_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// The environment and a file give the same addresses, and show no password.
func TestShardServers(t *testing.T) {
	t.Parallel()
	const three, five = "postgres://a:secret3@h1:5432,h2:5433/d?sslmode=disable", "postgresql+psycopg://h3/d"
	environ := []string{"DATABASE_URL=postgres://a@h/d", "WEFT_SHARDS=8", "DATABASE_PASSWORD=secret5"}
	file := filepath.Join(t.TempDir(), "weft.yaml")
	if err := os.WriteFile(file, []byte("shards:\n  servers:\n    5: "+five+"\n    3: "+three+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]config.Options{
		"environment": {Environ: append(slices.Clone(environ), "WEFT_SHARD_SERVERS=5="+five+", 3="+three)},
		"file":        {Environ: environ, File: file},
	} {
		c, err := config.Load(o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(c.Shards.Servers) != 2 || c.Shards.Servers[3] != three || c.Shards.Servers[5] != five+"?password=secret5" {
			t.Errorf("%s: got %d addresses, %q and %q", name, len(c.Shards.Servers), c.Shards.Servers[3].Reveal(), c.Shards.Servers[5].Reveal())
		}
		if got := c.Secrets(); !slices.Contains(got, "secret3") || !slices.Contains(got, "secret5") {
			t.Errorf("%s: got %q, want the passwords among the secrets", name, got)
		}
		const shown = "3=postgres://a:*****@h1:5432,h2:5433/d?sslmode=disable,5=postgresql+psycopg://h3/d?password=*****"
		if all := c.Effective(); !slices.ContainsFunc(all, func(v config.Value) bool { return v.Key == "shards.servers" && v.Value == shown }) {
			t.Errorf("%s: got %v, want %s", name, all, shown)
		}
		if asJSON, err := json.Marshal(c.Shards); err != nil || strings.Contains(string(asJSON)+fmt.Sprintf("%v %+v", c.Shards, c.Shards), "secret") {
			t.Errorf("%s: got %s, %v, with a password", name, asJSON, err)
		}
	}
	for text, want := range map[string]string{
		"postgres://a:secret@h/d":     "want NUMBER=URL pairs separated by commas",
		"three=postgres://:secret@h":  "want NUMBER=URL pairs separated by commas",
		"3=mysql://a:secret@h/d":      "shard 3: not a Postgres URL",
		"64=postgres://a:secret@h/d":  "shard 64: want 0 to 63",
		"8=postgres://a:secret@h/d":   "shard 8: there are 8, counted from 0",
		"3=" + three + ",3=" + three:  "shard 3 is named twice",
		"3=postgres://a:secret@h/bad": "shard 3: value \"postgres://a:*****@h/bad\": no such thing",
	} {
		_, err := config.Load(config.Options{Environ: append(slices.Clone(environ), "WEFT_SHARD_SERVERS="+text), CheckDatabaseURL: func(url string) error {
			if strings.HasSuffix(url, "/bad") {
				return fmt.Errorf("no such thing")
			}
			return nil
		}})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want %q, and no password", text, err, want)
		}
	}
}
