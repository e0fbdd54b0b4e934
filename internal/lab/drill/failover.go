package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
)

const (
	loadPart  = 50        // events that the load commits before the fault, and again after it
	loadOps   = 1_000_000 // more than there is time for
	loadConns = 8

	// restartedBound is from a restarted server's first accepted request to the first settled event.
	restartedBound = 30 * time.Second
)

func loadParams() []Param {
	return []Param{{"rate", "100", "events per second that are written meanwhile"}}
}

// quickPair is a leader and a standby that retry soon.
func quickPair() []instance {
	return pair("OUTBOX_BASE_BACKOFF_SECONDS=0.2", "OUTBOX_MAX_BACKOFF_SECONDS=1")
}

// silentPair is a quick pair whose first leader falls silent.
func silentPair() []instance {
	p := quickPair()
	p[0].env = append(missed(), p[0].env...)
	return p
}

// failure is the probe of a failover.
type failure struct {
	Fault    history.FaultMark  `json:"fault"`
	Leader   string             `json:"leader"`  // that it met
	Accepts  time.Time          `json:"accepts"` // a restarted server took work again; zero for another fault
	Crash    bool               `json:"crash"`   // PostgreSQL may have lost what had not reached the disk
	Takeover bool               `json:"takeover"`
	Produced []history.Enqueued `json:"produced"`
	Errors   int                `json:"errors"` // operations of the load that failed
}

// failover is a drill in which a pair meets a fault under load. takeover is the bound from the
// fault to the successor's first settled event; 0 is for a restarted server, whose bound is
// from its first accepted request.
func failover(s Scenario, takeover time.Duration, fault func(*run, *failure), more func(*judge)) Scenario {
	s.Params = loadParams()
	if s.instances == nil {
		s.instances = quickPair()
	}
	s.Shows = strictest + s.Shows
	s.run = func(r *run) { r.underFault(takeover > 0, fault, func() {}) }
	s.verify = func(j *judge) {
		j.loaded()
		j.survived(takeover)
		j.sound("", "")
		more(j)
	}
	return s
}

const strictest = "never two active, every event done and in order per entity, both stores equal; "

// underFault injects a fault in the middle of a load, calls over when the load has ended, and keeps
// the probe of the failure when all events are settled.
func (r *run) underFault(takeover bool, fault func(*run, *failure), over func()) {
	f := &failure{Takeover: takeover}
	load, failed := r.underLoad(r.count("rate", 1, 5000), func() {
		l := rig.Try(r.Leader(r.Ctx)).Must(r)
		f.Leader, f.Fault.Epoch, f.Fault.Name = l.Instance, l.Epoch, r.scenario.Name
		f.Fault.At = rig.Try(r.Now(r.Ctx)).Must(r)
		fault(r, f)
		f.Fault.Until = time.Now()
		r.Must(r.Settles(r.Ctx, f.Fault.Epoch))
	})
	over()
	r.drained()
	r.noteFirst(f.Fault.At)
	f.Errors, f.Produced = failed, slices.Concat(load.Acknowledged(), r.app.Acknowledged())
	r.Must(r.keepCompact("failure", f))
}

// underLoad calls do in the middle of a load. It returns who has written that, and how many of its
// operations failed.
func (r *run) underLoad(rate int, do func()) (app *traffic.Application, failed int) {
	app = &traffic.Application{Pool: r.Pool}
	var result *traffic.Result
	var err error
	end := rig.During(r.Ctx, func(ctx context.Context) {
		result, err = traffic.Run(ctx, traffic.Options{
			Settings: traffic.Settings{Scenario: traffic.MixedScenario, Ops: loadOps, Bytes: 200, Rate: float64(rate), Concurrency: loadConns, Seed: 1},
			App:      app, Environment: r.recipe.Environment,
		})
		if err != nil {
			r.cancel(err) // nothing is worth waiting for any more
		}
	})
	defer end() // also when the script ends here
	more := func() {
		want := app.Produced() + loadPart
		r.await("load", func(context.Context) error {
			n := app.Produced()
			return rig.Want(nil, n >= want, "%d of %d events are committed", n, want)
		})
	}
	r.step("writing %d events a second", rate)
	more()
	do()
	more()
	end()
	r.Must(err)
	r.step("the load is over: %d operations, %d failed", result.Ops, result.Errors)
	return app, result.Errors
}

// noted is how many of the load's events are named in the recipe.
const noted = 10

// noteFirst names the events that were the first to be settled after the fault.
func (r *run) noteFirst(fault time.Time) {
	r.note(rig.Try(readRows[verdict.Event](r.Ctx, r, `
select event_id, entity_type || ':' || entity_id as entity, op, event_version, 'first after the fault' as role from weftlab_history
where at > $1 and old_status = 'pending' and new_status = 'done' order by seq limit $2`, fault, noted)).MustDo(r, "read first settled events")...)
}

