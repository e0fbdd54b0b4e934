package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// Names of faults of a cluster of Elasticsearch that programs ask for. Params.Variant says which
// node it is, from 0, where chance or the caller chooses.
const (
	NodeSIGKILL    = "node-sigkill"
	MasterSIGKILL  = "master-sigkill"
	NodeSIGSTOP    = "node-sigstop"
	NodeCutOff     = "node-cut-off"
	RollingRestart = "rolling-restart"
	TooFewCopies   = "too-few-copies"
	ShardMoved     = "shard-moved"
	DiskWatermark  = "disk-watermark"
)

const (
	greenTimeout = 3 * time.Minute // for all copies of all shards, on a busy machine
	greenPeriod  = 200 * time.Millisecond
	movedTimeout = time.Minute

	wantedCopies = "index.write.wait_for_active_shards" // copies of a shard that a write needs to begin; one by default
)

func nodes() []Fault {
	signal := func(sig syscall.Signal) func(context.Context, *Injection) error {
		return func(_ context.Context, i *Injection) error {
			i.At = time.Now()
			return syscall.Kill(i.Servers.PID(i.node), sig)
		}
	}
	kill := func(ctx context.Context, i *Injection) error { return i.Servers.KillServer(ctx, i.node) }
	start := func(ctx context.Context, i *Injection) error { return i.Servers.StartServer(ctx, i.node) }
	return []Fault{
		onNode(NodeSIGKILL, "a node of the cluster is killed, and started again", 2, 15*second, chosen, kill, start),
		onNode(MasterSIGKILL, "the elected master of the cluster is killed, and started again", 1, 15*second, master, kill, start),
		onNode(NodeSIGSTOP, "a node of the cluster is frozen, and wakes up", 1, 50*second, chosen, signal(syscall.SIGSTOP), signal(syscall.SIGCONT)),
		onNode("node-restart", "a node of the cluster is stopped in order, and started again", 1, 5*second, chosen,
			func(ctx context.Context, i *Injection) error { return i.Servers.StopServer(ctx, i.node) }, start),
		onNode(NodeCutOff, "no byte passes between a node of the cluster and the others, and no connection ends", 1, 50*second, chosen,
			func(ctx context.Context, i *Injection) error {
				if !i.Servers.Cabled() {
					return Never("the nodes have no networks of their own, which take root")
				}
				return i.Servers.CutOff(ctx, i.node)
			},
			func(ctx context.Context, i *Injection) error { return i.Servers.Reconnect(ctx, i.node) }),
		onNode(TooFewCopies, "writes want two copies of a shard, and a node with copies is killed", 0, 0, chosen,
			func(ctx context.Context, i *Injection) error {
				return errors.Join(i.set(ctx, wantedCopies, 2), kill(ctx, i))
			},
			func(ctx context.Context, i *Injection) error {
				return errors.Join(start(ctx, i), i.set(ctx, wantedCopies, nil))
			}),
		onNode(ShardMoved, "a primary shard of the index moves to another node", 1, 0, chosen, moveShard,
			func(context.Context, *Injection) error { return nil }),
		onNode(RollingRestart, "all nodes of the cluster are restarted, one after the other", 0, 0, chosen, restartAll,
			func(ctx context.Context, i *Injection) error { return i.startNodes(ctx) }),
		onNode(DiskWatermark, "the disks of all nodes are above the flood stage, as the cluster sees it", 0, 0, chosen,
			func(ctx context.Context, i *Injection) error { return i.fill(ctx, "1000tb", true) },
			func(ctx context.Context, i *Injection) error {
				return errors.Join(i.fill(ctx, "1mb", false), i.watermark(ctx, nil))
			}),
	}
}

// onNode breaks one node of a cluster whose shards all have their copies, and waits for that again
// when it has healed it. It lasts up to longest.
func onNode(name, about string, share int, longest time.Duration, which func(context.Context, *Injection) error, breaks, mends func(context.Context, *Injection) error) Fault {
	return Fault{
		Name: name, About: about, Share: share, Where: Nodes,
		Draw: func(d *Dice, p *Params) { p.Variant, p.Hold = d.IntN(9), d.Between(longest/5, longest) },
		Available: func(_ context.Context, i *Injection) error {
			if i.Servers == nil || len(i.Servers.ElasticNodes()) < 2 {
				return Never("no cluster of Elasticsearch was started here")
			}
			return nil
		},
		Inject: func(ctx context.Context, i *Injection) error {
			err := i.AwaitGreen(ctx)
			if err == nil {
				i.index, err = i.InUse(ctx)
			}
			if err = errors.Join(err, which(ctx, i)); err != nil {
				return err
			}
			i.Note = ", " + i.node.NodeName()
			i.At = time.Now()
			return breaks(ctx, i)
		},
		Heal: func(ctx context.Context, i *Injection) error {
			if i.node == "" {
				return nil
			}
			return errors.Join(mends(ctx, i), i.AwaitGreen(ctx))
		},
	}
}

