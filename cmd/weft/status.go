package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

// status is the JSON form of weft status. Names and units stay; fields may be added.
type status struct {
	Group   string `json:"group"`
	LockKey int64  `json:"lock_key"`
	// Leader is the running term, null when nobody leads.
	Leader      *leaderStatus      `json:"leader"`
	LastTerm    *termStatus        `json:"last_term"` // null when the group never had a leader
	Lock        lockStatus         `json:"lock"`
	Instances   []instanceStatus   `json:"instances"`
	Projections []projectionStatus `json:"projections"`
}

type leaderStatus struct {
	Instance          string    `json:"instance"`
	Epoch             int64     `json:"epoch"`
	Since             time.Time `json:"since"`
	HeartbeatAgeSecs  float64   `json:"heartbeat_age_seconds"`
	ApplicationOfLock string    `json:"application_name"`

	Resign *resignStatus `json:"resign"` // it was asked to hand over; null when it was not
}

type resignStatus struct {
	By      string    `json:"by"`
	Why     string    `json:"why"`
	AskedAt time.Time `json:"asked_at"`
}

type termStatus struct {
	Instance   string     `json:"instance"`
	Epoch      int64      `json:"epoch"`
	AcquiredAt time.Time  `json:"acquired_at"`
	RenewedAt  time.Time  `json:"renewed_at"`
	ReleasedAt *time.Time `json:"released_at"`
}

type lockStatus struct {
	Held        bool   `json:"held"`
	PID         int32  `json:"pid"`
	Application string `json:"application_name"`
	User        string `json:"user"`
	OfTerm      bool   `json:"of_term"` // held by the session that the epoch was given to
}

type instanceStatus struct {
	Name       string    `json:"name"`
	Role       string    `json:"role"`
	Host       string    `json:"host"`
	PID        int       `json:"pid"`
	Version    string    `json:"version"`
	HTTPAddr   string    `json:"http_addr"`
	StartedAt  time.Time `json:"started_at"`
	SeenAt     time.Time `json:"seen_at"`
	SeenAgo    float64   `json:"seen_seconds_ago"`
	UptimeSecs float64   `json:"uptime_seconds"`
}

type projectionStatus struct {
	Projection   string     `json:"projection"`
	Table        string     `json:"table"`
	Pending      int64      `json:"pending"`    // ready, and not in flight
	Retrying     int64      `json:"retrying"`   // waiting for their retry time, or put off
	Processing   int64      `json:"processing"` // in flight, or claimed by another worker
	Failed       int64      `json:"failed"`     // without those that were discarded
	Discarded    int64      `json:"discarded"`  // in failed, and discarded
	Stuck        int64      `json:"stuck"`
	DoneEstimate int64      `json:"done_estimate"`
	Lag          int64      `json:"lag_events"`
	OldestSecs   float64    `json:"oldest_age_seconds"`
	NextRetryAt  *time.Time `json:"next_retry_at"`
	LastSettleAt *time.Time `json:"last_settle_at"`

	InFlight        int64   `json:"in_flight"` // leased by the leader
	Batches         int     `json:"batches"`
	OldestBatchSecs float64 `json:"oldest_batch_age_seconds"`
	PutOff          int64   `json:"put_off"`       // of retrying: behind an earlier event of their entity
	Foreign         int64   `json:"other_workers"` // of processing: claimed by another worker or an older build

	Pause *pauseStatus `json:"pause"` // null unless somebody has paused the projection

	// VersionAhead is the alarm of the last day that documents are newer than their source
	// rows; null when there was none.
	VersionAhead *aheadStatus `json:"version_ahead"`

	Rebuild *rebuildStatus `json:"rebuild"` // that goes on, or whose old index is kept; null without one

	now time.Time // database clock
}

type aheadStatus struct {
	Writes   int       `json:"refused_writes"`
	FirstAt  time.Time `json:"first_at"`
	LastAt   time.Time `json:"last_at"`
	Entities []string  `json:"entities"` // the first few of the newest entry
}

