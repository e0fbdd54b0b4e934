package systemd

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Names of drills that the run treats apart.
const (
	first   = "start"
	upgrade = "upgrade"
)

// drill is one of the table. It begins in calm, unless it is what brings the pair up,
// and ends when the pair is well again, unless there is none any more.
type drill struct {
	name string
	do   func(*run, *Drill, pair)
}

func drills() []drill {
	return []drill{
		{first, (*run).start}, {"reload", (*run).reload}, {"stop", (*run).stop}, {"kill", (*run).kill}, {"freeze", (*run).freeze},
		{upgrade, (*run).upgrade}, {"outage", (*run).outage}, {"shutdown", (*run).shutdown}, {"dark", (*run).dark},
		{"groups", (*run).groups}, {"remove", (*run).remove},
	}
}

func names() []string { return rig.Map(drills(), func(d drill) string { return d.name }) }

func (r *run) play(d drill) {
	r.screen.Refresh(d.name + " …")
	out := &Drill{Name: d.name}
	var p pair
	if d.name != first {
		p = r.calm()
	}
	out.began = time.Now()
	d.do(r, out, p)
	out.ended = time.Now()
	r.result.Drills = append(r.result.Drills, out)
	r.screen.Line("%-9s %s", d.name, out.Seen)
}

func (d *Drill) fault(at time.Time, epoch int64) {
	d.mark = history.FaultMark{Name: d.Name, At: at, Epoch: epoch}
}

// signalled sends the signal that is a fault of the catalogue to the process of a unit, which
// leads under epoch, and returns the time just before.
func (r *run) signalled(d *Drill, name string, h *host, of string, epoch int64) time.Time {
	i := faults.New(name, nil, nil, faults.Params{})
	i.Signal = func(sig syscall.Signal) (time.Time, error) { return h.signal(r.Ctx, of, sig) }
	r.Must(i.Inject(r.Ctx))
	d.fault(i.At, epoch)
	return i.At
}

// again notes how long it took until the pair was well.
func (r *run) again(d *Drill, since time.Time) {
	r.back()
	d.BackS = time.Since(since).Round(100 * time.Millisecond).Seconds()
}

// exec runs a command in a machine, which must succeed.
func (r *run) exec(h *host, argv ...string) string { return rig.Try(h.Exec(r.Ctx, argv...)).Must(r) }

// state is that of a machine's weft.service.
func (r *run) state(h *host) state { return rig.Try(h.state(r.Ctx, service)).Must(r) }

func (r *run) journal(h *host, matches ...string) []line {
	return rig.Try(h.journal(r.Ctx, service, matches...)).Must(r)
}

// settles waits for an event that is done under epoch or a later one.
func (r *run) settles(epoch int64) { r.Must(r.Settles(r.Ctx, epoch)) }

// seconds is a duration as the table writes it.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// start enables and starts both units, as README.Debian says.
func (r *run) start(d *Drill, _ pair) {
	var ready []string
	for i, h := range r.hosts {
		at := time.Now()
		if i == 0 {
			d.fault(at, 0)
		}
		r.exec(h, "systemctl", "enable", "--now", "--quiet", service)
		ready = append(ready, fmt.Sprintf("%s ready after %s", h.Name, seconds(time.Since(at))))
	}
	r.again(d, d.began)
	p := r.back()
	d.Seen = fmt.Sprintf("%s; %s leads, %s stands by", strings.Join(ready, ", "), p.leader.Name, p.standby.Name)
	r.settles(1)
}

// reload has the leader read its settings again, with another level of the log in them, and
// once more without.
func (r *run) reload(d *Drill, p pair) {
	before := r.state(p.leader)
	r.Must(p.leader.add(r.Ctx, "log:\n  level: debug\n"))
	r.exec(p.leader, "systemctl", "reload", service)
	r.await("line at debug in the journal", func(ctx context.Context) error {
		lines, err := p.leader.journal(ctx, service, "_SYSTEMD_INVOCATION_ID="+before.Invocation, "PRIORITY=7")
		return rig.Want(err, len(lines) > 0, "none")
	})
	r.exec(p.leader, "sed", "-i", "/^log:$/,+1d", settingsFile)
	r.exec(p.leader, "systemctl", "reload", service)
	r.settles(p.epoch)
	now := r.back()
	after := r.state(now.leader)
	d.Seen = "lines at debug came and went; the process and its term are the same"
	r.Expect(after.PID == before.PID && now.epoch == p.epoch, "process %d leads in epoch %d; before it was %d in %d", after.PID, now.epoch, before.PID, p.epoch)
}