// chosen takes the node that the variant says.
func chosen(_ context.Context, i *Injection) error {
	all := i.Servers.ElasticNodes()
	i.node = all[i.Variant%len(all)]
	return nil
}

// master takes the elected one.
func master(ctx context.Context, i *Injection) error {
	state, err := i.Place.Cluster(ctx)
	if err != nil {
		return fmt.Errorf("look for the master: %w", err)
	}
	all := i.Servers.ElasticNodes()
	n := slices.IndexFunc(all, func(s stack.Server) bool { return s.NodeName() == state.Master })
	if n < 0 {
		return fmt.Errorf("the master %q is no node of this run", state.Master)
	}
	i.node = all[n]
	return nil
}

// AwaitGreen waits until all nodes are there and all shards of weft's index have all their copies.
func (i *Injection) AwaitGreen(ctx context.Context) error {
	path := fmt.Sprintf("/_cluster/health/%s?wait_for_status=green&wait_for_no_relocating_shards=true&wait_for_nodes=%d&timeout=1s",
		url.PathEscape(i.Index), len(i.Servers.ElasticNodes()))
	return rig.Await(ctx, greenTimeout, greenPeriod, "whole cluster with a green index", func(ctx context.Context) error {
		return i.Elastic.Do(ctx, http.MethodGet, path, nil, nil)
	})
}

// moveShard moves a primary to the node without a copy of it, and waits until it is there.
func moveShard(ctx context.Context, i *Injection) error {
	copies, err := i.Copies(ctx, i.index)
	if err != nil {
		return err
	}
	from := slices.IndexFunc(copies, func(c rig.Copy) bool { return c.Primary && c.Node == i.node.NodeName() })
	if from < 0 {
		from = slices.IndexFunc(copies, func(c rig.Copy) bool { return c.Primary })
	}
	shard, to := copies[from], ""
	for _, node := range i.Servers.ElasticNodes() {
		if !slices.ContainsFunc(copies, func(c rig.Copy) bool { return c.Shard == shard.Shard && c.Node == node.NodeName() }) {
			to = node.NodeName()
		}
	}
	if to == "" {
		return Never("every node has a copy of the shard")
	}
	move := map[string]any{"index": i.index, "shard": shard.Number(), "from_node": shard.Node, "to_node": to}
	if err := i.Ask(ctx, "move shard", http.MethodPost, "/_cluster/reroute", map[string]any{"commands": []any{map[string]any{"move": move}}}, nil); err != nil {
		return err
	}
	i.Note = fmt.Sprintf(", shard %s from %s to %s", shard.Shard, shard.Node, to)
	return rig.Await(ctx, movedTimeout, greenPeriod, "move of the shard", func(ctx context.Context) error {
		now, err := i.Copies(ctx, i.index)
		if err == nil && !slices.ContainsFunc(now, func(c rig.Copy) bool { return c.Shard == shard.Shard && c.Node == to && c.State == "STARTED" }) {
			err = fmt.Errorf("it is not on %s", to)
		}
		return err
	})
}

// restartAll stops each node in order and starts it, and goes on to the next when all copies are
// there.
func restartAll(ctx context.Context, i *Injection) error {
	for _, node := range i.Servers.ElasticNodes() {
		err := i.Servers.StopServer(ctx, node)
		if err == nil {
			err = i.Servers.StartServer(ctx, node)
		}
		if err == nil {
			err = i.AwaitGreen(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// startNodes starts the nodes that do not run.
func (i *Injection) startNodes(ctx context.Context) error {
	var errs []error
	for _, node := range i.Servers.ElasticNodes() {
		errs = append(errs, i.Servers.StartServer(ctx, node))
	}
	return errors.Join(errs...)
}

// watermark makes the cluster look at its disks, of which so much has to be free; nil restores
// the defaults of the stack, which does not look.
func (i *Injection) watermark(ctx context.Context, free any) error {
	const disk = "cluster.routing.allocation.disk."
	var enabled any
	if free != nil {
		enabled = true
	}
	return i.Ask(ctx, "set watermarks", http.MethodPut, "/_cluster/settings", map[string]any{"persistent": map[string]any{
		disk + "threshold_enabled": enabled,
		disk + "watermark.low":     free, disk + "watermark.high": free, disk + "watermark.flood_stage": free,
	}}, nil)
}

// fill wants so much of the disks to be free, and waits until the cluster has seen it and has blocked
// the index, or has lifted its block.
func (i *Injection) fill(ctx context.Context, free string, want bool) error {
	if err := i.watermark(ctx, free); err != nil {
		return err
	}
	return rig.Await(ctx, greenTimeout, greenPeriod, "change of the block", func(ctx context.Context) error {
		blocked, err := i.Blocked(ctx, i.index)
		if err == nil && blocked != want {
			err = fmt.Errorf("blocked is %v", blocked)
		}
		return err
	})
}