func (a *app) statusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show who leads and how far the projections are",
		Long: `Show who leads, which instances were seen, and the state of every projection, as the
database has it. Works from any host. Exits 1 when nobody leads.

One instance leads. One that was killed or cut off while it led is lost until it has been
silent for seven seconds; then it is gone, as every instance that is silent for so long.

READY events may go; WAITING ones have a retry time, and PUT OFF ones stand behind an
earlier event of their entity. IN FLIGHT events are leased by the leader, with the
number of batches and the age of the oldest. OTHERS are claimed by another worker or an
older build of weft. STUCK events have been in flight for longer than --max-processing,
or are claimed by a worker whose lease has ended. Done events are an estimate of the server's
statistics, marked with ~.

An entity that is tried in requests of its own shows in the leader's metric
weft_isolated_entities only.`,
		Example: `  weft status
  weft status --json | jq .projections`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.reading(cmd, func(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) error {
				st, err := readStatus(ctx, cfg, pool)
				if err != nil {
					return err
				}
				err = a.show(asJSON, st, st.write)
				if err == nil && st.Leader == nil {
					err = &exitError{exitBad, "nobody leads group " + st.Group + ": start `weft run`, or look at the log of the instances"}
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	databaseFlags(cmd, "group", "projections", "outbox.max_processing")
	return cmd
}

func readStatus(ctx context.Context, cfg config.Config, pool *pgxpool.Pool) (status, error) {
	ctx, cancel := context.WithTimeout(ctx, max(30*time.Second, 3*cfg.Database.Timeout))
	defer cancel()
	state, err := leader.ReadState(ctx, pool, cfg.Group)
	if err != nil {
		return status{}, err
	}
	seen, err := leader.Instances(ctx, pool, cfg.Group)
	if err != nil {
		return status{}, err
	}
	st := electionStatus(state, seen)
	for _, name := range cfg.Projections {
		table := cfg.Registry().Table(name)
		p, err := readProjection(ctx, pool, name, table, cfg)
		if err != nil {
			return status{}, err
		}
		st.Projections = append(st.Projections, p)
	}
	return st, nil
}

func readProjection(ctx context.Context, pool *pgxpool.Pool, name, table string, cfg config.Config) (projectionStatus, error) {
	store, err := outbox.OpenStore(ctx, pool, outbox.StoreConfig{
		Table: table, Projection: name, Group: cfg.Group, Owner: "status", Lease: time.Second, Timeout: cfg.Database.Timeout,
	})
	if err != nil {
		return projectionStatus{}, err
	}
	s, err := store.Stats(ctx, cfg.Outbox.MaxProcessing)
	if err != nil {
		return projectionStatus{}, err
	}
	f, err := store.Flight(ctx)
	if err != nil {
		return projectionStatus{}, err
	}
	alarms, err := outbox.ReadAudit(ctx, pool, outbox.AuditFilter{
		Action: projections.ActionVersionAhead, Projection: name, Since: s.Now.Add(-aheadFor), Limit: aheadMost}, cfg.Database.Timeout)
	if err != nil {
		return projectionStatus{}, err
	}
	rebuild, err := outbox.ReadRebuild(ctx, pool, name, cfg.Database.Timeout)
	if err != nil {
		return projectionStatus{}, err
	}
	var rebuilding *rebuildStatus
	if !rebuild.Phase.Ended() || rebuild.OldIndex != "" || rebuild.Phase == outbox.RebuildFailed {
		r := rebuildStatusOf(name, rebuild)
		rebuilding = &r
	}
	pause, err := store.Paused(ctx)
	if err != nil {
		return projectionStatus{}, err
	}
	return projectionStatus{
		Projection: name, Table: table, Pending: s.Pending, Retrying: s.Retrying, Processing: s.Processing,
		Failed: s.Failed, Discarded: s.Discarded, Stuck: s.Stuck, DoneEstimate: s.DoneEstimate, Lag: s.Lag(),
		OldestSecs: s.Oldest.Seconds(), NextRetryAt: utc(s.NextRetry), LastSettleAt: utc(s.LastSettle), now: s.Now,
		InFlight: f.Events, Batches: f.Batches, OldestBatchSecs: f.OldestBatch.Seconds(), PutOff: f.PutOff, Foreign: f.Foreign,
		Pause: describePause(pause), VersionAhead: versionAhead(alarms), Rebuild: rebuilding,
	}, nil
}

const (
	// aheadFor is how long the alarm of documents newer than their source rows is shown.
	aheadFor = 24 * time.Hour
	// aheadMost bounds the entries that are read: a term writes one an hour.
	aheadMost = 100
)

// versionAhead sums up the entries of the audit, the newest first.
func versionAhead(alarms []outbox.AuditEntry) *aheadStatus {
	var out *aheadStatus
	for _, e := range alarms {
		var d projections.AheadDetail
		if json.Unmarshal(e.Detail, &d) != nil || d.LastAt.IsZero() { // written by hand
			d.LastAt = e.At
		}
		if out == nil {
			out = &aheadStatus{LastAt: d.LastAt.UTC(), Entities: append([]string{}, d.Entities...)}
		}
		out.Writes += e.Count
		out.FirstAt = e.At.UTC()
	}
	return out
}

func electionStatus(s leader.State, seen []leader.Instance) status {
	st := status{
		Group: s.Group, LockKey: s.Key,
		Lock:      lockStatus{Held: s.LockHeld, PID: s.LockPID, Application: s.LockApp, User: s.LockUser, OfTerm: s.LockMatches},
		Instances: []instanceStatus{}, Projections: []projectionStatus{},
	}
	if s.Epoch > 0 {
		st.LastTerm = &termStatus{Instance: s.Instance, Epoch: s.Epoch, AcquiredAt: s.AcquiredAt.UTC(),
			RenewedAt: s.RenewedAt.UTC(), ReleasedAt: utc(s.ReleasedAt)}
	}
	if s.Led() {
		st.Leader = &leaderStatus{Instance: s.Instance, Epoch: s.Epoch, Since: s.AcquiredAt.UTC(),
			HeartbeatAgeSecs: s.RenewedAgo.Seconds(), ApplicationOfLock: s.LockApp}
		if r := s.Request; r != nil {
			st.Leader.Resign = &resignStatus{By: r.By, Why: r.Why, AskedAt: r.AskedAt.UTC()}
		}
	}
	for _, i := range seen {
		role := roleNow(i, s)
		st.Instances = append(st.Instances, instanceStatus{
			Name: i.Name, Role: role, Host: i.Host, PID: i.PID, Version: i.Version, HTTPAddr: i.HTTPAddr,
			StartedAt: i.StartedAt.UTC(), SeenAt: i.SeenAt.UTC(), SeenAgo: i.SeenAgo.Seconds(), UptimeSecs: i.Uptime.Seconds(),
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
	case i.SeenAgo > goneAfter:
		return "gone"
	case said && !leads:
		return "lost"
	case leads && i.Role == leader.RoleStandby:
		return string(leader.RoleLeader)
	default:
		return string(i.Role)
	}
}

// goneAfter is how long an instance may be silent; it reports every two seconds.
const goneAfter = 7 * time.Second
