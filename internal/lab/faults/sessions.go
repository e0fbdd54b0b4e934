package faults

import "context"

// TerminateLock names the fault that ends the leader's lock session.
const TerminateLock = "terminate-lock"

func sessions() []Fault {
	return []Fault{
		{
			Name: TerminateLock, About: "the server ends the leader's lock session",
			Measure: Takeover, Share: 2, OneShard: true, Inject: endSessions("lock"),
		},
		{
			Name: "terminate-pool", About: "the server ends all of an instance's sessions but the lock session",
			Share: 1, Aimed: true, Inject: endSessions("work"),
		},
		{
			Name: "terminate-all", About: "the server ends all sessions of the leader",
			Measure: Takeover, Share: 1, OneShard: true, Inject: endSessions("%"),
		},
	}
}

// endSessions is pg_terminate_backend of a member's sessions of this kind.
func endSessions(kind string) func(context.Context, *Injection) error {
	return func(ctx context.Context, i *Injection) error {
		pattern := "weft/" + i.Group.Group + "/" + i.Member.Name + "/" + kind
		var n int
		err := i.Row(ctx, "end sessions", `
select count(*) from (select pg_terminate_backend(pid) from pg_stat_activity where application_name like $1 and datname = current_database()) t`,
			pattern).Scan(&n)
		if err == nil && n == 0 {
			err = Skip("no session is named " + pattern)
		}
		return err
	}
}
