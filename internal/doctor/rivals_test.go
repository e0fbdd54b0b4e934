package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/leader"
)

// Two processes that run under one name are named, both of them, for as long as they run.
func TestProcessesOfOneNameAreFound(t *testing.T) {
	t.Parallel()
	e := patient(t, testenv.Database(t))
	exec(t, e.Pool, `insert into weft_instance (group_name, instance, role, version, host, pid, started_at, seen_at, twin)
		select 'weft', name, 'standby', 'v', 'h1', 11, now(), now() - age,
		       jsonb_build_object('host', 'h2', 'pid', 12, 'started_at', '2026-01-02T03:04:05Z'::timestamptz, 'seen_at', now())
		from (values ('b', interval '0'), ('gone', '1 min')) as v (name, age)`)
	if err := e.twins(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(e.found) != 1 {
		t.Errorf("got %d findings, want one", len(e.found))
	}
	wantFinding(t, e.found, want{"instances", Warning, "b", "and pid 12 on h2, started at 2026-01-02T03:04:05Z", "WEFT_INSTANCE"})
	wantFinding(t, e.found, want{"instances", Warning, "b", "two processes run under this name: pid 11 on h1, started at ", "WEFT_INSTANCE"})
}

// Two sets of tables in one database, with one name for the group, have one lock between them.
func TestHolderOfTheLockInAnotherSchemaIsFound(t *testing.T) {
	t.Parallel()
	e := patient(t, testenv.Database(t))
	cfg := e.Pool.Config().ConnConfig.Copy()
	cfg.RuntimeParams["application_name"] = leader.AppName("weft", "there", "lock")
	there, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close(context.WithoutCancel(t.Context()))
	if _, err := there.Exec(t.Context(), "select pg_advisory_lock($1)", leader.Key("weft")); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() bool {
		if err := e.rivals(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(e.found) > 0
	}, "the holder is found")
	wantFinding(t, e.found, want{"rivals", Error, "group weft", "(weft/weft/there/lock), which works on the tables of another schema", "WEFT_GROUP of its own"})
}

// An index that bears the mark of a term that the database does not know is of another one, a copy or its original. Marks of
// its own terms, of those that it has forgotten, and of other groups are none.
func TestIndexThatAnotherDatabaseLedIsFound(t *testing.T) {
	t.Parallel()
	e := patient(t, testenv.Database(t))
	at := target{projection: "search_index_to_elastic", index: "idx"}
	mark := func(key string, epoch int64, began string) []Finding {
		e.found = nil
		e.led(t.Context(), at, "idx-v1", json.RawMessage(fmt.Sprintf(`{"_meta":{"weft":{"led":{%q:{"epoch":%d,"instance":"b","began":%q}}}}}`, key, epoch, began)))
		return e.found
	}
	const key = "weft/search_index_to_elastic"
	found := want{"rivals", Warning, "idx-v1", "b at 2026-03-01T00:00:00Z (epoch 2), is none of this database", "give the copy another ELASTIC_INDEX before"}
	wantFinding(t, mark(key, 2, "2026-03-01T00:00:00Z"), found) // it never had a leader
	exec(t, e.Pool, "insert into weft_term (group_name, epoch, instance, acquired_at) values ('weft', 2, 'b', '2026-02-01T00:00:00.000001Z')")
	wantFinding(t, mark(key, 2, "2026-03-01T00:00:00Z"), found)
	for _, m := range [][]Finding{mark(key, 2, "2026-02-01T00:00:00.000001Z"), mark("other/search_index_to_elastic", 2, "2026-03-01T00:00:00Z")} {
		if len(m) > 0 {
			t.Errorf("got %+v, want nothing", m)
		}
	}
}
