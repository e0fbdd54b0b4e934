package drill

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/await"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	loadPart  = 50        // events that the load commits before the fault, and again after it
	loadOps   = 1_000_000 // more than there is time for
	loadConns = 8

	// restartBound is for a server of one's own on a machine that has much else to do.
	restartBound = 3 * time.Minute
)

// failure is what of a failover is kept.
type failure struct {
	Fault    history.FaultMark  `json:"fault"`
	Leader   string             `json:"leader"`  // that it met
	Accepts  time.Time          `json:"accepts"` // a restarted server took work again; zero for another fault
	Takeover bool               `json:"takeover"`
	Produced []history.Enqueued `json:"produced"`
	Errors   int                `json:"errors"` // operations of the load that failed
}

// failover is a drill in which a pair meets a fault under load.
func failover(s Scenario, takeover bool, bound time.Duration, fault func(context.Context, *run, *failure) error, more func(*judge)) Scenario {
	s.Params = append([]Param{{"rate", "100", "events per second that are written meanwhile"}}, s.Params...)
	if s.instances == nil {
		s.instances = pair("OUTBOX_BASE_BACKOFF_SECONDS=0.2", "OUTBOX_MAX_BACKOFF_SECONDS=1")
	}
	s.Shows = strictest + s.Shows
	s.run = func(ctx context.Context, r *run) error {
		rate, err := r.count("rate", 1, 5000)
		if err != nil {
			return err
		}
		f := &failure{Takeover: takeover}
		err = r.underLoad(ctx, rate, f, func(ctx context.Context) error {
			if err := r.moment(ctx, f); err != nil {
				return err
			}
			f.Fault.Name = s.Name
			if err := fault(ctx, r, f); err != nil {
				return err
			}
			f.Fault.Until = time.Now()
			return nil
		})
		if err != nil {
			return err
		}
		if err := r.drained(ctx); err != nil {
			return err
		}
		return errors.Join(r.noteFirst(ctx, f.Fault.At), r.compact("failure", f))
	}
	s.verify = func(j *judge) {
		j.failedOver(takeover, bound)
		if more != nil {
			more(j)
		}
	}
	return s
}

const strictest = "never two active, every event done and in order per entity, both stores equal; "

// moment notes who leads, and the database's clock.
func (r *run) moment(ctx context.Context, f *failure) error {
	ctx, cancel := context.WithTimeout(ctx, queryBound)
	defer cancel()
	err := r.pool.QueryRow(ctx, `select instance, epoch, clock_timestamp() from weft_leader where group_name = $1`, r.group).
		Scan(&f.Leader, &f.Fault.Epoch, &f.Fault.At)
	if err != nil {
		return fmt.Errorf("read leader: %w", err)
	}
	return nil
}

// underLoad does something in the middle of a load.
func (r *run) underLoad(ctx context.Context, rate int, f *failure, do func(context.Context) error) error {
	pool, err := openPool(ctx, r.databaseURL, loadConns+2)
	if err != nil {
		return err
	}
	defer pool.Close()
	loading, stop := context.WithCancel(ctx)
	defer stop()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var mu sync.Mutex
	var result *traffic.Result
	ended := make(chan error, 1)
	go func() {
		var err error
		result, err = traffic.Run(loading, traffic.Options{
			Settings: traffic.Settings{Scenario: traffic.MixedScenario, Ops: loadOps, Bytes: 200, Rate: float64(rate), Concurrency: loadConns, Seed: 1},
			Pool:     pool, Environment: r.environment,
			Committed: func(events []outbox.NewEvent) {
				mu.Lock()
				defer mu.Unlock()
				for _, e := range events {
					f.Produced = append(f.Produced, history.Enqueued{Event: e.ID, Key: e.Key, Version: e.Version})
				}
			},
		})
		giveUp(err) // nothing is worth waiting for any more
		ended <- err
	}()
	committed := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(f.Produced)
	}
	more := func() error {
		want := committed() + loadPart
		return r.await(ctx, "load", func(context.Context) error {
			if n := committed(); n < want {
				return fmt.Errorf("%d of %d events are committed", n, want)
			}
			return nil
		})
	}
	r.step("writing %d events a second", rate)
	err = more()
	if err == nil {
		err = do(ctx)
	}
	if err == nil {
		err = more()
	}
	stop()
	if of := <-ended; of != nil {
		return of
	}
	if err != nil {
		return err
	}
	f.Errors = result.Errors
	r.step("the load is over: %d operations, %d failed", result.Ops, result.Errors)
	return nil
}

