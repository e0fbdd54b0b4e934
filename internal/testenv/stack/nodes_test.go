package stack

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestNodesKnowEachOther(t *testing.T) {
	t.Parallel()
	var nodes []*elastic
	for n := range 3 {
		nodes = append(nodes, &elastic{name: ElasticNode(n + 1).NodeName(), host: loopback, transportHost: loopback, instance: instance{port: 9200 + n}, transport: 9300 + n})
	}
	alone := nodes[0].settings()
	if !strings.Contains(alone, "discovery.type: single-node\n") || strings.Contains(alone, "seed_hosts") {
		t.Errorf("settings of a node that is alone:\n%s", alone)
	}
	for n, e := range nodes {
		e.peers = nodes
		for _, want := range []string{
			`discovery.seed_hosts: ["127.0.0.1:9300", "127.0.0.1:9301", "127.0.0.1:9302"]`, "cluster.initial_master_nodes: [weft, weft2, weft3]",
			"node.name: " + []string{"weft", "weft2", "weft3"}[n], "node.store.allow_mmap: false",
		} {
			if got := strings.Split(e.settings(), "\n"); !slices.Contains(got, want) {
				t.Errorf("node %d: got the settings\n%s\nwithout %q", n, strings.Join(got, "\n"), want)
			}
		}
	}
	if got := ElasticNode(3).number(); got != 2 || Postgres.number() != -1 || ElasticNode(3).title() != "node 3 of Elasticsearch" {
		t.Errorf("got node %d (%s), and %d for PostgreSQL", got, ElasticNode(3).title(), Postgres.number())
	}
}

// A stack that has lost one of its nodes is not whole.
func TestStateNamesAllNodes(t *testing.T) {
	t.Parallel()
	me, gone := identify(os.Getpid()), ProcessID{PID: os.Getpid(), Start: 1}
	state := &State{Guardian: me, Elastic: &RunningServer{URL: "http://a", Process: me}, ElasticOthers: []*RunningServer{{URL: "http://b", Process: me}}}
	if got := state.ElasticURL(); got != "http://a,http://b" || !state.whole() {
		t.Errorf("got %s, whole %v, want both addresses of what is whole", got, state.whole())
	}
	state.ElasticOthers[0].Process = gone
	if state.whole() {
		t.Error("a node is gone: got that the stack is whole")
	}
}
