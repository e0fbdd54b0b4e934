package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// Names of faults that programs ask for.
const (
	PostgresRestartFast      = "postgres-restart-fast"
	PostgresRestartImmediate = "postgres-restart-immediate"
	PostgresSIGKILL          = "postgres-sigkill"
	ElasticSIGKILL           = "elastic-sigkill"
)

const (
	startTimeout = 3 * time.Minute // on a busy machine, with recovery
	probeTimeout = 2 * time.Second
	probePeriod  = 5 * time.Millisecond
)

func servers() []Fault {
	return []Fault{
		restart(PostgresRestartFast, "PostgreSQL is stopped and started", stack.Postgres, stack.StopServer, 1),
		restart(PostgresRestartImmediate, "PostgreSQL is stopped without a checkpoint and recovers", stack.Postgres, stack.StopServerImmediately, 1),
		restart(ElasticSIGKILL, "Elasticsearch is killed and started", stack.Elastic, stack.KillServer, 1),
		restart("elastic-restart", "Elasticsearch is stopped and started", stack.Elastic, stack.StopServer, 1),
	}
}

// restart stops a server in Inject and starts it in Heal, which notes when it took work.
func restart(name, about string, server stack.Server, stop stack.Operation, share int) Fault {
	return Fault{
		Name: name, About: about, Measure: Restarted, Share: share, Draw: lasts(0, 2*second), // between the stop and the start
		Crash: name == PostgresRestartImmediate || name == PostgresSIGKILL,
		Available: func(i *Injection) {
			if server == stack.Postgres && !i.Started.Postgres || server == stack.Elastic && !i.Started.Elastic {
				i.Must(Never("the servers are not of this run"))
			}
		},
		Inject: func(i *Injection) {
			if server == stack.Elastic {
				makeProbeIndex(i)
			}
			i.Must(i.Servers.Do(i.Ctx, stop, i.is(server)))
		},
		Heal: func(i *Injection) {
			started := make(chan error, 1)
			go func() { started <- i.Servers.Do(i.Ctx, stack.StartServer, i.is(server)) }()
			err := rig.Await(i.Ctx, startTimeout, probePeriod, "answer of "+string(server), func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, probeTimeout)
				defer cancel()
				if server == stack.Elastic {
					return probeElastic(ctx, i)
				}
				return stack.Answers(ctx, i.DatabaseURL)
			})
			i.Accepts = time.Now() // the server's clock is this machine's
			i.Must(errors.Join(err, <-started))
		},
	}
}

// is returns the server that stands for PostgreSQL now.
func (i *Injection) is(server stack.Server) stack.Server {
	if server == stack.Postgres && i.Primary != "" {
		return i.Primary
	}
	return server
}

// probeIndex is where it is tried whether Elasticsearch takes writes.
func probeIndex(i *Injection) string { return "/" + url.PathEscape(i.Index+"-probe") }

func makeProbeIndex(i *Injection) {
	names := rig.Try(i.Elastic.Indices(i.Ctx, i.Index+"-probe")).Must(i)
	if len(names) == 0 {
		i.Must(i.Ask(i.Ctx, "make an index to probe", http.MethodPut, probeIndex(i), map[string]any{"settings": map[string]any{"number_of_replicas": 0}}, nil))
	}
}

// probeElastic writes to an index of its own, and asks whether the primary shard of weft's has
// started.
func probeElastic(ctx context.Context, i *Injection) error {
	if err := i.Elastic.Do(ctx, http.MethodPut, probeIndex(i)+"/_doc/1?timeout=1s", map[string]any{"here": true}, nil); err != nil {
		return err
	}
	return i.Elastic.Do(ctx, http.MethodGet, "/_cluster/health/"+url.PathEscape(i.Index)+"?wait_for_status=yellow&timeout=1s", nil, nil)
}

// onDemand are faults that no schedule draws.
func onDemand() []Fault {
	return []Fault{
		restart(PostgresSIGKILL, "all processes of PostgreSQL are killed, and it is started", stack.Postgres, stack.KillServer, 0),
		{
			Name: "elastic-down", About: "every connection between an instance and Elasticsearch ends at once",
			Aimed: true, Draw: lasts(2*second, 6*second),
			Inject: func(i *Injection) { i.Must(i.Member.Elastic.Cut()) }, Heal: healLinks,
		},
	}
}

// LongSnapshot names the fault that lasts beside others.
const LongSnapshot = "long-snapshot"

const (
	strangerRows = 20
	strangerWait = 5 * time.Second // for rows to be there
)