func (r *run) stop(d *Drill, p pair) {
	at := time.Now()
	d.fault(at, p.epoch)
	r.exec(p.leader, "systemctl", "stop", service)
	took := time.Since(at)
	s := r.state(p.leader)
	r.Expect(s.Active == "inactive" && s.Result == "success" && s.Exited && s.Exit == 0, "after the stop: %v, exit code %d", s, s.Exit)
	r.settles(p.epoch + 1)
	r.exec(p.leader, "systemctl", "start", service)
	d.Seen = fmt.Sprintf("exit code 0 after %s, %s leads", seconds(took), p.standby.Name)
	r.again(d, at)
}

func (r *run) kill(d *Drill, p pair) {
	before := r.state(p.leader)
	at := r.signalled(d, faults.SIGKILL, p.leader, service, p.epoch)
	r.settles(p.epoch + 1)
	r.restarted(p.leader, before)
	d.Seen = fmt.Sprintf("systemd has restarted %s, which stands by", p.leader.Name)
	r.again(d, at)
}

// restarted waits until systemd has started the unit once more, and it stands by.
func (r *run) restarted(h *host, before state) {
	r.awaitState(h, "restarted unit", func(s state) bool {
		return s.Active == "active" && s.Restarts == before.Restarts+1 && strings.HasPrefix(s.Status, "standby")
	})
}

func (r *run) freeze(d *Drill, p pair) {
	before := r.state(p.leader)
	at := r.signalled(d, faults.SIGSTOP, p.leader, service, p.epoch)
	r.settles(p.epoch + 1)
	s := r.awaitState(p.leader, "end by the watchdog", func(s state) bool {
		return s.Result == "watchdog" || s.Restarts > before.Restarts
	})
	dead := time.Since(at)
	r.restarted(p.leader, before)
	own := r.journal(p.leader, "_SYSTEMD_INVOCATION_ID="+before.Invocation)
	about := r.journal(p.leader, "INVOCATION_ID="+before.Invocation)
	goroutines := 0
	for _, l := range own {
		if strings.HasPrefix(l.Message, "goroutine ") {
			goroutines++
		}
	}
	r.Expect(goroutines > 1 && contains(own, "SIGABRT") && contains(about, "Watchdog timeout"),
		"journal of the frozen one: %d goroutines; the unit is %v", goroutines, s)
	d.Seen = fmt.Sprintf("watchdog after %s, %d goroutines in the journal, restarted as standby", seconds(dead), goroutines)
	r.again(d, at)
}

// outage takes PostgreSQL away, and kills the standby again and again meanwhile.
func (r *run) outage(d *Drill, p pair) {
	const most = 6 // restarts; systemd's own limit is five in ten seconds
	leader := r.state(p.leader)
	away := faults.New(faults.PostgresRestartFast, &faults.Target{Place: r.Place}, nil, faults.Params{})
	r.Must(away.Inject(r.Ctx))
	killed := map[int]bool{}
	for end := time.Now().Add(r.opts.Outage); time.Now().Before(end); {
		r.Pause(500 * time.Millisecond)
		s := r.state(p.standby)
		r.Expect(s.Active == "active" || s.Active == "activating", "the standby's unit is %v", s)
		if s.PID != 0 && !killed[s.PID] && len(killed) < most {
			rig.Try(p.standby.signal(r.Ctx, service, syscall.SIGKILL)).Must(r)
			killed[s.PID] = true
		}
	}
	now := r.state(p.leader)
	r.Expect(now.PID == leader.PID && now.Active == "active", "the unit that was left alone is %v", now)
	r.Must(away.Heal(r.Ctx))
	r.await("connection to PostgreSQL", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
		defer cancel()
		return r.Pool.QueryRow(ctx, "select pg_postmaster_start_time()").Scan(&d.server)
	})
	r.settles(p.epoch)
	r.again(d, d.server)
	now = r.state(p.leader)
	d.Seen = fmt.Sprintf("%s away; one unit never ended, the other was killed %d times meanwhile and was always started again", seconds(r.opts.Outage), len(killed))
	r.Expect(now.PID == leader.PID, "the unit that was left alone was restarted: %v", now)
}

