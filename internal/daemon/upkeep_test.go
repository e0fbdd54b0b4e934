package daemon_test

import (
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

// permit gives the instances' role what a mode of the search projection takes.
func (r *rig) permit(finished string, retention bool) {
	r.t.Helper()
	err := migrations.Grant(r.t.Context(), r.url, r.runner.Username(), migrations.Mode{Table: outboxTable, Finished: finished, Retention: retention},
		migrations.Mode{Table: "chronicle_outbox_events", Retention: retention})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) number(sql string) (n int) {
	r.t.Helper()
	r.scan(sql, nil, &n)
	return n
}

// TestFinishedEventsAreArchived by an instance with the least rights: from the first one on,
// since it makes the days that it needs before it leads; what failed stays.
func TestFinishedEventsAreArchived(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.permit("archive", false)
	all := documents(500, 50)
	bad := all[250].key
	r.write(all...)
	r.exec("update search_index set rank_score = 1e300 where entity_id = $1", &bad.ID)
	a := r.start("a", "OUTBOX_FINISHED=search_index_to_elastic=archive")
	r.await(map[string]int{"failed": 1})
	if n := r.number("select count(*) from search_outbox_history where status = 'done' and processed_at > now() - interval '1 minute'"); n != 499 {
		t.Errorf("history: got %d events, want 499", n)
	}
	if n := r.number("select count(*) from weft_history_partitions('search_outbox_events')"); n != 8 {
		t.Errorf("days of the history: got %d, want today and a week", n)
	}
	if n := r.number("select count(*) from weft_history_partitions('chronicle_outbox_events')"); n != 0 {
		t.Errorf("days of the history of a projection that keeps: got %d, want none", n)
	}
	if got := a.metric("weft_finished_kept_total") + a.metric("weft_history_missing_partitions"); got != 0 {
		t.Errorf("batches kept and days missing: got %v, want 0", got)
	}
	testenv.Eventually(t, func() bool { return a.metric("weft_upkeep_runs_total", `task="days"`, `result="ok"`) >= 1 }, "the leader has looked after its days")
	if got := a.metric("weft_upkeep_runs_total", `result="failed"`); got != 0 {
		t.Errorf("failed upkeep: got %v, want 0", got)
	}

	// A standby makes them, too, and harms nobody: all but today's are gone when it starts, and somebody has laid out a part
	// of another, of which it makes the rest.
	r.exec(`do $$ declare p text; begin
		for p in select name from weft_history_partitions('search_outbox_events') where from_time > now() loop execute 'drop table ' || p; end loop;
		execute format('create table by_hand partition of search_outbox_history for values from (%L) to (%L)',
			((now() at time zone 'UTC')::date + 3) || ' 00:00Z', ((now() at time zone 'UTC')::date + 3) || ' 18:00Z'); end $$`)
	r.start("b", "OUTBOX_FINISHED=search_index_to_elastic=archive").awaitReady(200, "standby")
	if n := r.number("select count(*) from weft_history_partitions('search_outbox_events')"); n != 9 {
		t.Errorf("days after the standby has come: got %d, want 8, one of them in two parts", n)
	}
}

// TestFinishedEventsAreDeleted, those of the projection alone that says so.
func TestFinishedEventsAreDeleted(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.permit("delete", false)
	r.write(documents(300, 50)...)
	r.start("a", "OUTBOX_FINISHED=search_index_to_elastic=delete")
	r.await(map[string]int{})
	if n := r.number("select count(*) from search_outbox_history"); n != 0 {
		t.Errorf("history: got %d events, want none", n)
	}
}

// TestAnInstanceWithoutTheRightsOfItsModeDoesNotCampaign, and says what to grant; a table
// that cannot be archived is named, too.
func TestAnInstanceWithoutTheRightsOfItsModeDoesNotCampaign(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env    []string
		permit string
		sql    string
		want   string
	}{
		"Archive": {env: []string{"OUTBOX_FINISHED=archive"}, want: "lacks delete on search_outbox_events, insert on search_outbox_history"},
		"Delete":  {env: []string{"OUTBOX_FINISHED=delete"}, want: "lacks delete on search_outbox_events, delete on chronicle_outbox_events"},
		"Retain":  {env: []string{"OUTBOX_RETENTION=24h"}, want: "execute on weft_history_drop(text, text)"},
		"Shape": {env: []string{"OUTBOX_FINISHED=search_index_to_elastic=archive"}, permit: "archive",
			sql: "alter table search_outbox_events enable row level security", want: "cannot archive finished events: it has row security"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			if tc.permit != "" {
				r.permit(tc.permit, false)
			}
			if tc.sql != "" {
				r.exec(tc.sql)
			}
			err := r.startError(r.config("a", tc.env...))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if n := r.number("select count(*) from weft_leader"); n != 0 {
				t.Errorf("leaders: got %d, want none", n)
			}
		})
	}
}

// startError runs an instance that ends by itself.
func (r *rig) startError(cfg config.Config) error {
	r.t.Helper()
	tel, err := telemetry.New(&logs{}, telemetry.Options{Level: "debug", Group: r.group, Instance: cfg.Instance, Env: "test"})
	if err != nil {
		r.t.Fatal(err)
	}
	return daemon.Run(r.t.Context(), cfg, tel, "test", daemon.Reload{})
}
