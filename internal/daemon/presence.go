package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	// A standby whose pool has got no connection for unreachedLimit, at two tries at least, is not ready.
	unreachedLimit = 5 * time.Second
	pingTimeout    = 2 * time.Second
)

// presence announces an instance.
type presence struct {
	*daemon
	self    leader.Instance
	at      time.Time // of the last announcement
	last    time.Duration
	faulty  bool
	twin    bool // has been named
	silence outbox.Silence
}

// announce writes the presence of this instance regularly and after each change of its role,
// and withdraws it at the end.
func (d *daemon) announce(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	p := &presence{daemon: d, self: leader.Instance{Group: d.cfg.Group, Name: d.cfg.Instance, Version: d.Version, Host: host, PID: os.Getpid()}}
	if d.server != nil {
		p.self.HTTPAddr = d.server.AddrAt(host)
	}
	if d.desk != nil {
		p.self.DeskURL = d.desk.URL(host)
	}
	err = every(ctx, watchEvery, p.step)
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	if err := leader.Withdraw(bye, d.pool, p.self); err != nil {
		d.log.Warn("presence not withdrawn", zap.String("event", "presence.fault"), d.because(err))
	}
	return err
}

// step announces the instance when it is time, or its role has changed.
func (p *presence) step(ctx context.Context) {
	role := p.elector.Status().Role
	if role == p.self.Role && time.Since(p.at) < leader.AnnounceEvery {
		return
	}
	p.self.Role, p.at, p.self.Uptime = role, time.Now(), time.Since(p.started)
	twin, err := leader.Announce(ctx, p.pool, p.self, p.last)
	p.last = p.self.Uptime
	if err != nil {
		p.last = 0 // the row may be written all the same
	}
	if err != nil && ctx.Err() == nil && !p.faulty {
		p.log.Warn("presence not recorded", zap.String("event", "presence.fault"), p.because(err))
	}
	p.faulty = err != nil
	if twin != nil && !p.twin {
		p.log.Warn("another process runs under the name of this instance; give each a WEFT_INSTANCE of its own",
			zap.String("event", "presence.twin"), zap.String("host", p.self.Host), zap.Int("pid", p.self.PID),
			zap.Time("started_at", time.Now().Add(-p.self.Uptime)), zap.Stringer("twin", *twin))
	}
	p.twin = twin != nil
	p.noteReach(ctx, err)
}

// unreached is why the pool has got no connection, or none that takes writes.
type unreached struct {
	err      error
	long     bool // for longer than unreachedLimit, or since the announcement before
	readOnly bool
}

// cutOff reports whether an instance in a role is not ready because its pool gets no connection. It takes a
// while until a standby is, and a connection until it is ready again. A leader is told by its pipelines, which
// may need all connections; it stays not ready where it won the lock so.
func (d *daemon) cutOff(u unreached, role admin.Role) bool {
	usable := d.Health.Report().Dependencies[postgresName].OK
	if role == admin.Leader {
		return u.readOnly || u.long && !usable
	}
	return u.long || !usable
}

// noteReach notes whether the pool gets a connection that takes writes, after an announcement has ended so.
func (p *presence) noteReach(ctx context.Context, err error) {
	if errors.Is(err, leader.ErrReadOnly) {
		ctx, cancel := context.WithTimeout(ctx, pingTimeout)
		defer cancel()
		_ = p.silence.After(nil, 0) // it has answered
		last := p.unreached.Load()
		p.unreached.Store(&unreached{cmp.Or(postgres.CheckWritable(ctx, p.pool), err), last != nil && last.readOnly, true})
		return
	}
	if outbox.Unreachable(err) {
		ctx, cancel := context.WithTimeout(ctx, pingTimeout)
		defer cancel()
		err = p.pool.Ping(ctx) // the call may have waited for a lock on its table
	}
	silent := p.silence.After(err, unreachedLimit)
	if !outbox.Unreachable(err) {
		p.unreached.Store(nil)
		return
	}
	p.unreached.Store(&unreached{err, silent != nil, false})
}