func (r *run) shutdown(d *Drill, p pair) {
	at := time.Now()
	d.fault(at, p.epoch)
	r.Must(p.leader.PowerOff(r.Ctx))
	off := time.Since(at)
	r.settles(p.epoch + 1)
	r.Must(p.leader.Start(r.Ctx))
	r.again(d, at)
	lines := r.journal(p.leader, "--boot=-1")
	d.Seen = fmt.Sprintf("off after %s; the unit came back with the machine, as standby", seconds(off))
	r.Expect(contains(lines, "Deactivated successfully"), "journal of the boot before: no orderly end of the unit in %d lines", len(lines))
}

// dark takes the leader's machine away without a word to anybody, and boots it again.
func (r *run) dark(d *Drill, p pair) {
	at := time.Now()
	d.fault(at, p.epoch)
	r.Must(p.leader.Cut())
	r.settles(p.epoch + 1)
	p.leader.Kill()
	r.Must(p.leader.Start(r.Ctx))
	d.Seen = "no connection was closed; the unit came back with the machine, as standby"
	r.again(d, at)
}

const (
	searchUnit    = "weft@search.service"
	chronicleUnit = "weft@chronicle.service"
	otherGroup    = "chronicle"
)

// instances are those of the template, one for each group.
func instances() []string { return []string{searchUnit, chronicleUnit} }

// groups replaces weft.service by two instances of the template, each of a group and a
// projection of its own, kills the leader of one of them, and goes back.
func (r *run) groups(d *Drill, p pair) {
	for _, h := range r.hosts {
		for _, env := range []struct{ file, group, projection, unit string }{
			{"search", group, "search_index_to_elastic", searchUnit}, {"chronicle", otherGroup, "chronicle_events_to_entries", chronicleUnit},
		} {
			text := fmt.Sprintf("WEFT_GROUP=%s\nWEFT_PROJECTIONS=%s\nOUTBOX_METRICS_PORT=%d\n", env.group, env.projection, h.ports[env.unit])
			r.Must(h.Write(r.Ctx, "/etc/weft/"+env.file+".env", 0o640, strings.NewReader(text)))
		}
	}
	// The standby's machine first, so that somebody always leads.
	for _, h := range []*host{p.standby, p.leader} {
		r.exec(h, "systemctl", "stop", service)
		r.exec(h, append([]string{"systemctl", "start"}, instances()...)...)
	}
	var two pair
	well := func(ctx context.Context) (err error) {
		two, err = r.well(ctx, searchUnit, "-search")
		return err
	}
	r.await("well pair of instances", well)
	r.chronicle()
	other := rig.Try(r.LeaderOf(r.Ctx, otherGroup)).Must(r)
	at := r.signalled(d, faults.SIGKILL, two.leader, searchUnit, two.epoch)
	r.settles(two.epoch + 1)
	r.await("restarted instance", well)
	d.BackS = time.Since(at).Round(100 * time.Millisecond).Seconds()
	r.chronicle()
	still := rig.Try(r.LeaderOf(r.Ctx, otherGroup)).Must(r)
	r.Expect(still.Epoch == other.Epoch && still.Instance == other.Instance, "the other group was led by %s (epoch %d) and is by %s (epoch %d)",
		other.Instance, other.Epoch, still.Instance, still.Epoch)
	for _, h := range []*host{two.standby, two.leader} {
		r.exec(h, append([]string{"systemctl", "stop"}, instances()...)...)
		r.exec(h, "systemctl", "start", service)
	}
	d.Seen = fmt.Sprintf("moved to two instances on each machine and back; with the leader of one group killed, %s led the other as before", still.Instance)
	r.back()
}

// chronicle writes an event of the other projection and waits for its entry.
func (r *run) chronicle() {
	id := uuid.New()
	write, cancel := context.WithTimeout(r.Ctx, rig.QueryTimeout)
	defer cancel()
	r.MustDo("write a chronicle event", pgx.BeginFunc(write, r.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(write, `insert into chronicle_events (id, event_type, book_id, payload, occurred_at) values ($1, 'book_opened', gen_random_uuid(), '{}', now())`, id)
		if err != nil {
			return err
		}
		return outbox.Enqueue(write, tx, "chronicle_outbox_events", outbox.NewEvent{Key: outbox.Key{Type: "chronicle_event", ID: outbox.UUID(id)}, Op: outbox.Upsert, Version: time.Now().UnixMicro()})
	}))
	r.await("entry of a chronicle event", func(ctx context.Context) error {
		return r.Holds(ctx, `select exists (select from chronicle_entries where id = $1)`, id)
	})
}