func databases() []Fault {
	return []Fault{
		{
			Name: "stranger-lock", About: "somebody else holds row locks on pending events",
			Share: 1, Draw: lasts(second, 4*second), Inject: lockRows, Heal: disconnect,
		},
		{
			Name: LongSnapshot, About: "a snapshot stays open, up to ten minutes, while other faults go on",
			Share: 1, Lasting: true, Draw: func(_ *Dice, p *Params) { p.Hold = 10 * time.Minute },
			Inject: openSnapshot, Heal: disconnect,
		},
	}
}

func (i *Injection) connect() {
	ctx, cancel := context.WithTimeout(i.Ctx, rig.QueryTimeout)
	defer cancel()
	i.conn = rig.Try(pgx.Connect(ctx, i.DatabaseURL)).MustDo(i, "connect as a stranger")
}

// disconnect ends the session and with it its transaction.
func disconnect(i *Injection) {
	if i.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(i.Ctx, rig.QueryTimeout)
	defer cancel()
	_ = i.conn.Close(ctx) // a server that was restarted has ended it
	i.conn = nil
}

// lockRows locks pending events in a session that weft knows nothing of.
func lockRows(i *Injection) {
	i.connect()
	rig.Try(i.conn.Exec(i.Ctx, "begin")).MustDo(i, "begin as a stranger")
	for until := time.Now().Add(strangerWait); time.Now().Before(until); {
		tag := rig.Try(i.conn.Exec(i.Ctx, fmt.Sprintf(`select from %s where status = 'pending' limit %d for update skip locked`, i.Outbox, strangerRows))).MustDo(i, "lock as a stranger")
		if n := tag.RowsAffected(); n > 0 {
			i.Note, i.At = fmt.Sprintf(", %d rows", n), time.Now()
			return
		}
	}
	i.Must(Skip("no event was pending when it was looked"))
}

// openSnapshot keeps vacuum from everything that the transaction could see. A restart of the
// server ends it early.
func openSnapshot(i *Injection) {
	i.connect()
	ctx, cancel := context.WithTimeout(i.Ctx, rig.QueryTimeout)
	defer cancel()
	// The first query takes the snapshot. Without arguments both are one message.
	rig.Try(i.conn.Exec(ctx, "begin isolation level repeatable read; select count(*) from weft_leader")).MustDo(i, "open snapshot")
}

// Alive reports whether a lasting fault still goes on.
func (i *Injection) Alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	defer cancel()
	return i.conn != nil && i.conn.Ping(ctx) == nil && time.Since(i.At) < i.Hold
}

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
	signal := func(sig syscall.Signal) func(*Injection) {
		return func(i *Injection) {
			i.At = time.Now()
			i.Must(syscall.Kill(i.Servers.PID(i.node), sig))
		}
	}
	does := func(op stack.Operation) func(*Injection) {
		return func(i *Injection) { i.Must(i.Servers.Do(i.Ctx, op, i.node)) }
	}
	kill, start := does(stack.KillServer), does(stack.StartServer)
	return []Fault{
		onNode(NodeSIGKILL, "a node of the cluster is killed, and started again", 2, 15*second, chosen, kill, start),
		onNode(MasterSIGKILL, "the elected master of the cluster is killed, and started again", 1, 15*second, master, kill, start),
		onNode(NodeSIGSTOP, "a node of the cluster is frozen, and wakes up", 1, 50*second, chosen, signal(syscall.SIGSTOP), signal(syscall.SIGCONT)),
		onNode("node-restart", "a node of the cluster is stopped in order, and started again", 1, 5*second, chosen, does(stack.StopServer), start),
		onNode(NodeCutOff, "no byte passes between a node of the cluster and the others, and no connection ends", 1, 50*second, chosen,
			func(i *Injection) {
				if !i.Servers.Cabled() {
					i.Must(Never("the nodes have no networks of their own, which take root"))
				}
				does(stack.CutOff)(i)
			}, does(stack.Reconnect)),
		onNode(TooFewCopies, "writes want two copies of a shard, and a node with copies is killed", 0, 0, chosen,
			func(i *Injection) {
				i.set(wantedCopies, 2)
				kill(i)
			},
			func(i *Injection) {
				defer i.set(wantedCopies, nil)
				start(i)
			}),
		onNode(ShardMoved, "a primary shard of the index moves to another node", 1, 0, chosen, moveShard, func(*Injection) {}),
		onNode(RollingRestart, "all nodes of the cluster are restarted, one after the other", 0, 0, chosen, restartAll, startNodes),
		onNode(DiskWatermark, "the disks of all nodes are above the flood stage, as the cluster sees it", 0, 0, chosen,
			func(i *Injection) { i.fill("1000tb", true) },
			func(i *Injection) {
				defer i.watermark(nil)
				i.fill("1mb", false)
			}),
	}
}

