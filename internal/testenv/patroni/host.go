package patroni

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

// Host has a Patroni, its PostgreSQL and an etcd.
type Host struct {
	Name string

	cluster *Cluster
	dir     string
	ports   struct{ postgres, api, client, peer int }
	api     *reconcile.Client // of its Patroni

	mu            sync.Mutex
	etcd, patroni *process.Process
}

func (c *Cluster) newHost(name string) (*Host, error) {
	h := &Host{Name: name, cluster: c}
	err := process.FreePorts(&h.ports.postgres, &h.ports.api, &h.ports.client, &h.ports.peer)
	if err != nil {
		return nil, err
	}
	if h.api, err = reconcile.NewClient("http://" + h.address(h.ports.api)); err != nil {
		return nil, err
	}
	h.api.HTTP.Timeout = restartTimeout
	h.dir, err = c.makeDir(c.dir, name+"-")
	return h, err
}

func (h *Host) address(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

func (h *Host) url(database string) string {
	return "postgres://postgres@" + h.address(h.ports.postgres) + "/" + database + "?sslmode=disable"
}

// URL is that of the host's PostgreSQL, whether it takes writes or not.
func (h *Host) URL() string { return h.url(databaseName) }

// StartEtcd starts the host's etcd, with the data that it had.
func (h *Host) StartEtcd() (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.etcd.Runs() {
		return nil
	}
	var peers []string
	for _, other := range h.cluster.hosts {
		peers = append(peers, other.Name+"=http://"+other.address(other.ports.peer))
	}
	client, peer := "http://"+h.address(h.ports.client), "http://"+h.address(h.ports.peer)
	h.etcd, err = h.cluster.start(h, "etcd", h.cluster.tools.etcd, "--name", h.Name, "--data-dir", filepath.Join(h.dir, "etcd"),
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", strings.Join(peers, ","), "--initial-cluster-token", "weft")
	return err
}

// StartPatroni starts the host's Patroni, which starts or adopts its PostgreSQL.
func (h *Host) StartPatroni() (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.patroni.Runs() {
		return nil
	}
	file := filepath.Join(h.dir, "patroni.yml")
	if err := h.writeConfig(file); err != nil {
		return err
	}
	h.patroni, err = h.cluster.start(h, "patroni", h.cluster.tools.patroni, file)
	return err
}

// Part is one or several of the programs of a host.
type Part int

// The parts.
const (
	Etcd Part = 1 << iota
	Patroni
	Postgres
)

// Signal sends sig to all processes of the parts, of Patroni first, so that it cannot act on
// the end of its PostgreSQL.
func (h *Host) Signal(parts Part, sig syscall.Signal) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var pids []int
	if parts&Patroni != 0 {
		pids = append(pids, h.patroni.PID())
	}
	if parts&Postgres != 0 {
		pids = append(pids, h.postgres()...)
	}
	if parts&Etcd != 0 {
		pids = append(pids, h.etcd.PID())
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal %v to %s: %w", sig, h.Name, err)
		}
	}
	return nil
}

// EtcdRuns reports whether the host's etcd does.
func (h *Host) EtcdRuns() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.etcd.Runs()
}

// postgres returns the postmaster and what it has started, in this order.
func (h *Host) postgres() []int {
	content, err := os.ReadFile(filepath.Join(h.dir, "data", "postmaster.pid"))
	if err != nil {
		return nil
	}
	first, _, _ := strings.Cut(string(content), "\n")
	postmaster, err := strconv.Atoi(first)
	if err != nil {
		return nil
	}
	return append([]int{postmaster}, process.Descendants(postmaster)...)
}

// close ends what runs on the host; its data are of no more use.
func (h *Host) close() error {
	h.api.Close()
	h.mu.Lock()
	patroni, etcd := h.patroni, h.etcd
	h.mu.Unlock()
	if patroni != nil {
		if err := h.Signal(Postgres|Patroni|Etcd, syscall.SIGCONT); err != nil {
			return err
		}
		patroni.Stop(process.Step{Signal: syscall.SIGTERM, Wait: stopGrace})
		if err := h.Signal(Postgres, syscall.SIGKILL); err != nil { // of a Patroni that was killed
			return err
		}
	}
	if etcd != nil {
		etcd.Stop(process.Step{Signal: syscall.SIGTERM, Wait: time.Second})
	}
	return nil
}

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
