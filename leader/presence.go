package leader

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// AnnounceEvery is how often an instance announces itself at least.
const AnnounceEvery = 2 * time.Second

// Process is an operating system's process.
type Process struct {
	Host      string    `json:"host"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"started_at"` // database clock
}

// String implements fmt.Stringer.
func (p Process) String() string {
	return fmt.Sprintf("pid %d on %s, started at %s", p.PID, p.Host, p.StartedAt.UTC().Format(time.RFC3339))
}

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
	Twin      *Process // another process that announces itself under the same name; nil without one
}

// Process returns the process that the instance was last announced by.
func (in Instance) Process() Process { return Process{in.Host, in.PID, in.StartedAt} }

// SeenWithin reports whether the instance was seen within d. The database clock may have stepped back
// since: then an instance that lives announces itself again before AnnounceEvery has passed.
func (in Instance) SeenWithin(d time.Duration) bool {
	return in.SeenAgo <= d && in.SeenAgo >= -AnnounceEvery
}

// forgetAfter is how long the row of a process that vanished is kept.
const forgetAfter = 24 * time.Hour

// announceSQL writes the row of an instance. A row that this process did not write last has another uptime than $11,
// that of its last announcement: another process lives under the name. A row from well before that announcement does not
// count, because a server that has crashed may have lost it; nor does a process that is about to stop, because its
// successor may have started already.
const announceSQL = `
with forgotten as (
    delete from weft_instance
     where group_name = $1 and instance <> $2 and seen_at < now() - make_interval(secs => $9)
)
insert into weft_instance as w (group_name, instance, role, version, host, pid, http_addr, desk_url, started_at, seen_at)
values ($1, $2, $3, $4, $5, $6, nullif($7, ''), nullif($10, ''), now() - make_interval(secs => $8), now())
on conflict (group_name, instance) do update
   set role = excluded.role, version = excluded.version, host = excluded.host, pid = excluded.pid,
       http_addr = excluded.http_addr, desk_url = excluded.desk_url, started_at = excluded.started_at, seen_at = excluded.seen_at,
       twin = case
              when $11::float8 = 0 then null
              when w.seen_at - w.started_at <> make_interval(secs => $11) then
                   case when w.seen_at > now() - make_interval(secs => $8 - $11) - interval '1 s'
                             and w.role in ('leader', 'standby') and excluded.role in ('leader', 'standby')
                   then jsonb_build_object('host', w.host, 'pid', w.pid, 'started_at', w.started_at, 'seen_at', excluded.seen_at)
                   end
              when (w.twin ->> 'seen_at')::timestamptz between excluded.seen_at - interval '10 s' and excluded.seen_at
              then w.twin
              end
returning twin`

// Announce records that in is alive now, and forgets instances of its group that were not seen for 24 hours. Last is
// the uptime in the last call of this process, or 0 where there was none or it has failed. Announce returns another
// process that has announced itself under the same name since, or nil. The call takes at most 5 s.
func Announce(ctx context.Context, db DB, in Instance, last time.Duration) (twin *Process, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err = db.QueryRow(ctx, announceSQL, in.Group, in.Name, string(in.Role), in.Version, in.Host, in.PID, in.HTTPAddr,
		in.Uptime.Seconds(), forgetAfter.Seconds(), in.DeskURL, last.Seconds()).Scan(&twin)
	if err != nil {
		return nil, fmt.Errorf("announce instance: %w", diagnose(err))
	}
	return twin, nil
}

// Withdraw removes the row of an instance that exits cleanly, unless another process has announced itself under its
// name since. The call takes at most 5 s.
func Withdraw(ctx context.Context, db DB, in Instance) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	_, err := db.Exec(ctx, `delete from weft_instance where group_name = $1 and instance = $2 and host = $3 and pid = $4`,
		in.Group, in.Name, in.Host, in.PID)
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
		       extract(epoch from clock_timestamp() - seen_at)::float8,
		       case when seen_at > clock_timestamp() - interval '10 s' then nullif(to_jsonb(weft_instance) -> 'twin', 'null') end -- version 6 of the schema has none
		  from weft_instance where group_name = $1 order by instance`, group)
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", diagnose(err))
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Instance, error) {
		var in Instance
		var up, ago float64
		err := row.Scan(&in.Group, &in.Name, &in.Role, &in.Version, &in.Host, &in.PID, &in.HTTPAddr, &in.DeskURL,
			&in.StartedAt, &in.SeenAt, &up, &ago, &in.Twin)
		in.Uptime = time.Duration(up * float64(time.Second))
		in.SeenAgo = time.Duration(ago * float64(time.Second))
		return in, err
	})
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", diagnose(err))
	}
	return list, nil
}