// onNode breaks one node of a cluster whose shards all have their copies, and waits for that again
// when it has healed it. It lasts up to longest.
func onNode(name, about string, share int, longest time.Duration, which, breaks, mends func(*Injection)) Fault {
	return Fault{
		Name: name, About: about, Share: share, Where: Nodes,
		Draw: func(d *Dice, p *Params) { p.Variant, p.Hold = d.IntN(9), d.Between(longest/5, longest) },
		Available: func(i *Injection) {
			if i.Servers == nil || len(i.Servers.ElasticNodes()) < 2 {
				i.Must(Never("no cluster of Elasticsearch was started here"))
			}
		},
		Inject: func(i *Injection) {
			i.Must(i.AwaitGreen(i.Ctx))
			i.lookUpIndex()
			which(i)
			i.Note = ", " + i.node.NodeName()
			i.At = time.Now()
			breaks(i)
		},
		Heal: func(i *Injection) {
			if i.node != "" {
				mends(i)
				i.Must(i.AwaitGreen(i.Ctx))
			}
		},
	}
}

// chosen takes the node that the variant says.
func chosen(i *Injection) {
	all := i.Servers.ElasticNodes()
	i.node = all[i.Variant%len(all)]
}

// master takes the elected one.
func master(i *Injection) {
	state := rig.Try(i.Place.Cluster(i.Ctx)).MustDo(i, "look for the master")
	all := i.Servers.ElasticNodes()
	n := slices.IndexFunc(all, func(s stack.Server) bool { return s.NodeName() == state.Master })
	i.Expect(n >= 0, "the master %q is no node of this run", state.Master)
	i.node = all[n]
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
func moveShard(i *Injection) {
	copies := rig.Try(i.Copies(i.Ctx, i.index)).Must(i)
	from := slices.IndexFunc(copies, func(c rig.Copy) bool { return c.Kind == "p" && c.Node == i.node.NodeName() })
	if from < 0 {
		from = slices.IndexFunc(copies, func(c rig.Copy) bool { return c.Kind == "p" })
	}
	shard, to := copies[from], ""
	for _, node := range i.Servers.ElasticNodes() {
		if !slices.ContainsFunc(copies, func(c rig.Copy) bool { return c.Shard == shard.Shard && c.Node == node.NodeName() }) {
			to = node.NodeName()
		}
	}
	if to == "" {
		i.Must(Never("every node has a copy of the shard"))
	}
	number, _ := strconv.Atoi(shard.Shard) // as the server writes it
	move := map[string]any{"index": i.index, "shard": number, "from_node": shard.Node, "to_node": to}
	i.Must(i.Ask(i.Ctx, "move shard", http.MethodPost, "/_cluster/reroute", map[string]any{"commands": []any{map[string]any{"move": move}}}, nil))
	i.Note = fmt.Sprintf(", shard %s from %s to %s", shard.Shard, shard.Node, to)
	i.Must(rig.Await(i.Ctx, movedTimeout, greenPeriod, "move of the shard", func(ctx context.Context) error {
		now, err := i.Copies(ctx, i.index)
		there := slices.ContainsFunc(now, func(c rig.Copy) bool { return c.Shard == shard.Shard && c.Node == to && c.State == "STARTED" })
		return rig.Want(err, there, "it is not on %s", to)
	}))
}

// restartAll stops each node in order and starts it, and goes on to the next when all copies are
// there.
func restartAll(i *Injection) {
	for _, node := range i.Servers.ElasticNodes() {
		i.Must(i.Servers.Do(i.Ctx, stack.StopServer, node))
		i.Must(i.Servers.Do(i.Ctx, stack.StartServer, node))
		i.Must(i.AwaitGreen(i.Ctx))
	}
}

func startNodes(i *Injection) {
	i.Must(errors.Join(rig.Map(i.Servers.ElasticNodes(), func(node stack.Server) error { return i.Servers.Do(i.Ctx, stack.StartServer, node) })...))
}

// watermark makes the cluster look at its disks, of which so much has to be free; nil restores
// the defaults of the stack, which does not look.
func (i *Injection) watermark(free any) {
	const disk = "cluster.routing.allocation.disk."
	var enabled any
	if free != nil {
		enabled = true
	}
	i.Must(i.Ask(i.Ctx, "set watermarks", http.MethodPut, "/_cluster/settings", map[string]any{"persistent": map[string]any{
		disk + "threshold_enabled": enabled,
		disk + "watermark.low":     free, disk + "watermark.high": free, disk + "watermark.flood_stage": free,
	}}, nil))
}

// fill wants so much of the disks to be free, and waits until the cluster has seen it and has blocked
// the index, or has lifted its block.
func (i *Injection) fill(free string, want bool) {
	i.watermark(free)
	i.Must(rig.Await(i.Ctx, greenTimeout, greenPeriod, "change of the block", func(ctx context.Context) error {
		blocked, err := i.Blocked(ctx, i.index)
		return rig.Want(err, blocked == want, "blocked is %v", blocked)
	}))
}