// noted is how many of the load's events are named in the recipe.
const noted = 10

// noteFirst names the events that were the first to be settled after the fault.
func (r *run) noteFirst(ctx context.Context, fault time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, queryBound)
	defer cancel()
	rows, err := r.pool.Query(ctx, `
select event_id, entity_type || ':' || entity_id, op, event_version from weftlab_history
where at > $1 and old_status = 'pending' and new_status = 'done' order by seq limit $2`, fault, noted)
	if err != nil {
		return fmt.Errorf("read first settled events: %w", err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (verdict.Event, error) {
		e := verdict.Event{Role: "first after the fault"}
		err := row.Scan((*[16]byte)(&e.ID), &e.Entity, &e.Op, &e.Version)
		return e, err
	})
	if err != nil {
		return fmt.Errorf("read first settled events: %w", err)
	}
	r.note(events...)
	return nil
}

// succeeded waits for the first event that is done under a newer epoch.
func (r *run) succeeded(ctx context.Context, epoch int64) error {
	return r.await(ctx, "event of a successor", func(ctx context.Context) error {
		var done bool
		err := r.pool.QueryRow(ctx, `
select exists (select from weftlab_lease l join weftlab_history h using (tx) where l.epoch > $1 and l.events is null and h.new_status = 'done')`, epoch).Scan(&done)
		if err == nil && !done {
			err = fmt.Errorf("none is done under an epoch above %d", epoch)
		}
		return err
	})
}

// failedOver asserts what holds in each failover.
func (j *judge) failedOver(takeover bool, bound time.Duration) {
	var f failure
	file := verdict.ProbeFile("failure")
	if err := j.Probe("failure", &f); err != nil {
		j.Check("the failover was probed", file, err.Error(), "times", false)
		return
	}
	var end history.End
	var applied []history.Applied
	if err := errors.Join(j.Probe("stores", &end), j.Probe("bulk", &applied)); err != nil {
		j.Check("the stores were probed", verdict.ProbeFile("stores"), err.Error(), "documents", false)
		return
	}
	log := j.history()
	j.Least("events that the load committed", file, float64(len(f.Produced)), 2*loadPart)
	switch {
	case takeover:
		t := history.Takeovers(log, []history.FaultMark{f.Fault})[0]
		seen := "no takeover"
		if t.Happened() {
			seen = fmt.Sprintf("%v by %s, epoch %d", t.Settle().Round(time.Millisecond), t.Instance, t.Epoch)
		}
		j.Check("from the fault to the successor's first settled event", verdict.ProbeFile("history"), seen, "at most "+bound.String(), t.Happened() && t.Settle() <= bound)
		j.Check("terms", verdict.ProbeFile("history"), strconv.Itoa(len(log.Terms)), "at least 2, by different instances", len(log.Terms) >= 2 && log.Terms[0].Instance != log.Terms[1].Instance)
	default:
		first, ok := log.FirstDoneAfter(f.Accepts)
		seen := "the server was not restarted"
		if ok && !f.Accepts.IsZero() {
			seen = first.At.Sub(f.Accepts).Round(time.Millisecond).String()
		}
		j.Check("from the server's first accepted request to the first settled event", verdict.ProbeFile("history"), seen, "at most "+bound.String(), ok && !f.Accepts.IsZero() && first.At.Sub(f.Accepts) <= bound)
	}
	v := history.Check(history.Run{Log: log, Acknowledged: f.Produced, Applied: applied, End: &end})
	for _, c := range []struct {
		what     string
		findings []history.Finding
	}{
		{"acts of a second active instance", v.TwoActive}, {"verdicts without a lease", v.Unleased}, {"events lost", v.Lost}, {"events out of order", v.OutOfOrder},
		{"documents taken back to an older version", v.Regressions}, {"deleted documents that came back", v.Resurrected},
		{"documents that differ from their rows", v.Diverged}, {"dead letters", v.DeadLetters},
	} {
		seen := strconv.Itoa(len(c.findings))
		if len(c.findings) > 0 {
			seen += ": " + c.findings[0].String()
		}
		j.Check(c.what, verdict.ProbeFile("history"), seen, "0", len(c.findings) == 0)
	}
}

