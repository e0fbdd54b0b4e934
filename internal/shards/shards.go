package shards

import (
	"fmt"
	"net"
	"strconv"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
)

// Schema returns the name of the schema of shard n.
func Schema(cfg config.Config, n int) string { return cfg.Shards.Prefix + strconv.Itoa(n) }

// Group returns the leader group of shard n.
func Group(cfg config.Config, n int) string { return fmt.Sprintf("%s-shard-%d", cfg.Group, n) }

// Config returns the settings of shard n: those of cfg, on its schema, in its group, as the only one.
// With one shard it is cfg.
func Config(cfg config.Config, n int) (config.Config, error) {
	if cfg.Shards.Count <= 1 {
		return cfg, nil
	}
	url, err := postgres.InSchema(cfg.Database.URL.Reveal(), Schema(cfg, n))
	if err != nil {
		return cfg, err
	}
	cfg.Group, cfg.Database.URL, cfg.Shards.Count = Group(cfg, n), config.URL(url), 1
	cfg.Desk.Listen = nextPort(cfg.Desk.Listen, n)
	return cfg, nil
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
