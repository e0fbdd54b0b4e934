package systemd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/history"
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
	do   func(*run, context.Context, *Drill, pair) error
}

func drills() []drill {
	return []drill{
		{first, (*run).start}, {"reload", (*run).reload}, {"stop", (*run).stop}, {"kill", (*run).kill}, {"freeze", (*run).freeze},
		{upgrade, (*run).upgrade}, {"outage", (*run).outage}, {"shutdown", (*run).shutdown}, {"dark", (*run).dark},
		{"groups", (*run).groups}, {"remove", (*run).remove},
	}
}

func names() (all []string) {
	for _, d := range drills() {
		all = append(all, d.name)
	}
	return all
}

func (r *run) play(ctx context.Context, d drill) error {
	r.screen.Refresh(d.name + " …")
	out := &Drill{Name: d.name}
	var p pair
	var err error
	if d.name != first {
		if p, err = r.calm(ctx); err != nil {
			return err
		}
	}
	out.began = time.Now()
	if err := d.do(r, ctx, out, p); err != nil {
		return err
	}
	out.ended = time.Now()
	r.result.Drills = append(r.result.Drills, out)
	r.screen.Line("%-9s %s", d.name, out.Seen)
	return nil
}

func (d *Drill) fault(at time.Time, epoch int64) {
	d.mark = history.FaultMark{Name: d.Name, At: at, Epoch: epoch}
}

// signalled sends the signal that is a fault of the catalogue to the process of a unit, which
// leads under epoch, and returns the time just before.
func (r *run) signalled(ctx context.Context, d *Drill, name string, h *host, of string, epoch int64) (time.Time, error) {
	i := faults.New(name, nil, nil, faults.Params{})
	i.Process = faults.SignalFunc(func(sig syscall.Signal) (time.Time, error) { return h.signal(ctx, of, sig) })
	if err := i.Inject(ctx); err != nil {
		return time.Time{}, err
	}
	d.fault(i.At, epoch)
	return i.At, nil
}

// again notes how long it took until the pair was well.
func (r *run) again(ctx context.Context, d *Drill, since time.Time) error {
	if _, err := r.back(ctx); err != nil {
		return err
	}
	d.BackS = time.Since(since).Round(100 * time.Millisecond).Seconds()
	return nil
}

// seconds is a duration as the table writes it.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// start enables and starts both units, as README.Debian says.
func (r *run) start(ctx context.Context, d *Drill, _ pair) error {
	var ready []string
	for i, h := range r.hosts {
		at := time.Now()
		if i == 0 {
			d.fault(at, 0)
		}
		if _, err := h.Exec(ctx, "systemctl", "enable", "--now", "--quiet", service); err != nil {
			return err
		}
		ready = append(ready, fmt.Sprintf("%s ready after %s", h.Name, seconds(time.Since(at))))
	}
	if err := r.again(ctx, d, d.began); err != nil {
		return err
	}
	p, err := r.back(ctx)
	if err != nil {
		return err
	}
	d.Seen = fmt.Sprintf("%s; %s leads, %s stands by", strings.Join(ready, ", "), p.leader.Name, p.standby.Name)
	return r.Settles(ctx, 1)
}