func leaderSIGTERM() Scenario {
	return failover(Scenario{
		Name:  "leader_sigterm",
		About: "the leader is asked to stop while events come",
		Shows: "an exit status of 0 and nothing that had to be taken back",
	}, true, 20*time.Second, func(ctx context.Context, r *run, f *failure) error {
		return r.faultOfLeader(ctx, f, "SIGTERM of the leader", func(ctx context.Context, m *member) error {
			return r.endWell(ctx, m)
		}, nil)
	}, func(j *judge) {
		j.GrewBy(0, "weft_reclaimed_events_total")
		j.Number("rows that were taken back, in the audit", verdict.ProbeFile("audit"), float64(len(j.audits("reclaim"))), 0)
		j.GrewBy(0, "outbox_owner_mismatch_skips_total")
	})
}

func leaderSIGKILL() Scenario {
	return failover(Scenario{
		Name:  "leader_sigkill",
		About: "the leader is killed while events come",
		Shows: "a standby that takes over",
	}, true, 20*time.Second, func(ctx context.Context, r *run, f *failure) error {
		return r.faultOfLeader(ctx, f, "SIGKILL of the leader", func(ctx context.Context, m *member) error {
			r.scrape(ctx, m)
			r.expectEnd(m)
			_, err := m.instance.Kill()
			return err
		}, nil)
	}, nil)
}

func leaderSIGSTOP() Scenario {
	return failover(Scenario{
		Name:  "leader_sigstop",
		About: "the leader is frozen, with a bulk request on its way, and woken up when another one leads",
		Shows: "the server ending the frozen leader's session, and nothing that it does after it has woken up",
		Slow:  true,
	}, true, 40*time.Second, func(ctx context.Context, r *run, f *failure) error {
		return r.faultOfLeader(ctx, f, "SIGSTOP of the leader", func(ctx context.Context, m *member) error {
			m.Tap.Hold()
			if err := r.holds(ctx, m); err != nil {
				return err
			}
			_, err := m.instance.Signal(syscall.SIGSTOP)
			return err
		}, func(ctx context.Context, m *member) error {
			defer m.Tap.Release()
			if m.instance.HasEnded() {
				return nil
			}
			_, err := m.instance.Signal(syscall.SIGCONT)
			return err
		})
	}, func(j *judge) {
		j.stillStandsBy()
	})
}

func lockSessionKilled() Scenario {
	return failover(Scenario{
		Name:  "lock_session_killed",
		About: "the server ends the leader's lock session (pg_terminate_backend) while events come",
		Shows: "a leader that steps down and competes again",
	}, true, 20*time.Second, func(ctx context.Context, r *run, f *failure) error {
		return r.faultOfLeader(ctx, f, "pg_terminate_backend of the leader's lock session", func(ctx context.Context, m *member) error {
			var n int
			err := r.pool.QueryRow(ctx, `
select count(*) from (
  select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1 and datname = current_database()) t`,
				"weft/"+r.group+"/"+m.name+"/lock").Scan(&n)
			if err == nil && n != 1 {
				err = fmt.Errorf("%d sessions have that name", n)
			}
			return err
		}, nil)
	}, func(j *judge) {
		j.stillStandsBy()
		j.Grew("weft_leader_step_downs_total")
	})
}

func leaderPartition() Scenario {
	return failover(Scenario{
		Name:   "leader_partition",
		About:  "no byte passes between the leader and both servers any more, and no connection ends; then the way is mended",
		Shows:  "a takeover without the old leader's help, and an old leader that stands by when it is back",
		Slow:   true,
		linked: true,
	}, true, 40*time.Second, func(ctx context.Context, r *run, f *failure) error {
		return r.faultOfLeader(ctx, f, "a partition of the leader from both servers", func(_ context.Context, m *member) error {
			return errors.Join(m.Postgres.HalfOpen(), m.Elastic.HalfOpen())
		}, func(_ context.Context, m *member) error { return m.Heal() })
	}, func(j *judge) { j.stillStandsBy() })
}

// stillStandsBy asserts that the instance that led before is there in the end and competes.
func (j *judge) stillStandsBy() {
	var f failure
	if err := j.Probe("failure", &f); err != nil {
		return // said before
	}
	old := "instance=" + f.Leader
	j.Number("the old leader says that it leads", verdict.AfterFile, j.After.Sum("weft_leader_is_leader", old), 0)
	j.Least("times that the old leader has become a standby since", verdict.MetricsDir, j.Delta("weft_leader_transitions_total", old, "to=standby"), 1)
}