// loaded asserts that events were written before the fault and after it.
func (j *judge) loaded() {
	j.atLeast("events that the load committed", "failure", len(verdict.Probed[failure](j.Judge, "failure").Produced), 2*loadPart)
}

// survived asserts that work went on soon after the fault.
func (j *judge) survived(takeover time.Duration) {
	f := verdict.Probed[failure](j.Judge, "failure")
	log, file := j.history(), verdict.ProbeFile("history")
	if takeover > 0 {
		t := history.Takeovers(log, []history.FaultMark{f.Fault})[0]
		seen := "no takeover"
		if t.Happened() {
			seen = fmt.Sprintf("%v by %s, epoch %d", t.Settle().Round(time.Millisecond), t.Instance, t.Epoch)
		}
		j.Check("from the fault to the successor's first settled event", file, seen, "at most "+takeover.String(), t.Happened() && t.Settle() <= takeover)
		j.Check("terms", file, strconv.Itoa(len(log.Terms)), "at least 2, by different instances", len(log.Terms) >= 2 && log.Terms[0].Instance != log.Terms[1].Instance)
	} else {
		first, ok := log.FirstDoneAfter(f.Accepts)
		ok = ok && !f.Accepts.IsZero()
		seen := "the server was not restarted"
		if ok {
			seen = first.At.Sub(f.Accepts).Round(time.Millisecond).String()
		}
		j.Check("from the server's first accepted request to the first settled event", file, seen, "at most "+restartedBound.String(), ok && first.At.Sub(f.Accepts) <= restartedBound)
	}
}

// crashes are the times in which PostgreSQL lost what had not reached the disk.
func (f *failure) crashes() []history.FaultMark {
	if !f.Crash {
		return nil
	}
	return []history.FaultMark{{Name: f.Fault.Name, At: f.Fault.At, Until: f.Accepts}}
}

// sound asserts all invariants. Where a rebuild has moved an alias, index is where it leads to.
func (j *judge) sound(alias, index string) {
	f := verdict.Probed[failure](j.Judge, "failure")
	end := verdict.Probed[history.End](j.Judge, "stores")
	applied := verdict.Probed[[]history.Applied](j.Judge, "bulk")
	log, file := j.history(), verdict.ProbeFile("history")
	v := history.Check(history.Run{Log: log, Acknowledged: f.Produced, Applied: applied, Crashes: f.crashes(), End: &end, Alias: alias, Index: index})
	for _, c := range []struct {
		what     string
		findings []history.Finding
	}{
		{"acts of a second active instance", v.TwoActive}, {"verdicts without a lease", v.Unleased}, {"sends without a lease", v.SentEarly},
		{"events lost", v.Lost}, {"events done twice", v.Twice}, {"events out of order", v.OutOfOrder},
		{"documents taken back to an older version", v.Regressions}, {"deleted documents that came back", v.Resurrected},
		{"documents that differ from their rows", v.Diverged}, {"dead letters", v.DeadLetters},
	} {
		seen := strconv.Itoa(len(c.findings))
		if len(c.findings) > 0 {
			seen += ": " + c.findings[0].String()
		}
		j.Check(c.what, file, seen, "0", len(c.findings) == 0)
	}
	j.exact(log)
}

// exact asserts that the record is in the order of commits. On a server that the caller has named it
// says only what it is: that one cannot be made to keep their times.
func (j *judge) exact(log *history.Log) {
	seen := "times of commits"
	if !log.Exact {
		seen = "times of statements, not of commits"
	}
	given := j.Recipe.Servers == "given"
	j.Check("the record is judged by", verdict.ProbeFile("history"), seen, "times of commits, where the servers are the run's own", log.Exact || given)
}