// reload has the leader read its settings again, with another level of the log in them, and
// once more without.
func (r *run) reload(ctx context.Context, d *Drill, p pair) error {
	before, err := p.leader.state(ctx, service)
	if err != nil {
		return err
	}
	if err := p.leader.add(ctx, "log:\n  level: debug\n"); err != nil {
		return err
	}
	if _, err := p.leader.Exec(ctx, "systemctl", "reload", service); err != nil {
		return err
	}
	err = r.await(ctx, "line at debug in the journal", func(ctx context.Context) error {
		lines, err := p.leader.journal(ctx, service, "_SYSTEMD_INVOCATION_ID="+before.Invocation, "PRIORITY=7")
		if err == nil && len(lines) == 0 {
			err = errors.New("none")
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := p.leader.Exec(ctx, "sed", "-i", "/^log:$/,+1d", settingsFile); err != nil {
		return err
	}
	if _, err := p.leader.Exec(ctx, "systemctl", "reload", service); err != nil {
		return err
	}
	if err := r.Settles(ctx, p.epoch); err != nil {
		return err
	}
	now, err := r.back(ctx)
	if err != nil {
		return err
	}
	after, err := now.leader.state(ctx, service)
	if err != nil {
		return err
	}
	d.Seen = "lines at debug came and went; the process and its term are the same"
	return expect(after.PID == before.PID && now.epoch == p.epoch, "process %d leads in epoch %d; before it was %d in %d", after.PID, now.epoch, before.PID, p.epoch)
}

// stop stops the leader's unit in order.
func (r *run) stop(ctx context.Context, d *Drill, p pair) error {
	at := time.Now()
	d.fault(at, p.epoch)
	if _, err := p.leader.Exec(ctx, "systemctl", "stop", service); err != nil {
		return err
	}
	took := time.Since(at)
	s, err := p.leader.state(ctx, service)
	if err != nil {
		return err
	}
	if err := expect(s.Active == "inactive" && s.Result == "success" && s.Exited && s.Exit == 0, "after the stop: %v, exit code %d", s, s.Exit); err != nil {
		return err
	}
	if err := r.Settles(ctx, p.epoch+1); err != nil {
		return err
	}
	if _, err := p.leader.Exec(ctx, "systemctl", "start", service); err != nil {
		return err
	}
	d.Seen = fmt.Sprintf("exit code 0 after %s, %s leads", seconds(took), p.standby.Name)
	return r.again(ctx, d, at)
}

// kill kills the leader's process.
func (r *run) kill(ctx context.Context, d *Drill, p pair) error {
	before, err := p.leader.state(ctx, service)
	if err != nil {
		return err
	}
	at, err := r.signalled(ctx, d, faults.SIGKILL, p.leader, service, p.epoch)
	if err != nil {
		return err
	}
	if err := r.Settles(ctx, p.epoch+1); err != nil {
		return err
	}
	if err := r.restarted(ctx, p.leader, before); err != nil {
		return err
	}
	d.Seen = fmt.Sprintf("systemd has restarted %s, which stands by", p.leader.Name)
	return r.again(ctx, d, at)
}

// restarted waits until systemd has started the unit once more, and it stands by.
func (r *run) restarted(ctx context.Context, h *host, before state) error {
	_, err := r.awaitState(ctx, h, service, "restarted unit", func(s state) bool {
		return s.Active == "active" && s.Restarts == before.Restarts+1 && strings.HasPrefix(s.Status, "standby")
	})
	return err
}

// freeze stops the leader's process where it is.
func (r *run) freeze(ctx context.Context, d *Drill, p pair) error {
	before, err := p.leader.state(ctx, service)
	if err != nil {
		return err
	}
	at, err := r.signalled(ctx, d, faults.SIGSTOP, p.leader, service, p.epoch)
	if err != nil {
		return err
	}
	if err := r.Settles(ctx, p.epoch+1); err != nil {
		return err
	}
	s, err := r.awaitState(ctx, p.leader, service, "end by the watchdog", func(s state) bool {
		return s.Result == "watchdog" || s.Restarts > before.Restarts
	})
	if err != nil {
		return err
	}
	dead := time.Since(at)
	if err := r.restarted(ctx, p.leader, before); err != nil {
		return err
	}
	own, err := p.leader.journal(ctx, service, "_SYSTEMD_INVOCATION_ID="+before.Invocation)
	if err != nil {
		return err
	}
	about, err := p.leader.journal(ctx, service, "INVOCATION_ID="+before.Invocation)
	if err != nil {
		return err
	}
	goroutines := 0
	for _, l := range own {
		if strings.HasPrefix(l.Message, "goroutine ") {
			goroutines++
		}
	}
	if err := expect(goroutines > 1 && contains(own, "SIGABRT") && contains(about, "Watchdog timeout"),
		"journal of the frozen one: %d goroutines; the unit is %v", goroutines, s); err != nil {
		return err
	}
	d.Seen = fmt.Sprintf("watchdog after %s, %d goroutines in the journal, restarted as standby", seconds(dead), goroutines)
	return r.again(ctx, d, at)
}

// outage takes PostgreSQL away, and kills the standby again and again meanwhile.
func (r *run) outage(ctx context.Context, d *Drill, p pair) error {
	const most = 6 // restarts; systemd's own limit is five in ten seconds
	leader, err := p.leader.state(ctx, service)
	if err != nil {
		return err
	}
	away := faults.New(faults.PostgresRestartFast, &faults.Target{Group: &rig.Group{Place: r.Place}}, nil, faults.Params{})
	if err := away.Inject(ctx); err != nil {
		return err
	}
	killed := map[int]bool{}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(r.opts.Outage); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		s, err := p.standby.state(ctx, service)
		if err != nil {
			return err
		}
		if err := expect(s.Active == "active" || s.Active == "activating", "the standby's unit is %v", s); err != nil {
			return err
		}
		if s.PID != 0 && !killed[s.PID] && len(killed) < most {
			if _, err := p.standby.signal(ctx, service, syscall.SIGKILL); err != nil {
				return err
			}
			killed[s.PID] = true
		}
	}
	now, err := p.leader.state(ctx, service)
	if err != nil {
		return err
	}
	if err := expect(now.PID == leader.PID && now.Active == "active", "the unit that was left alone is %v", now); err != nil {
		return err
	}
	if err := away.Heal(ctx); err != nil {
		return err
	}
	err = r.await(ctx, "connection to PostgreSQL", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
		defer cancel()
		return r.Pool.QueryRow(ctx, "select pg_postmaster_start_time()").Scan(&d.server)
	})
	if err != nil {
		return err
	}
	if err := r.Settles(ctx, p.epoch); err != nil {
		return err
	}
	if err := r.again(ctx, d, d.server); err != nil {
		return err
	}
	now, err = p.leader.state(ctx, service)
	if err != nil {
		return err
	}
	d.Seen = fmt.Sprintf("%s away; one unit never ended, the other was killed %d times meanwhile and was always started again", seconds(r.opts.Outage), len(killed))
	return expect(now.PID == leader.PID, "the unit that was left alone was restarted: %v", now)
}

// shutdown shuts the leader's machine down and boots it again.
func (r *run) shutdown(ctx context.Context, d *Drill, p pair) error {
	at := time.Now()
	d.fault(at, p.epoch)
	if err := p.leader.PowerOff(ctx); err != nil {
		return err
	}
	off := time.Since(at)
	if err := r.Settles(ctx, p.epoch+1); err != nil {
		return err
	}
	if err := p.leader.Start(ctx); err != nil {
		return err
	}
	if err := r.again(ctx, d, at); err != nil {
		return err
	}
	lines, err := p.leader.journal(ctx, service, "--boot=-1")
	if err != nil {
		return err
	}
	d.Seen = fmt.Sprintf("off after %s; the unit came back with the machine, as standby", seconds(off))
	return expect(contains(lines, "Deactivated successfully"), "journal of the boot before: no orderly end of the unit in %d lines", len(lines))
}

// dark takes the leader's machine away without a word to anybody, and boots it again.
func (r *run) dark(ctx context.Context, d *Drill, p pair) error {
	at := time.Now()
	d.fault(at, p.epoch)
	if err := p.leader.Cut(); err != nil {
		return err
	}
	if err := r.Settles(ctx, p.epoch+1); err != nil {
		return err
	}
	p.leader.Kill()
	if err := p.leader.Start(ctx); err != nil {
		return err
	}
	d.Seen = "no connection was closed; the unit came back with the machine, as standby"
	return r.again(ctx, d, at)
}
