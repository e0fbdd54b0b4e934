package records

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

// Scope is the group and the tables that are read.
type Scope struct {
	Group         string
	Tables        []Table
	Timeout       time.Duration // of one statement
	MaxProcessing time.Duration // an event that is in flight for longer is stuck
	Most          int           // rows of each kind that are counted; 0 for all
}

// Table is the outbox table of a projection.
type Table struct{ Projection, Name string }

// ReadStatus reads who leads and how far each projection is.
func ReadStatus(ctx context.Context, db outbox.DB, sc Scope) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, max(30*time.Second, 3*sc.Timeout))
	defer cancel()
	st, err := ReadElection(ctx, db, sc.Group)
	if err != nil {
		return Status{}, err
	}
	for _, t := range sc.Tables {
		p, err := readProjection(ctx, db, t, sc)
		if err != nil {
			return Status{}, err
		}
		st.Projections = append(st.Projections, p)
	}
	return st, nil
}

func readProjection(ctx context.Context, db outbox.DB, t Table, sc Scope) (Projection, error) {
	store, err := openStore(ctx, db, sc, t)
	if err != nil {
		return Projection{}, err
	}
	s, err := store.Stats(ctx, sc.MaxProcessing, sc.Most)
	if err != nil {
		return Projection{}, err
	}
	alarms, err := outbox.ReadAudit(ctx, db, outbox.AuditFilter{
		Action: projections.ActionVersionAhead, Projection: t.Projection, Since: s.Now.Add(-aheadFor), Limit: aheadMost}, sc.Timeout)
	if err != nil {
		return Projection{}, err
	}
	rebuild, err := outbox.ReadRebuild(ctx, db, t.Projection, sc.Timeout)
	if err != nil {
		return Projection{}, err
	}
	var rebuilding *Rebuild
	if !rebuild.Phase.Ended() || rebuild.OldIndex != "" || rebuild.Phase == outbox.RebuildFailed {
		r := DescribeRebuild(t.Projection, rebuild)
		rebuilding = &r
	}
	holds, quarantined, err := store.Holds(ctx)
	if err != nil {
		return Projection{}, err
	}
	waiting, err := store.QuarantinedEvents(ctx, quarantined)
	if err != nil {
		return Projection{}, err
	}
	nameless, err := readNameless(ctx, store)
	if err != nil {
		return Projection{}, err
	}
	return Projection{
		Projection: t.Projection, Table: t.Name, Capped: s.Capped, Most: sc.Most, Pending: s.Pending, Retrying: s.Retrying, Processing: s.Processing,
		Failed: s.Failed, Discarded: s.Discarded, Stuck: s.Stuck, DoneEstimate: s.DoneEstimate, Lag: s.Lag(),
		OldestSecs: s.Oldest.Seconds(), NextRetryAt: UTC(s.NextRetry), LastSettleAt: UTC(s.LastSettle), Now: s.Now,
		InFlight: s.InFlight, Batches: s.Batches, OldestBatchSecs: s.OldestBatch.Seconds(), PutOff: s.PutOff, Foreign: s.Foreign,
		Pause: DescribePause(holds.Pause), Throttle: DescribeThrottle(holds.Throttle), Quarantine: DescribeQuarantines(holds.Quarantines), Quarantined: waiting,
		VersionAhead: versionAhead(alarms), Nameless: nameless, Rebuild: rebuilding,
	}, nil
}

const (
	mostNameless  = 1000 // that are counted
	namedNameless = 10
)

// ReadNameless reads which events of a table nothing can carry; nil without any.
func ReadNameless(ctx context.Context, db outbox.DB, sc Scope, t Table) (*Nameless, error) {
	store, err := openStore(ctx, db, sc, t)
	if err != nil {
		return nil, err
	}
	return readNameless(ctx, store)
}

func readNameless(ctx context.Context, store *outbox.Store) (*Nameless, error) {
	found, err := store.Nameless(ctx, mostNameless)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	out := &Nameless{Events: len(found)}
	for _, id := range found[:min(len(found), namedNameless)] {
		out.IDs = append(out.IDs, id.String())
	}
	return out, nil
}

