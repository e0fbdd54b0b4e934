package leader

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Instance is one process of a group, for people to see; the election does not use it.
type Instance struct {
	Group    string
	Name     string
	Role     Role
	Version  string // of the program
	Host     string
	PID      int
	HTTPAddr string        // where its health endpoints are; empty when it has none
	DeskURL  string        // of its page; empty when it has none
	Uptime   time.Duration // in: how long it has been running; out: the same by the database clock

	// Set by Instances, database clock.
	StartedAt time.Time
	SeenAt    time.Time
	SeenAgo   time.Duration
}

// forgetAfter is how long the row of a process that vanished is kept.
const forgetAfter = 24 * time.Hour

// Announce records that in is alive now, and forgets instances of its group that were
// not seen for 24 hours. The call takes at most 5 s.
func Announce(ctx context.Context, db DB, in Instance) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	_, err := db.Exec(ctx, `
		with forgotten as (
		    delete from weft_instance
		     where group_name = $1 and instance <> $2 and seen_at < now() - make_interval(secs => $9)
		)
		insert into weft_instance (group_name, instance, role, version, host, pid, http_addr, desk_url, started_at, seen_at)
		values ($1, $2, $3, $4, $5, $6, nullif($7, ''), nullif($10, ''), now() - make_interval(secs => $8), now())
		on conflict (group_name, instance) do update
		   set role = excluded.role, version = excluded.version, host = excluded.host, pid = excluded.pid,
		       http_addr = excluded.http_addr, desk_url = excluded.desk_url, started_at = excluded.started_at, seen_at = excluded.seen_at`,
		in.Group, in.Name, string(in.Role), in.Version, in.Host, in.PID, in.HTTPAddr,
		in.Uptime.Seconds(), forgetAfter.Seconds(), in.DeskURL)
	if err != nil {
		return fmt.Errorf("announce instance: %w", diagnose(err))
	}
	return nil
}

// Withdraw removes the row of an instance that exits cleanly. The call takes at most 5 s.
func Withdraw(ctx context.Context, db DB, group, instance string) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	_, err := db.Exec(ctx, `delete from weft_instance where group_name = $1 and instance = $2`, group, instance)
	if err != nil {
		return fmt.Errorf("withdraw instance: %w", diagnose(err))
	}
	return nil
}

// Instances lists the instances of group by name, also those that vanished without
// Withdraw: SeenAgo tells. The call takes at most 5 s.
func Instances(ctx context.Context, db DB, group string) ([]Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	rows, err := db.Query(ctx, `
		select group_name, instance, role, version, host, pid, coalesce(http_addr, ''), coalesce(desk_url, ''), started_at, seen_at,
		       extract(epoch from clock_timestamp() - started_at)::float8,
		       extract(epoch from clock_timestamp() - seen_at)::float8
		  from weft_instance where group_name = $1 order by instance`, group)
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", diagnose(err))
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Instance, error) {
		var in Instance
		var up, ago float64
		err := row.Scan(&in.Group, &in.Name, &in.Role, &in.Version, &in.Host, &in.PID, &in.HTTPAddr, &in.DeskURL,
			&in.StartedAt, &in.SeenAt, &up, &ago)
		in.Uptime = time.Duration(up * float64(time.Second))
		in.SeenAgo = time.Duration(ago * float64(time.Second))
		return in, err
	})
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", diagnose(err))
	}
	return list, nil
}