// faultOfLeader injects a fault into the leader, waits for the successor and takes the fault
// back.
func (r *run) faultOfLeader(ctx context.Context, f *failure, what string, do, back func(context.Context, *member) error) error {
	m := r.member(f.Leader)
	var undo func(context.Context) error
	if back != nil {
		undo = func(ctx context.Context) error { return back(ctx, m) }
	}
	done, err := r.inject(ctx, what, func(ctx context.Context) error { return do(ctx, m) }, undo)
	if err != nil || !done {
		return err
	}
	if err := r.succeeded(ctx, f.Fault.Epoch); err != nil {
		return err
	}
	r.step("an event is done under a newer epoch")
	if err := r.heal(ctx); err != nil || m.instance.HasEnded() {
		return err
	}
	return r.await(ctx, "old leader as a standby", func(ctx context.Context) error {
		r.scrape(ctx, m)
		if r.nowOf(m, "weft_leader_is_leader") != 0 {
			return errors.New("it still says that it leads")
		}
		return get200(ctx, m)
	})
}

func get200(ctx context.Context, m *member) error {
	_, err := get(ctx, m.instance.URL("/health/ready"), scrapeBound)
	return err
}

// nowOf is what an instance said last.
func (r *run) nowOf(m *member, name string, labels ...string) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.after[m.name].Samples().Sum(name, labels...)
}

func pgRestart() Scenario {
	return failover(Scenario{
		Name:  "pg_restart",
		About: "PostgreSQL is stopped without a checkpoint and started again while events come",
		Shows: "work that goes on as soon as the server takes it",
		Slow:  true,
		Owned: true,
	}, false, 30*time.Second, func(ctx context.Context, r *run, f *failure) error {
		return r.restart(ctx, f, stack.Postgres, "PostgreSQL is stopped at once", r.servers.StopServerImmediately, func(ctx context.Context) error {
			conn, err := pgx.Connect(ctx, r.base)
			if err != nil {
				return err
			}
			return conn.Close(ctx)
		})
	}, func(j *judge) {
		j.Least("terms", verdict.ProbeFile("history"), float64(len(j.history().Terms)), 2)
	})
}

func esRestart() Scenario {
	return failover(Scenario{
		Name:  "es_restart",
		About: "Elasticsearch is killed and started again while events come",
		Shows: "retries that end well, under one term, as soon as the server takes writes",
		Slow:  true,
		Owned: true,
	}, false, 30*time.Second, func(ctx context.Context, r *run, f *failure) error {
		return r.restart(ctx, f, stack.Elastic, "Elasticsearch is killed", r.servers.KillServer, func(ctx context.Context) error {
			index, err := r.concrete(ctx)
			if err != nil {
				return err
			}
			return r.es.Do(ctx, "GET", "/_cluster/health/"+index+"?wait_for_status=yellow&timeout=1s", nil, nil)
		})
	}, func(j *judge) {
		j.Grew("outbox_retry_scheduled_total")
		j.GrewBy(0, "outbox_failed_total")
		j.Number("terms", verdict.ProbeFile("history"), float64(len(j.history().Terms)), 1)
	})
}

// restart stops a server and starts it again, and notes when it took work.
func (r *run) restart(ctx context.Context, f *failure, server stack.Server, what string, stop func(context.Context, stack.Server) error, probe func(context.Context) error) error {
	done, err := r.inject(ctx, what, func(ctx context.Context) error { return stop(ctx, server) }, nil)
	if err != nil || !done {
		return err
	}
	if err := await.Sleep(ctx, time.Second); err != nil {
		return err
	}
	started := make(chan error, 1)
	go func() { started <- r.servers.StartServer(ctx, server) }()
	err = r.awaitWithin(ctx, restartBound, string(server)+" that takes work", probe)
	f.Accepts = time.Now() // the server is on this machine
	if err := errors.Join(err, <-started); err != nil {
		return err
	}
	r.mark(verdict.Heal, "%s takes work again", server)
	r.pool.Reset()
	r.place.pool.Reset()
	return r.await(ctx, "settled event after the restart", func(ctx context.Context) error {
		var done bool
		err := r.pool.QueryRow(ctx, `select exists (select from weftlab_history where new_status = 'done' and at > $1)`, f.Accepts).Scan(&done)
		if err == nil && !done {
			err = errors.New("there is none")
		}
		return err
	})
}