// openStore returns a store to read with.
func openStore(ctx context.Context, db outbox.DB, sc Scope, t Table) (*outbox.Store, error) {
	return outbox.OpenStore(ctx, db, outbox.StoreConfig{
		Table: t.Name, Projection: t.Projection, Group: sc.Group, Owner: "status", Lease: time.Second, Timeout: sc.Timeout,
	})
}

const (
	// aheadFor is how long the alarm of documents newer than their source rows is shown.
	aheadFor = 24 * time.Hour
	// aheadMost bounds the entries that are read: a term writes one an hour.
	aheadMost = 100
)

// versionAhead sums up the entries of the audit, the newest first.
func versionAhead(alarms []outbox.AuditEntry) *Ahead {
	var out *Ahead
	for _, e := range alarms {
		var d projections.AheadDetail
		if json.Unmarshal(e.Detail, &d) != nil || d.LastAt.IsZero() { // written by hand
			d.LastAt = e.At
		}
		if out == nil {
			out = &Ahead{LastAt: d.LastAt.UTC(), Entities: append([]string{}, d.Entities...)}
		}
		out.Writes += e.Count
		out.FirstAt = e.At.UTC()
	}
	return out
}

// ReadElection reads who leads a group, and its instances.
func ReadElection(ctx context.Context, db outbox.DB, group string) (Status, error) {
	state, err := leader.ReadState(ctx, db, group)
	if err != nil {
		return Status{}, err
	}
	seen, err := leader.Instances(ctx, db, group)
	if err != nil {
		return Status{}, err
	}
	return ElectionStatus(state, seen), nil
}

// ElectionStatus describes the election and the instances that were seen.
func ElectionStatus(s leader.State, seen []leader.Instance) Status {
	st := Status{
		Group: s.Group, LockKey: s.Key,
		Lock:      Lock{Held: s.LockHeld, PID: s.LockPID, Application: s.LockApp, User: s.LockUser, OfTerm: s.LockMatches, Elsewhere: s.LockElsewhere},
		Instances: []Instance{}, Projections: []Projection{},
	}
	if s.Epoch > 0 {
		st.LastTerm = &Term{Instance: s.Instance, Epoch: s.Epoch, AcquiredAt: s.AcquiredAt.UTC(),
			RenewedAt: s.RenewedAt.UTC(), ReleasedAt: UTC(s.ReleasedAt)}
	}
	if s.Led() {
		st.Leader = &Leader{Instance: s.Instance, Epoch: s.Epoch, Since: s.AcquiredAt.UTC(),
			HeartbeatAgeSecs: s.RenewedAgo.Seconds(), ApplicationOfLock: s.LockApp}
		if r := s.Request; r != nil {
			st.Leader.Resign = &Resign{By: r.By, Why: r.Why, AskedAt: r.AskedAt.UTC()}
		}
	}
	for _, i := range seen {
		role := roleNow(i, s)
		st.Instances = append(st.Instances, Instance{
			Name: i.Name, Role: role, Host: i.Host, PID: i.PID, Version: i.Version, HTTPAddr: i.HTTPAddr, DeskURL: i.DeskURL,
			StartedAt: i.StartedAt.UTC(), SeenAt: i.SeenAt.UTC(), SeenAgo: i.SeenAgo.Seconds(), UptimeSecs: i.Uptime.Seconds(),
			Twin: i.Twin,
		})
	}
	return st
}

// roleNow is the role that an instance has by the election. What it last said of itself may be
// older than the term: a leader that was killed said that it leads.
func roleNow(i leader.Instance, s leader.State) string {
	leads := s.Led() && i.Name == s.Instance
	said := i.Role == leader.RoleLeader || i.Role == leader.RoleDraining
	switch {
	case !i.SeenWithin(GoneAfter):
		return "gone"
	case said && !leads:
		return "lost"
	case leads && i.Role == leader.RoleStandby:
		return string(leader.RoleLeader)
	default:
		return string(i.Role)
	}
}

// GoneAfter is how long an instance may be silent; it reports every two seconds.
const GoneAfter = 7 * time.Second

// HasStandby reports whether an instance other than holder was seen lately that can take over.
// One that has just handed over may still be on record as draining.
func HasStandby(seen []leader.Instance, holder string) bool {
	return slices.ContainsFunc(seen, func(i leader.Instance) bool {
		return i.Name != holder && i.Role != leader.RoleDisconnected && i.SeenWithin(GoneAfter)
	})
}
