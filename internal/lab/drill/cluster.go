package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
)

const (
	clusterNodes = 3

	clusterPeriod = 200 * time.Millisecond
	// noticedBound is for a cluster to miss a node that is silent: three checks of 10 s, and then
	// some on a busy machine.
	noticedBound = 2 * time.Minute
	missingHold  = 5 * time.Second // with a node less
)

// sighting is what a cluster said of itself from that time on.
type sighting struct {
	At time.Time `json:"at"`
	rig.Cluster
}

// onCluster is a drill in which a pair carries events into an index of three shards with a replica
// each, on three nodes, while a fault hits those. Settles may pause for as long as pause.
func onCluster(s Scenario, pause time.Duration, fault func(*run), more func(*judge)) Scenario {
	s.Params, s.instances = loadParams(), quickPair()
	s.Shows = "every event done under one term, in order per entity, both stores equal, and a longest pause of settles of " + pause.String() + "; " + s.Shows
	s.Minutes, s.Slow, s.Owned, s.nodes, s.bound = true, true, true, clusterNodes, 15*time.Minute
	if s.runbooks == nil {
		s.runbooks = []string{"elasticsearch-down"}
	}
	s.run = func(r *run) {
		r.Must(r.injection(faults.NodeSIGKILL, nil).AwaitGreen(r.Ctx))
		stop := r.watchCluster()
		defer stop() // also where the script ends before
		r.underFault(false, func(r *run, _ *failure) { fault(r) }, func() {})
		r.probe("cluster", stop())
	}
	s.verify = func(j *judge) {
		j.loaded()
		j.sound("", "")
		j.counted("terms", "history", len(j.history().Terms), 1)
		longest, at := j.history().LongestPause(time.Time{}, time.Time{})
		since := at.Sub(verdict.Probed[failure](j.Judge, "failure").Fault.At).Round(time.Millisecond)
		j.Check("longest pause of settles", verdict.ProbeFile("history"),
			fmt.Sprintf("%v, %v after the fault", longest.Round(time.Millisecond), since), "at most "+pause.String(), longest <= pause)
		more(j)
	}
	return s
}

// watchCluster notes when the cluster gains or loses a node or a master.
func (r *run) watchCluster() (stop func() []sighting) {
	var seen []sighting
	end := rig.During(r.Ctx, func(ctx context.Context) {
		for rig.Sleep(ctx, clusterPeriod) == nil {
			now, err := r.Cluster(ctx)
			if err != nil || len(seen) > 0 && now.Master == seen[len(seen)-1].Master && slices.Equal(now.Nodes, seen[len(seen)-1].Nodes) {
				continue
			}
			seen = append(seen, sighting{time.Now().UTC(), now})
			r.step("the cluster: %v, master %s", now.Nodes, now.Master)
		}
	})
	return func() []sighting {
		end()
		return seen
	}
}

// breakNode injects a fault into the node of that number, holds it, and heals it.
func (r *run) breakNode(what, fault string, node int, hold func()) {
	i := r.injection(fault, nil)
	i.Variant = node
	if !r.inject(what, i.Inject, i.Heal) {
		return
	}
	if i.Note != "" {
		r.step("it was%s", i.Note[1:])
	}
	hold()
	r.step("taking it back")
	r.heal()
}

// node returns the number of a node that is the elected master, or is not.
func (r *run) node(master bool) int {
	c := rig.Try(r.Cluster(r.Ctx)).Must(r)
	for n, node := range r.Servers.ElasticNodes() {
		if (node.NodeName() == c.Master) == master {
			return n
		}
	}
	return 0
}

// missed waits until the cluster misses a node, and until weft works on for a while.
func (r *run) missed() {
	r.Must(rig.Await(r.Ctx, noticedBound, clusterPeriod, "cluster with a node less", func(ctx context.Context) error {
		c, err := r.Cluster(ctx)
		return rig.Want(err, len(c.Nodes) != clusterNodes && c.Master != "", "it has %v", c.Nodes)
	}))
	r.Must(r.Settles(r.Ctx, 0))
	r.Pause(missingHold)
}

// sightings are those of the probe.
func (j *judge) sightings() []sighting { return verdict.Probed[[]sighting](j.Judge, "cluster") }

// missedNodes asserts how many nodes the cluster has missed, at some time, and when it missed the
// first.
func (j *judge) missedNodes(n int) {
	var all, missed []string
	var noticed time.Time
	for _, s := range j.sightings() {
		for _, known := range all {
			if !slices.Contains(s.Nodes, known) && !slices.Contains(missed, known) {
				missed = append(missed, known)
			}
		}
		if len(missed) > 0 && noticed.IsZero() {
			noticed = s.At
		}
		all = append(all, s.Nodes...)
	}
	j.counted("nodes that the cluster missed", "cluster", len(missed), n)
	seen, took := "never", noticed.Sub(verdict.Probed[failure](j.Judge, "failure").Fault.At)
	if !noticed.IsZero() {
		seen = took.Round(time.Millisecond).String()
	}
	j.Check("from the fault until it missed the first", verdict.ProbeFile("cluster"), seen, "at most "+noticedBound.String(), seen != "never" && took <= noticedBound)
}

