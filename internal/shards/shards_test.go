package shards_test

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/shards"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load(config.Options{Environ: []string{"DATABASE_URL=postgres://a:b@h/d?sslmode=disable"}})
	if err != nil {
		t.Fatal(err)
	}
	if one, err := shards.Config(cfg, 0); err != nil || one.Group != cfg.Group || one.Database.URL != cfg.Database.URL {
		t.Errorf("without shards: got group %q on %s, %v, want the settings as they are", one.Group, one.Database.URL, err)
	}
	cfg.Shards.Count = 3
	one, err := shards.Config(cfg, 2)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := one.Database.URL.Reveal(), "postgres://a:b@h/d?search_path=shard_2&sslmode=disable"; got != want {
		t.Errorf("address: got %s, want %s", got, want)
	}
	if one.Group != "weft-shard-2" || one.Shards.Count != 1 || one.Desk.Listen != "127.0.0.1:9111" {
		t.Errorf("got group %q, %d shards, page at %s", one.Group, one.Shards.Count, one.Desk.Listen)
	}
	cfg.Shards.Servers = config.Servers{1: "postgres://other/e"}
	if one, err = shards.Config(cfg, 1); err != nil || one.Database.URL.Reveal() != "postgres://other/e?search_path=shard_1" || one.Group != "weft-shard-1" {
		t.Errorf("on another server: got %s, group %q, %v", one.Database.URL, one.Group, err)
	}
	if one.Elastic.Index != cfg.Elastic.Index || one.Elastic.SearchAlias != "" {
		t.Errorf("one index of all: got %q behind %q, want %q", one.Elastic.Index, one.Elastic.SearchAlias, cfg.Elastic.Index)
	}
	cfg.Shards.Indexes = config.IndexesOwn
	if one, err = shards.Config(cfg, 1); err != nil || one.Elastic.Index != cfg.Elastic.Index+"-shard-1" || one.Elastic.SearchAlias != cfg.Elastic.Index {
		t.Errorf("an index of its own: got %q behind %q, %v", one.Elastic.Index, one.Elastic.SearchAlias, err)
	}
	cfg.Desk.Listen = "127.0.0.1:0"
	if one, err = shards.Config(cfg, 2); err != nil || one.Desk.Listen != cfg.Desk.Listen {
		t.Errorf("page at a free port: got %s, %v", one.Desk.Listen, err)
	}
	if cfg.Group != "weft" {
		t.Errorf("the settings have changed: group %s", cfg.Group)
	}
}
