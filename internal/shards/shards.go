package shards

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// Schema returns the name of the schema of shard n.
func Schema(cfg config.Config, n int) string { return cfg.Shards.Prefix + strconv.Itoa(n) }

// Group returns the leader group of shard n.
func Group(cfg config.Config, n int) string { return fmt.Sprintf("%s-shard-%d", cfg.Group, n) }

// Server returns the address of the database that shard n is in.
func Server(cfg config.Config, n int) config.URL {
	if url, elsewhere := cfg.Shards.Servers[n]; elsewhere {
		return url
	}
	return cfg.Database.URL
}

// Config returns the settings of shard n: cfg's, on its server, on its schema, in its group, as the only one,
// with an index of its own where shards have one.
// With one shard it is cfg.
func Config(cfg config.Config, n int) (config.Config, error) {
	if cfg.Shards.Count <= 1 {
		return cfg, nil
	}
	url, err := postgres.InSchema(Server(cfg, n).Reveal(), Schema(cfg, n))
	if err != nil {
		return cfg, err
	}
	_, cfg.Shards.Away = cfg.Shards.Servers[n]
	cfg.Group, cfg.Database.URL, cfg.Shards.Of, cfg.Shards.Count, cfg.Shards.Servers = Group(cfg, n), config.URL(url), cfg.Shards.Count, 1, nil
	cfg.Desk.Listen = nextPort(cfg.Desk.Listen, n)
	if cfg.Shards.Indexes == config.IndexesOwn {
		cfg.Elastic.SearchAlias, cfg.Elastic.Index = cfg.Elastic.Index, elastic.IndexOfShard(cfg.Elastic.Index, n)
	}
	return cfg, nil
}

// Remedy returns the words about a fault of the shard whose settings cfg has, which name DATABASE_URL, with the
// setting that has the address of this shard.
func Remedy(cfg config.Config, words string) string {
	if cfg.Shards.Away {
		return strings.ReplaceAll(words, "DATABASE_URL", "WEFT_SHARD_SERVERS")
	}
	return words
}

// nextPort returns the address of a page n ports further; a free port stays one.
func nextPort(address string, n int) string {
	host, port, err := net.SplitHostPort(address)
	first, perr := strconv.Atoi(port)
	if err != nil || perr != nil || first == 0 {
		return address
	}
	return net.JoinHostPort(host, strconv.Itoa(first+n))
}