func clusterFaults() []Scenario {
	oneMissed := func(j *judge) { j.missedNodes(1) }
	return []Scenario{
		onCluster(Scenario{
			Name:  "elastic_node_killed",
			About: "a node of Elasticsearch that is not the master is killed while events come, and started again",
			Shows: "the other nodes taking the writes",
		}, 30*time.Second, func(r *run) {
			r.breakNode("SIGKILL of a node", faults.NodeSIGKILL, r.node(false), r.missed)
		}, oneMissed),
		onCluster(Scenario{
			Name:  "elastic_master_killed",
			About: "the elected master of Elasticsearch is killed while events come, and started again",
			Shows: "another master",
		}, 30*time.Second, func(r *run) {
			r.breakNode("SIGKILL of the master", faults.MasterSIGKILL, 0, r.missed)
		}, func(j *judge) {
			j.missedNodes(1)
			masters := rig.Map(j.sightings(), func(s sighting) string { return s.Master })
			slices.Sort(masters)
			j.atLeast("masters in the course of it", "cluster", len(slices.Compact(masters)), 2)
		}),
		onCluster(Scenario{
			Name:  "elastic_node_frozen",
			About: "a node of Elasticsearch is frozen (SIGSTOP) until the cluster misses it, and wakes up",
			Shows: "requests repeated on other nodes, and nothing that the frozen one does later",
		}, 90*time.Second, func(r *run) {
			r.breakNode("SIGSTOP of a node", faults.NodeSIGSTOP, r.node(false), r.missed)
		}, oneMissed),
		onCluster(Scenario{
			Name:  "elastic_rolling_restart",
			About: "all nodes of Elasticsearch are stopped in order and started again, one after the other, as for an upgrade",
			Shows: "every node missed for a while",
		}, 30*time.Second, func(r *run) {
			r.breakNode("a restart of each node", faults.RollingRestart, 0, func() {})
		}, func(j *judge) { j.missedNodes(clusterNodes) }),
		onCluster(Scenario{
			Name: "elastic_node_cut_off", cut: true,
			About: "no byte passes between the elected master and the other nodes any more, and weft still reaches all (root only)",
			Shows: "another master, and a node alone that refuses writes",
		}, 120*time.Second, func(r *run) {
			cut := r.node(true)
			r.breakNode("a cut between the master and the other nodes", faults.NodeCutOff, cut, func() {
				r.missed()
				r.probe("minority", r.refusal(r.Servers.URL(r.Servers.ElasticNodes()[cut])))
			})
		}, func(j *judge) {
			j.missedNodes(1)
			j.counted("the answer of the node alone to a write", "minority", verdict.Probed[refusal](j.Judge, "minority").Status, http.StatusServiceUnavailable)
		}),
		onCluster(Scenario{
			Name:  "elastic_wait_for_active_shards",
			About: "index.write.wait_for_active_shards is 2 and a node is killed, so that some shards have one copy; then the node is started",
			Shows: "retries of what no shard takes, and all of it done when the copies are back",
		}, 3*time.Minute, func(r *run) {
			r.breakNode("writes want two copies, and SIGKILL of a node", faults.TooFewCopies, r.node(false), func() {
				r.awaitMetric(1, "outbox_retry_scheduled_total")
			})
		}, func(j *judge) {
			j.missedNodes(1)
			j.Grew("outbox_retry_scheduled_total")
			j.GrewBy(0, "outbox_failed_total")
		}),
		onCluster(Scenario{
			Name: "elastic_shard_moved", runbooks: []string{"lag-growing"},
			About: "a primary shard moves to another node while events come",
			Shows: "the shard there",
		}, 10*time.Second, func(r *run) {
			r.probe("before", r.copies())
			r.breakNode("a move of a primary shard", faults.ShardMoved, 0, func() { r.probe("after", r.copies()) })
		}, func(j *judge) {
			before := verdict.Probed[[]rig.Copy](j.Judge, "before")
			moved := count(verdict.Probed[[]rig.Copy](j.Judge, "after"), func(c rig.Copy) bool {
				return !slices.ContainsFunc(before, func(b rig.Copy) bool { return b.Shard == c.Shard && b.Node == c.Node })
			})
			j.atLeast("copies of shards that are on another node", "after", moved, 1)
			j.GrewBy(0, "outbox_failed_total")
		}),
		onCluster(Scenario{
			Name: "elastic_disk_watermark", runbooks: []string{"throttled"},
			About: "the watermarks are set so that all disks are above the flood stage, and Elasticsearch blocks the index; then there is room",
			Shows: "retries with es_429, readiness that says that a disk is full, no dead letter, and all of it done when the block is lifted",
		}, 3*time.Minute, func(r *run) {
			r.breakNode("disks above the flood stage", faults.DiskWatermark, 0, func() {
				r.awaitReadiness(r.Member("a"), http.StatusServiceUnavailable, "ready_full")
			})
		}, func(j *judge) {
			j.ready("while the disks were full, readiness", "ready_full", http.StatusServiceUnavailable)
			j.Grew("outbox_retry_scheduled_total", "reason=es_429")
			j.GrewBy(0, "outbox_failed_total")
		}),
	}
}

func (r *run) copies() []rig.Copy { return rig.Try(r.Copies(r.Ctx, r.Index+"-v1")).Must(r) }

// refusal is an answer to a write.
type refusal struct {
	Status int    `json:"status"`
	Error  string `json:"error"`
}

// refusal waits until a node refuses to write a document.
func (r *run) refusal(node string) (last refusal) {
	client := rig.Try(reconcile.NewClient(node)).Must(r)
	defer client.Close()
	r.await("refusal of "+node, func(ctx context.Context) error {
		err := client.Do(ctx, http.MethodPut, "/"+url.PathEscape(r.Index)+"/_doc/of-the-drill?timeout=1s&version=1&version_type=external", map[string]any{}, nil)
		status, ok := errors.AsType[*reconcile.StatusError](err)
		if !ok || status.Code == http.StatusConflict { // it had taken the document before it missed the others
			return fmt.Errorf("it answered otherwise: %w", err)
		}
		last = refusal{status.Code, status.Body}
		return nil
	})
	return last
}
