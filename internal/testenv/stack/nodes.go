package stack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
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

// CutOff lets no byte pass between a node of Elasticsearch and the others until
// [Stack.Reconnect]; clients reach it as before. It takes [Options.Cables].
func (s *Stack) CutOff(ctx context.Context, node Server) error {
	return s.ask(ctx, request{Op: opCutOff, Server: node})
}

// Reconnect ends [Stack.CutOff].
func (s *Stack) Reconnect(ctx context.Context, node Server) error {
	return s.ask(ctx, request{Op: opReconnect, Server: node})
}

func (o *Options) checkNodes() error {
	several := o.ElasticNodes > 1
	switch {
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

// cables give each node of a cluster a network namespace with two connections: one to this
// machine, for clients, and one to a switch, for the other nodes, which can be pulled out. They
// vanish with the guardian and the servers.
type cables struct {
	hub    *process.Network // of the switch
	nodes  []*process.Network
	name   string // of the interfaces on this machine, without the number
	prefix string // of their addresses: three bytes
}

// CanCutOff reports whether servers can have [Options.Cables] here.
func CanCutOff() bool {
	_, err := exec.LookPath("ip")
	return err == nil && os.Geteuid() == 0
}

// layCables connects so many nodes.
func layCables(nodes int) (*cables, error) {
	c := &cables{name: strings.Replace(clusterName(), "weft-", "wl", 1)[:10], prefix: freePrefix()}
	var err error
	if c.hub, err = process.NewNetwork(); err != nil {
		return nil, err
	}
	err = c.configure(c.hub, "link add name switch0 type bridge", "link set switch0 up")
	for n := range nodes {
		var network *process.Network
		if err == nil {
			network, err = process.NewNetwork()
		}
		if err != nil {
			break
		}
		c.nodes = append(c.nodes, network)
		err = errors.Join(
			c.configure(c.hub, fmt.Sprintf("link add name node%d type veth peer name others0 netns %s", n, network.Path())),
			c.plug(n, true),
			c.configure(nil,
				fmt.Sprintf("link add name %s%d type veth peer name clients0 netns %s", c.name, n, network.Path()),
				fmt.Sprintf("addr add %s.%d/30 dev %s%d", c.prefix, 4*n+1, c.name, n),
				fmt.Sprintf("link set %s%d up", c.name, n)),
			c.configure(network,
				"link set lo up", "addr del 127.0.0.1/8 dev lo", "addr add 127.0.0.1/32 dev lo",
				"addr add "+otherNodesAddress(n)+"/24 dev others0", "link set others0 up",
				"addr add "+c.clientAddress(n)+"/30 dev clients0", "link set clients0 up"),
			// A server that listens beyond loopback addresses insists on limits of the system that
			// only an administrator can raise.
			process.Run(network, "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1"),
		)
	}
	if err != nil {
		return nil, fmt.Errorf("cables between the nodes: %w", err)
	}
	return c, nil
}

// freePrefix is of the addresses for tests of networks (RFC 2544), and none of this machine has it.
func freePrefix() string {
	for {
		prefix := fmt.Sprintf("198.%d.%d", 18+rand.IntN(2), rand.IntN(256))
		taken := false
		addresses, _ := net.InterfaceAddrs()
		for _, a := range addresses {
			taken = taken || strings.HasPrefix(a.String(), prefix+".")
		}
		if !taken {
			return prefix
		}
	}
}

// clientAddress is where a node is reached from this machine.
func (c *cables) clientAddress(node int) string { return fmt.Sprintf("%s.%d", c.prefix, 4*node+2) }

// otherNodesAddress is where a node is reached by the others.
func otherNodesAddress(node int) string { return fmt.Sprintf("127.77.0.%d", node+1) }

// plug puts the cable of a node into the switch, or pulls it out: then no byte passes between it
// and the others, and no connection ends.
func (c *cables) plug(node int, in bool) error {
	if in {
		return c.configure(c.hub, fmt.Sprintf("link set node%d master switch0 up", node))
	}
	return c.configure(c.hub, fmt.Sprintf("link set node%d nomaster", node))
}

func (c *cables) configure(in *process.Network, commands ...string) error {
	for _, command := range commands {
		if err := process.Run(in, append([]string{"ip"}, strings.Fields(command)...)...); err != nil {
			return err
		}
	}
	return nil
}
