package patroni

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

type object = map[string]any

// writeConfig writes the host's patroni.yml, as JSON, which is YAML.
func (h *Host) writeConfig(file string) error {
	var etcds []string
	for _, other := range h.cluster.hosts {
		etcds = append(etcds, other.address(other.ports.client))
	}
	content, err := json.MarshalIndent(object{
		"scope": "weft", "name": h.Name,
		"restapi": object{"listen": h.address(h.ports.api), "connect_address": h.address(h.ports.api)},
		"etcd3":   object{"hosts": etcds},
		"bootstrap": object{
			"dcs":    h.cluster.dynamic(),
			"initdb": []any{object{"encoding": "UTF8"}, object{"locale": "C.UTF-8"}, "data-checksums"},
		},
		"postgresql": object{
			"listen": h.address(h.ports.postgres), "connect_address": h.address(h.ports.postgres),
			"data_dir": filepath.Join(h.dir, "data"), "bin_dir": h.cluster.tools.postgres, "pgpass": filepath.Join(h.dir, "pgpass"),
			"authentication": object{"superuser": object{"username": "postgres"}, "replication": object{"username": "replicator"}},
			"parameters":     object{"unix_socket_directories": h.dir},
			"pg_hba":         []string{"local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}

// dynamic is the configuration that the members share, as Patroni's documentation advises. What
// Patroni holds for its own is off unless it is here: the record of a run needs times of commits.
func (c *Cluster) dynamic() object {
	dcs := object{
		"ttl": 30, "loop_wait": 10, "retry_timeout": 10, "maximum_lag_on_failover": 1 << 20, "synchronous_mode": c.opts.Synchronous,
		"postgresql": object{"use_pg_rewind": true, "use_slots": true, "parameters": object{
			"max_connections": 100, "wal_keep_size": "256MB", "log_min_messages": "log", "track_commit_timestamp": "on",
		}},
	}
	if c.opts.Quick {
		dcs["ttl"], dcs["loop_wait"], dcs["retry_timeout"] = 20, 1, 3
	}
	return dcs
}

// startHAProxy asks each Patroni each second whether it is the primary. Patroni's example asks
// every three seconds and wants three answers.
func (c *Cluster) startHAProxy() error {
	if err := process.FreePorts(&c.front); err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, `global
    maxconn 500
defaults
    mode tcp
    retries 0
    timeout connect 2s
    timeout client 30m
    timeout server 30m
    timeout check 1s
listen primary
    bind 127.0.0.1:%d
    option httpchk OPTIONS /primary
    http-check expect status 200
    option clitcpka
    option srvtcpka
    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
`, c.front)
	for _, h := range c.hosts {
		fmt.Fprintf(&text, "    server %s %s check port %d\n", h.Name, h.address(h.ports.postgres), h.ports.api)
	}
	file := filepath.Join(c.dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		return err
	}
	var err error
	c.haproxy, err = c.start(nil, "haproxy", c.tools.haproxy, "-db", "-f", file)
	return err
}