// failovers are the drills of a leader that ends, and of a server that restarts.
func failovers() []Scenario {
	return []Scenario{
		failover(Scenario{
			Name: "leader_sigterm", runbooks: []string{"planned-switchover"},
			About: "the leader is asked to stop while events come",
			Shows: "an exit status of 0 and nothing that had to be taken back",
		}, 20*time.Second, ofLeader("SIGTERM of the leader", faults.SIGTERM), func(j *judge) {
			j.GrewBy(0, "weft_reclaimed_events_total")
			j.counted("rows that were taken back, in the audit", "audit", len(j.audits("reclaim")), 0)
			j.GrewBy(0, "outbox_owner_mismatch_skips_total")
		}),
		failover(Scenario{
			Name: "leader_sigkill", runbooks: []string{"no-leader"},
			About: "the leader is killed while events come",
			Shows: "a standby that takes over",
		}, 20*time.Second, ofLeader("SIGKILL of the leader", faults.SIGKILL), func(*judge) {}),
		failover(Scenario{
			Name: "leader_sigstop", runbooks: []string{"frozen-leader"}, Slow: true, instances: silentPair(),
			About: "the leader is frozen, with a bulk request on its way, and woken up when another one leads",
			Shows: "the server ending the frozen leader's session, and nothing that it does after it has woken up",
		}, 40*time.Second, ofLeader("SIGSTOP of the leader", faults.SIGSTOP), func(j *judge) {
			j.stillStandsBy()
			j.wroteLate()
		}),
		failover(Scenario{
			Name: "lock_session_killed", runbooks: []string{"leader-flapping"},
			About: "the server ends the leader's lock session (pg_terminate_backend) while events come",
			Shows: "a leader that steps down and competes again",
		}, 20*time.Second, ofLeader("pg_terminate_backend of the leader's lock session", faults.TerminateLock), func(j *judge) {
			j.stillStandsBy()
			j.Grew("weft_leader_step_downs_total")
		}),
		failover(Scenario{
			Name: "leader_partition", runbooks: []string{"no-leader"}, Slow: true, proxied: true, instances: silentPair(),
			About: "no byte passes between the leader and both servers any more, and no connection ends; then the way is open again",
			Shows: "a takeover without the old leader's help, and an old leader that stands by when it is back",
		}, 40*time.Second, ofLeader("a partition of the leader from both servers", faults.PartitionBoth), (*judge).stillStandsBy),
		failover(Scenario{
			Name: "pg_restart", runbooks: []string{"postgres-failover"}, Slow: true, Owned: true,
			About: "PostgreSQL is stopped without a checkpoint and started again while events come",
			Shows: "work that goes on as soon as the server takes it",
		}, 0, ofServer("PostgreSQL is stopped at once", faults.PostgresRestartImmediate), func(j *judge) {
			j.atLeast("terms", "history", len(j.history().Terms), 2)
		}),
		failover(Scenario{
			Name: "es_restart", runbooks: []string{"elasticsearch-down"}, Slow: true, Owned: true,
			About: "Elasticsearch is killed and started again while events come",
			Shows: "retries that end well, under one term, as soon as the server takes writes",
		}, 0, ofServer("Elasticsearch is killed", faults.ElasticSIGKILL), func(j *judge) {
			j.Grew("outbox_retry_scheduled_total")
			j.GrewBy(0, "outbox_failed_total")
			j.counted("terms", "history", len(j.history().Terms), 1)
		}),
	}
}

// stillStandsBy asserts that the old leader still runs when the drill ends, as a standby.
func (j *judge) stillStandsBy() {
	old := "instance=" + verdict.Probed[failure](j.Judge, "failure").Leader
	j.Number("the old leader says that it leads", verdict.AfterFile, j.After.Sum("weft_leader_is_leader", old), 0)
	j.Least("times that the old leader has become a standby since", verdict.MetricsDir, j.Delta("weft_leader_transitions_total", old, "to=standby"), 1)
}

// wroteLate asserts that a request of the old leader reached Elasticsearch after the successor had
// settled an event: without one nothing was late.
func (j *judge) wroteLate() {
	f := verdict.Probed[failure](j.Judge, "failure")
	next := history.Takeovers(j.history(), []history.FaultMark{f.Fault})[0]
	late := count(verdict.Probed[[]history.Applied](j.Judge, "bulk"), func(a history.Applied) bool {
		return a.Instance == f.Leader && a.Forwarded && next.Happened() && a.Sent.After(next.First)
	})
	j.atLeast("items of the old leader that arrived after the successor's first settled event", "bulk", late, 1)
}

// ofLeader injects a fault of the catalogue into the leader, waits for the successor and
// undoes the fault.
func ofLeader(what, fault string) func(*run, *failure) {
	return func(r *run, f *failure) {
		m := r.Member(f.Leader)
		if !r.injectFault(what, fault, m) {
			return
		}
		r.Must(r.Succeeded(r.Ctx, f.Fault.Epoch))
		r.step("an event is done under a newer epoch")
		r.heal()
		if m.Instance().HasEnded() {
			return
		}
		r.await("old leader as a standby", func(ctx context.Context) error {
			r.scrape(ctx, m)
			if r.nowOf(m, "weft_leader_is_leader") != 0 {
				return errors.New("it still says that it leads")
			}
			return m.Instance().ReadyNow(ctx)
		})
	}
}

// ofServer stops a server and starts it again, and notes when it took work.
func ofServer(what, fault string) func(*run, *failure) {
	return func(r *run, f *failure) {
		i := r.injection(fault, nil)
		if !r.inject(what, i.Inject, nil) {
			return
		}
		r.Pause(time.Second)
		r.Must(i.Heal(r.Ctx))
		f.Accepts, f.Crash = i.Accepts, i.Fault.Crash
		r.mark(verdict.Heal, "the server takes work again")
		r.Pool.Reset()
		r.corner.site.Pool.Reset()
		r.Must(r.Settles(r.Ctx, f.Fault.Epoch))
	}
}
