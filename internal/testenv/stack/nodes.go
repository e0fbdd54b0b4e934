package stack

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

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
		return []string{"discovery.type: single-node"}
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
