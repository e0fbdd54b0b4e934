package patroni

import (
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
