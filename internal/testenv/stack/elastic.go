package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

const (
	elasticBound = 5 * time.Minute // a tenth of it on an idle machine
	loopback     = "127.0.0.1"
)

// elastic is one node; start and stop may be repeated and keep data and ports.
type elastic struct {
	instance // its directory holds config, data, logs, repo (of snapshots) and tmp; its process is the launcher, parent of the server
	cluster  string

	name                string
	host, transportHost string
	peers               []*elastic       // of the cluster, itself among them; nil for one that is alone
	network             *process.Network // nil: the guardian's

	transport int
	attached  string // what the JVM leaves in /tmp when it is killed
}

func (e *elastic) url() string {
	scheme := "http"
	if e.Secured != nil {
		scheme = "https"
	}
	return fmt.Sprintf("%s://%s:%d", scheme, e.host, e.port)
}

func (e *elastic) at(name string) string { return filepath.Join(e.dir, name) }

func (e *elastic) prepare() error {
	for _, name := range []string{"config", "config/jvm.options.d", "data", "logs", "repo", "tmp"} {
		if err := os.Mkdir(e.at(name), 0o700); err != nil {
			return err
		}
		if err := e.Account.own(e.at(name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"jvm.options", "log4j2.properties"} {
		content, err := os.ReadFile(filepath.Join(e.ElasticHome, "config", name))
		if err != nil {
			return err
		}
		if err := e.config(name, withoutGCLog(string(content))); err != nil {
			return err
		}
	}
	if e.port != 0 { // of a cluster
		if err := e.config(e.program()+".yml", e.settings()); err != nil {
			return err
		}
	}
	if e.Secured != nil {
		for name, content := range e.Secured.Files {
			if err := e.config(name, content); err != nil {
				return err
			}
		}
	}
	return nil
}

// gcLog is that option, with the versions of Java before it that it is for, as OpenSearch has it.
var gcLog = regexp.MustCompile(`^(\d+(-\d*)?:)?-Xlog:gc`)

// withoutGCLog drops the option that keeps up to 2 GB of garbage collection logs.
func withoutGCLog(options string) string {
	var kept strings.Builder
	for line := range strings.Lines(options) {
		if !gcLog.MatchString(line) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

func (e *elastic) config(name, content string) error {
	return e.write(filepath.Join(e.at("config"), name), []byte(content))
}

func (e *elastic) settings() string {
	return strings.Join(append(append(e.securitySettings(), e.clusterSettings()...),
		"cluster.name: "+e.cluster,
		"node.name: "+e.name,
		"http.host: "+e.host,
		"transport.host: "+e.transportHost,
		fmt.Sprintf("http.port: %d", e.port),
		fmt.Sprintf("transport.port: %d", e.transport),
		"path.data: "+e.at("data"),
		"path.repo: "+e.at("repo"),
		"path.logs: "+e.at("logs"),
		"action.auto_create_index: false",
		"cluster.routing.allocation.disk.threshold_enabled: false",
		"",
	), "\n")
}

// program is the name of what is started, and of its settings.
func (e *elastic) program() string {
	if e.OpenSearch {
		return "opensearch"
	}
	return "elasticsearch"
}

// variable is what the names of its environment begin with.
func (e *elastic) variable() string {
	if e.OpenSearch {
		return "OPENSEARCH_"
	}
	return "ES_"
}

// start returns when the server answers, or with the reason why it does not.
func (e *elastic) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, elasticBound, fmt.Errorf("elasticsearch %w within %v", process.ErrTimeout, elasticBound))
	defer cancel()
	first := e.port == 0
	var err error
	e.process, err = process.StartReady(ctx, func() (process.Server, error) {
		if first {
			if err := errors.Join(e.choosePorts(), e.config(e.program()+".yml", e.settings())); err != nil {
				return process.Server{}, err
			}
		}
		return e.server(), nil
	}, e.ready, func(try int, reason string) bool {
		taken := first && (strings.Contains(reason, "BindException") || strings.Contains(reason, "Failed to bind"))
		// A JVM that had the same process id, and was killed, has left its file in /tmp.
		return try < portAttempts && (taken || strings.Contains(reason, "Unable to attach entitlement agent"))
	})
	if err != nil {
		return explainDisk(err, e.dir)
	}
	// The server attaches to itself. HotSpot keeps the file in /tmp, whatever its
	// java.io.tmpdir is.
	e.attached = fmt.Sprintf("/tmp/.java_pid%d", e.pid())
	return nil
}

func (e *elastic) choosePorts() error { return process.FreePorts(&e.port, &e.transport) }

func (e *elastic) server() process.Server {
	options := fmt.Sprintf("-Xms%dm -Xmx%dm -XX:-UsePerfData", e.HeapMB, e.HeapMB)
	if e.Quick {
		options += " -XX:TieredStopAtLevel=1 -XX:-AlwaysPreTouch"
	}
	return process.Server{
		Name: "elasticsearch", Dir: e.dir, Log: filepath.Join(e.dir, serverLog), Argv: []string{filepath.Join(e.ElasticHome, "bin", e.program())},
		Env: []string{
			e.variable() + "JAVA_HOME=" + e.JavaHome,
			e.variable() + "PATH_CONF=" + e.at("config"),
			e.variable() + "TMPDIR=" + e.at("tmp"),
			e.variable() + "JAVA_OPTS=" + options,
			// Of the launcher, which runs for a second and would leave files in the system's
			// directory for temporary ones.
			"CLI_JAVA_OPTS=-XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.io.tmpdir=" + e.at("tmp"),
		},
		As: e.Account.credential(), OnEnd: e.onEnd, In: e.network,
		DeathSignal: syscall.SIGKILL, // the server ends by itself when its launcher is gone
	}
}

func (e *elastic) ready(ctx context.Context) error {
	cluster, err := e.health(ctx)
	if err == nil && cluster != e.cluster {
		err = errAnother
	}
	return err
}

// clusterHealth returns the name of the cluster of which one node, of those at urls, answers. This
// build of the server has no GET /. trust is the authority of their certificates, if they have some.
func clusterHealth(ctx context.Context, urls string, trust []byte) (cluster string, err error) {
	es, err := reconcile.NewClient(urls)
	if err != nil {
		return "", err
	}
	defer es.Close()
	if trust != nil {
		es.HTTP = trusting(trust)
	}
	var health struct {
		Cluster string `json:"cluster_name"`
	}
	if err := es.Do(ctx, http.MethodGet, "/_cluster/health", nil, &health); err != nil {
		return "", fmt.Errorf("GET /_cluster/health: %w", err)
	}
	if health.Cluster == "" {
		return "", errors.New("GET /_cluster/health: not the answer of an Elasticsearch")
	}
	return health.Cluster, nil
}

// pid is that of the JVM that serves, not of the one that launched it.
func (e *elastic) pid() int {
	if below := process.Descendants(e.process.PID()); len(below) > 0 {
		return below[0]
	}
	return e.process.PID()
}

func (e *elastic) stop() { e.end(process.Step{Signal: syscall.SIGTERM, Wait: 20 * time.Second}) }
func (e *elastic) kill() { e.end() }
func (e *elastic) quit() { e.end() }

func (e *elastic) end(steps ...process.Step) {
	e.instance.end(steps...)
	if e.attached != "" {
		_ = os.Remove(e.attached)
		e.attached = ""
	}
}

const maxElasticNodes = 9

// ElasticNode names a node of a cluster, from 1; the first is [Elastic].
func ElasticNode(n int) Server {
	if n == 1 {
		return Elastic
	}
	return Elastic + Server(strconv.Itoa(n))
}

// number returns the index of a node of Elasticsearch, or -1 for another server.
func (s Server) number() int {
	for n := range maxElasticNodes {
		if s == ElasticNode(n+1) {
			return n
		}
	}
	return -1
}

// NodeName is what a node calls itself.
func (s Server) NodeName() string { return strings.Replace(string(s), string(Elastic), "weft", 1) }

// ElasticNodes are the nodes of Elasticsearch that were started here.
func (s *Stack) ElasticNodes() (nodes []Server) {
	for n := 1; s.URL(ElasticNode(n)) != ""; n++ {
		nodes = append(nodes, ElasticNode(n))
	}
	return nodes
}

// Cabled reports whether nodes can be cut off.
func (s *Stack) Cabled() bool { return s.cabled }

// check refuses what does not go together.
func (o *Options) check() error {
	several := o.ElasticNodes > 1
	switch {
	case o.HeapMB < minHeapMB:
		return fmt.Errorf("elasticsearch heap: %d MB is less than %d", o.HeapMB, minHeapMB)
	case o.Replication != NoReplica && o.DatabaseURL != "":
		return errors.New("replica: DATABASE_URL is set, and only a PostgreSQL that is started here can have one")
	case o.Secured && (o.Replication != NoReplica || o.DatabaseURL != "" || o.ElasticURL != ""):
		return errors.New("secured servers: only both together can be, started here and without a replica")
	case o.Secured && o.OpenSearchVersion != "":
		return errors.New("secured servers: this build of OpenSearch has no security")
	case o.ElasticNodes < 0 || o.ElasticNodes > maxElasticNodes:
		return fmt.Errorf("nodes of Elasticsearch: %d is no number from 1 to %d", o.ElasticNodes, maxElasticNodes)
	case several && o.ElasticURL != "":
		return errors.New("nodes of Elasticsearch: ELASTIC_URL is set, and only nodes that are started here make a cluster")
	case several && o.Secured:
		return errors.New("nodes of Elasticsearch: a secured one runs alone here")
	case o.Cables && (!several || !CanCutOff()):
		return errors.New("nodes of Elasticsearch: cutting them off takes several nodes, root and the command ip")
	}
	return nil
}

// newElastic makes the nodes, without starting them.
func (g *guardian) newElastic() (nodes []*elastic, err error) {
	cluster := clusterName()
	for n := range max(g.spec.ElasticNodes, 1) {
		server := ElasticNode(n + 1)
		common, err := g.instance(server)
		if err != nil {
			return nil, err
		}
		e := &elastic{instance: common, cluster: cluster, name: server.NodeName(), host: loopback, transportHost: loopback}
		g.servers[server] = e
		nodes = append(nodes, e)
	}
	if len(nodes) == 1 {
		return nodes, nil
	}
	if g.spec.Cables {
		if g.cables, err = layCables(len(nodes)); err != nil {
			return nil, err
		}
		for n, e := range nodes {
			e.host, e.transportHost, e.network = g.cables.clientAddress(n), otherNodesAddress(n), g.cables.nodes[n]
		}
	}
	for _, e := range nodes {
		if err := e.choosePorts(); err != nil {
			return nil, err
		}
		e.peers = nodes
	}
	return nodes, nil
}

// clusterSettings let the nodes find each other.
func (e *elastic) clusterSettings() []string {
	if len(e.peers) == 0 {
		return []string{
			"discovery.type: single-node",
			"cluster.info.update.interval: 1d", // at each look at its disks it would take off the blocks that tests and faults set
		}
	}
	var hosts, names []string
	for _, p := range e.peers {
		hosts = append(hosts, fmt.Sprintf(`"%s:%d"`, p.transportHost, p.transport))
		names = append(names, p.name)
	}
	managers := "cluster.initial_master_nodes"
	if e.OpenSearch {
		managers = "cluster.initial_cluster_manager_nodes"
	}
	return []string{
		"discovery.seed_hosts: [" + strings.Join(hosts, ", ") + "]",
		managers + ": [" + strings.Join(names, ", ") + "]",
		"cluster.info.update.interval: 10s", // how often it looks at its disks, where it does; the shortest
		"node.store.allow_mmap: false",      // a number of maps that only an administrator can raise
	}
}
