package desk

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	takeoverWait = 30 * time.Second
	takeoverLook = 100 * time.Millisecond
)

// planPause plans the pause of a projection, or its end.
func (s *Server) planPause(ctx context.Context, db outbox.DB, q query) (p plan, err error) {
	table, err := s.table(q)
	if err != nil {
		return p, err
	}
	p.Projection = table.Projection
	holds, err := outbox.ReadHolds(ctx, db, s.o.Scope.Group, p.Projection, s.o.Scope.Timeout)
	if err != nil {
		return p, err
	}
	now := holds.Pause
	p.State = "running"
	if now != nil {
		p.State = inert(now.String()) // what a form may bring back
	}
	switch pausing := q["action"] == "pause"; {
	case pausing && now != nil:
		return p, refuse(http.StatusConflict, "%s is %s", p.Projection, inert(p.State))
	case !pausing && now == nil:
		return p, refuse(http.StatusConflict, "%s is not paused", p.Projection)
	case pausing:
		p.What = p.Projection + ": the leader leases nothing more within a second, and what is in flight settles. Events wait, and none is lost"
	default:
		p.What = p.Projection + ": the leader goes on within a second. It is " + inert(p.State)
	}
	return p, nil
}

// pause pauses or resumes a projection, as weft pause and weft resume do.
func (s *Server) pause(ctx context.Context, p plan, job *Job) (string, error) {
	o := outbox.HoldOrder{Group: s.o.Scope.Group, Projection: p.Projection, By: job.By, Why: job.Why, Kind: outbox.Pause}
	if p.Action == "resume" {
		switch ended, err := outbox.EndHold(ctx, s.o.ActDB, o, s.o.Timeout); {
		case err != nil:
			return "", err
		case ended:
			return "resumed: the leader goes on within a second", nil
		default:
			return "was not paused", nil
		}
	}
	now, begun, err := outbox.BeginHold(ctx, s.o.ActDB, o, s.o.Timeout)
	switch {
	case err != nil:
		return "", err
	case begun:
		return "paused: the leader leases nothing more within a second", nil
	default:
		return "was " + now.String(), nil
	}
}

// planResign plans a hand-over of the running term.
func (s *Server) planResign(ctx context.Context, db outbox.DB, _ query) (p plan, err error) {
	st, err := leader.ReadState(ctx, db, s.o.Scope.Group)
	if err != nil {
		return p, err
	}
	if !st.Led() {
		return p, refuse(http.StatusConflict, "nobody leads group %s: there is nothing to hand over", s.o.Scope.Group)
	}
	seen, err := leader.Instances(ctx, db, s.o.Scope.Group)
	if err != nil {
		return p, err
	}
	if !records.HasStandby(seen, st.Instance) {
		return p, refuse(http.StatusConflict, "no standby was seen in the last %v to take over from %s: start another instance first", records.GoneAfter, inert(st.Instance))
	}
	p.epoch, p.State = st.Epoch, fmt.Sprintf("%s, epoch %d", st.Instance, st.Epoch)
	p.What = fmt.Sprintf("%s, epoch %d, leases nothing more, finishes what is in flight, and stays as a standby; another instance takes over", inert(st.Instance), st.Epoch)
	return p, nil
}

// resign asks the leader to hand over, as weft resign does, and waits for the new term.
func (s *Server) resign(ctx context.Context, p plan, job *Job) (string, error) {
	db, group := s.o.ActDB, s.o.Scope.Group
	asked, err := leader.Resign(ctx, db, group, leader.Resignation{Epoch: p.epoch, By: job.By, Why: job.Why})
	if errors.Is(err, leader.ErrNoTerm) {
		return "", refuse(http.StatusConflict, "that term has ended in the meantime")
	}
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, takeoverWait)
	defer cancel()
	tick := time.NewTicker(takeoverLook)
	defer tick.Stop()
	for {
		if st, err := leader.ReadState(ctx, db, group); err == nil && st.Epoch > p.epoch {
			return fmt.Sprintf("%s leads in epoch %d, %s after the request", st.Instance, st.Epoch, records.Span(st.AcquiredAt.Sub(asked.AskedAt).Seconds())), nil
		}
		select {
		case <-ctx.Done():
			return "the leader was asked; no new term was seen yet. It hands over within its shutdown grace", nil
		case <-tick.C:
		}
	}
}

// levels are those of the log.
func levels() []string { return []string{"debug", "info", "warn", "error"} }

// planLevel plans a change of the log's level on this instance.
func (s *Server) planLevel(_ context.Context, _ outbox.DB, q query) (p plan, err error) {
	if !slices.Contains(levels(), q["level"]) {
		return p, badRequest{fmt.Errorf("level %q: want debug, info, warn or error", q["level"])}
	}
	p.State, p.Fields = s.o.Level.Show(), map[string]string{"level": q["level"]}
	p.What = fmt.Sprintf("instance %s logs from %s on, instead of %s, until the next change or its end", s.o.Instance, q["level"], p.State)
	return p, nil
}

// changeLevel changes the level, once the audit knows it.
func (s *Server) changeLevel(ctx context.Context, p plan, job *Job) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	_, err := s.o.ActDB.Exec(ctx, `
		insert into weft_audit (at, actor, action, why, from_owner, count, detail)
		values (clock_timestamp(), $1, $2, $3, $4, 1, jsonb_build_object('from', $5::text, 'to', $6::text))`,
		job.By, records.ActionLogLevel, job.Why, s.o.Instance, p.State, p.Fields["level"])
	if err != nil {
		return "", fmt.Errorf("audited change of the log level: %w", err)
	}
	if err := s.o.Level.Change(p.Fields["level"], job.By); err != nil {
		return "", err
	}
	return "the level is " + p.Fields["level"], nil
}
