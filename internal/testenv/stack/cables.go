package stack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"

	"github.com/samuelhu324-dev/weft/internal/testenv/process"
)

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
