package failover

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/testenv/patroni"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

const (
	// memberBound is for one round: Patroni's ttl, a rewind or a base backup, and the look at
	// both stores.
	memberBound = 6 * time.Minute
	// gapBound is for the database alone, and for weft to be abreast before a fault.
	gapBound = 3 * time.Minute

	probePause   = 50 * time.Millisecond
	probeTimeout = time.Second
	// noticed is from when on a time without a commit counts as one without the database.
	noticed = 250 * time.Millisecond
	// memberRate is in events per second: the members, etcd and HAProxy share the machine.
	memberRate = rate / 2
	// settleLimit is how long after the database weft may take to settle its first event.
	settleLimit = time.Second
)

func (r *run) open(ctx context.Context) (err error) {
	opts := stack.Options{Progress: r.opts.Progress, ElasticURL: r.opts.ElasticURL, Replication: r.opts.Replication}
	if r.opts.Patroni {
		r.cluster, err = patroni.Start(ctx, patroni.Options{Progress: r.opts.Progress, Synchronous: r.opts.Replication == stack.Synchronous})
		if err != nil {
			return err
		}
		opts.DatabaseURL, opts.Replication, opts.Quick = r.cluster.URL(), stack.NoReplica, true
		if r.opts.Proxy {
			opts.DatabaseURL = r.cluster.ProxyURL()
		}
	}
	r.Place, err = rig.Open(ctx, opts, writers)
	return err
}

// openProbes makes the probing clients: one for each member, or one that goes through HAProxy.
func (r *run) openProbes() {
	r.stream.Rate = memberRate
	urls := []string{r.cluster.ProxyURL()}
	if !r.opts.Proxy {
		urls = rig.Map(r.cluster.Hosts(), func(h *patroni.Host) string { return h.URL() + "&connect_timeout=1" })
	}
	for _, url := range urls {
		pool := rig.Try(rig.OpenPool(r.Ctx, url, 2)).Must(r)
		r.probes = append(r.probes, &traffic.Application{Pool: pool, Timeout: probeTimeout})
	}
}

// applications are all who write.
func (r *run) applications() []*traffic.Application {
	return append([]*traffic.Application{r.app}, r.probes...)
}

// probe lets the probing clients write until ctx ends.
func (r *run) probe(ctx context.Context) {
	var clients sync.WaitGroup
	for n, app := range r.probes {
		clients.Go(func() {
			for ctx.Err() == nil {
				_, _ = app.Write(ctx, upsert(probed+n)) // a replica refuses
				_ = rig.Sleep(ctx, probePause)
			}
		})
	}
	clients.Wait()
}

// gap waits for a commit by one of the clients that began after at, and returns the longest time
// since from without a commit.
func (r *run) gap(clients []*traffic.Application, from, at time.Time) (began, ended time.Time) {
	r.Must(rig.Await(r.Ctx, gapBound, poll, "commit of a client", func(context.Context) error {
		return rig.Want(nil, slices.ContainsFunc(clients, func(app *traffic.Application) bool { return len(app.Answers(at)) > 0 }), "there is none")
	}))
	answers := answers(clients, from)
	for n, later := range answers[1:] {
		if later.Sub(answers[n]) > ended.Sub(began) {
			began, ended = answers[n], later
		}
	}
	return began, ended
}

// answers returns from, and when the clients saw commits afterwards.
func answers(clients []*traffic.Application, from time.Time) []time.Time {
	answers := []time.Time{from}
	for _, app := range clients {
		answers = append(answers, app.Answers(from)...)
	}
	slices.SortFunc(answers, time.Time.Compare)
	return answers
}

// away returns for how long the database took no writes between two times: commits may wait
// again for a member that Patroni has just named synchronous.
func (r *run) away(from, to time.Time) (sum time.Duration) {
	answers := append(answers(r.probes, from), to)
	for n, later := range answers[1:] {
		if later.After(to) {
			later = to
		}
		if d := later.Sub(answers[n]); d > noticed {
			sum += d
		}
	}
	return sum
}

func (r *run) member(name string) *Round {
	round := &Round{Fault: name}
	fault := faults.New(name, &faults.Target{Group: r.Group, Place: r.Place, Patroni: r.cluster}, nil, faults.Params{})
	r.throughFault(round, fault)
	round.findings = fault.Findings
	r.examine(round)
	return round
}

// throughFault measures the fault while the probing clients write, and heals it.
func (r *run) throughFault(round *Round, fault *faults.Injection) {
	defer rig.During(r.Ctx, r.probe)()
	defer func() { r.Must(fault.Heal(r.Ctx)) }()
	r.Must(rig.Await(r.Ctx, gapBound, poll, "small backlog", func(ctx context.Context) error { return r.Abreast(ctx, warm) }))
	round.Lossy = r.opts.Replication == stack.Asynchronous && round.Fault == faults.PrimaryKilled
	var replicas []string
	if round.Lossy {
		primary := rig.Try(r.cluster.Primary(r.Ctx)).Must(r)
		replicas = rig.Map(r.cluster.Others(primary), (*patroni.Host).URL)
		r.cutOff(replicas...)
	}
	before := rig.Try(r.Position(r.Ctx)).Must(r)
	from := time.Now()
	r.Must(fault.Inject(r.Ctx))
	injected := time.Now()
	for _, url := range replicas {
		r.setReceiver(url, "alter system reset primary_conninfo", false)
	}
	began, ended := r.gap(r.probes, from, injected)
	r.Pool.Reset()
	r.resumed(round, before, ended)
	settled := ended.Add(time.Duration(round.SettleMS * float64(time.Millisecond)))
	again := r.away(ended, settled)
	round.GapMS = millis(ended.Sub(began) + again)
	round.SettleMS = millis(settled.Sub(ended) - again)
	r.Must(fault.Observe(r.Ctx))
}
