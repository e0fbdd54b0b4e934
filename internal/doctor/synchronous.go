package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
)

// replicas is what the server says of the replicas that commits wait for. Which state one has, only some roles may see.
const replicas = `
select current_setting('synchronous_standby_names'), count(r.pid), count(*) filter (where r.state = 'streaming' and r.sync_state <> 'async'),
       count(r.pid) filter (where r.state is null), quote_ident(session_user)
from (select 1) one left join pg_stat_replication r on true`

// counted finds the number of replicas in synchronous_standby_names, as in ANY 1 (a, b).
var counted = regexp.MustCompile(`(?i)^\s*(?:first\s+|any\s+)?(\d+)\s*\(`)

// synchronous tells of commits that no replica answers. The lock session has synchronous_commit on, whatever the role says.
func (e *examination) synchronous(ctx context.Context) error {
	var names, role string
	var connected, answering, hidden int
	err := e.Pool.QueryRow(ctx, replicas).Scan(&names, &connected, &answering, &hidden, &role)
	if err != nil || names == "" {
		return err
	}
	wanted := 1
	if m := counted.FindStringSubmatch(names); m != nil {
		if wanted, err = strconv.Atoi(m[1]); err != nil {
			return err
		}
	}
	switch {
	case connected >= wanted && hidden > 0:
		e.add("postgres.synchronous", Note, "synchronous_standby_names", fmt.Sprintf("commits wait for %d of its replicas (%s), and the role may not see whether they answer", wanted, names),
			"grant pg_read_all_stats to "+role+";")
	case answering < wanted:
		e.add("postgres.synchronous", Error, "synchronous_standby_names", fmt.Sprintf("commits wait for %d of its replicas (%s), and %d answer: nobody can lead, and producers hang", wanted, names, answering),
			"start the replica, with an application_name that is among them; where it is gone for good: alter system set synchronous_standby_names = ''; select pg_reload_conf();")
	}
	return nil
}
