package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/pki"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/migrations"
)

func TestMain(m *testing.M) {
	stack.GuardIfAsked()
	testenv.Main(m)
}

// want is a finding that a test provokes.
type want struct {
	check    string
	severity Severity
	on, text string // parts of these
	remedy   string
}

func (w want) in(found []Finding) bool {
	return slices.ContainsFunc(found, func(f Finding) bool {
		return f.Check == w.check && f.Severity == w.severity && strings.Contains(f.On, w.on) && strings.Contains(f.Text, w.text) && strings.Contains(f.Remedy, w.remedy)
	})
}

func wantFinding(t *testing.T, found []Finding, w want) {
	t.Helper()
	if !w.in(found) {
		t.Errorf("want %+v, got:", w)
		for _, f := range found {
			t.Logf("%+v", f)
		}
	}
}

// loaded is a configuration of the chronicle alone, unless environ says otherwise.
func loaded(t *testing.T, environ ...string) config.Config {
	t.Helper()
	c, err := config.Load(config.Options{Environ: append([]string{"DATABASE_URL=postgres://weft@db/x", "WEFT_PROJECTIONS=chronicle_events_to_entries"}, environ...)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// patient is an examination of a migrated database.
func patient(t *testing.T, url string) *examination {
	t.Helper()
	pool, err := postgres.NewPool(t.Context(), url, postgres.Options{AppName: "weft/doctor", MaxConns: 2, Statement: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &examination{Options: Options{Config: loaded(t), Pool: pool}, limits: ordinary(), now: time.Now()}
}

func exec(t *testing.T, pool *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := pool.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// A database as `weft migrate up` leaves it has no fault, and the role of an instance sees that.
func TestHealthyDatabaseHasNoFinding(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	e := patient(t, testenv.As(t, url, testenv.Runner(t, url)))
	e.limits.connections, e.limits.snapshot = 0, time.Hour // others use the server
	found, err := e.all(t.Context())
	if err != nil || len(found) > 0 {
		t.Errorf("got %+v, %v, want nothing", found, err)
	}
}

// Each fault of a database is found where it is provoked, and named with what fixes it.
func TestFindingsInPostgres(t *testing.T) {
	t.Parallel()
	const outboxTable = "search_outbox_events"
	for name, c := range map[string]struct {
		provoke func(t *testing.T, pool *pgxpool.Pool)
		limit   func(l *limits)
		want    want
	}{
		"IndexMissing": {func(t *testing.T, p *pgxpool.Pool) { exec(t, p, "drop index weft_search_outbox_failed") }, nil,
			want{"index.missing", Error, outboxTable + ".weft_search_outbox_failed", "is missing", "create index concurrently \"weft_search_outbox_failed\" on \"search_outbox_events\" (updated_at)"}},
		"IndexInvalid": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "update pg_index set indisvalid = false where indexrelid = 'weft_search_outbox_failed'::regclass")
		}, nil, want{"index.missing", Error, "weft_search_outbox_failed", "is not valid", "drop index concurrently \"weft_search_outbox_failed\"; create index"}},
		"IndexOfATableWhosePlaceACopyHasTaken": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "create table copy (like search_outbox_events including all)")
			exec(t, p, "alter table search_outbox_events rename to before")
			exec(t, p, "alter table copy rename to search_outbox_events")
		}, nil, want{"index.missing", Error, outboxTable + ".weft_search_outbox_list", "is on table before",
			"alter index \"weft_search_outbox_list\" rename to \"weft_search_outbox_list_old\"; create index concurrently \"weft_search_outbox_list\" on"}},
		"IndexUnread": {func(t *testing.T, p *pgxpool.Pool) { exec(t, p, "create index mine on search_outbox_events (error)") }, nil,
			want{"index.unread", Note, outboxTable + ".mine", "never reads it", "drop index concurrently \"mine\";"}},
		"IndexOfAConstraint": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "alter table search_outbox_events add constraint mine unique (entity_id, event_version)")
		}, nil, want{"index.read", Note, outboxTable + ".mine", "holds a constraint", ""}},
		"IndexOfOlderBuilds": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "create index weft_search_outbox_ready on search_outbox_events (event_version) where status = 'pending' and next_retry_at is null")
		}, nil,
			want{"index.older", Note, "weft_search_outbox_ready", "builds before leases", "drop index concurrently \"weft_search_outbox_ready\";"}},
		"IndexBloat": {func(*testing.T, *pgxpool.Pool) {}, func(l *limits) { l.indexBytes = 1 },
			want{"index.bloat", Warning, outboxTable, "for about 0 entries", "reindex index concurrently weft_"}},
		"AutovacuumOff": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "alter table search_outbox_events set (autovacuum_enabled = off)")
		}, nil, want{"vacuum.settings", Error, outboxTable, "autovacuum is off for the table", "reset (autovacuum_enabled)"}},
		"AutovacuumLate": {func(*testing.T, *pgxpool.Pool) {}, func(l *limits) { l.vacuumAt = 40 },
			want{"vacuum.settings", Warning, outboxTable, "autovacuum begins at 50 dead rows", "set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20);"}},
		"Bloat": {deadRows, func(l *limits) { l.dead = 50 }, want{"vacuum.bloat", Warning, outboxTable, "dead rows beside", "vacuum (verbose) search_outbox_events;"}},
		"LongTransaction": {func(t *testing.T, p *pgxpool.Pool) { snapshot(t, p) }, func(l *limits) { l.snapshot = 1 },
			want{"vacuum.held_back", Warning, "session sleeper", "has been open for", "select pg_terminate_backend("}},
		"Slot": {slot, func(l *limits) { l.slotBytes = -1 },
			want{"vacuum.held_back", Warning, "replication slot weft_doctor_test", "and nobody reads it", "select pg_drop_replication_slot('weft_doctor_test');"}},
		"Behind": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "delete from weft_schema_version where version_id = (select max(version_id) from weft_schema_version)", "drop index weft_search_outbox_failed", "drop table weft_pause")
		}, nil, want{"schema.version", Error, "/", fmt.Sprintf("is at version %d, and this build needs %d", migrations.Latest-1, migrations.Latest), "weft migrate up"}},
		"Newer": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "insert into weft_schema_version (version_id, is_applied) values (99, true)")
		}, nil, want{"schema.version", Note, "/", fmt.Sprintf("is at version 99, and this build knows %d", migrations.Latest), "use the build of the instances"}},
		"OtherWorker": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "insert into chronicle_outbox_events (entity_type, entity_id, op, event_version, status, owner) select 'book', gen_random_uuid(), 'upsert', n, 'processing', 'worker-7' from generate_series(1, 3) n")
		}, nil, want{"rivals", Error, "chronicle_outbox_events", "another worker, worker-7, has claimed 3 rows", "stop that worker"}},
		"OtherGroup": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('old', 3, 'c', now(), now())",
				"insert into weft_progress (table_name, group_name, projection, epoch, last_settle_at) values ('chronicle_outbox_events', 'old', 'p', 3, now())")
		}, nil, want{"rivals", Error, "chronicle_outbox_events", "c of the group old works on it: the leader of the group weft waits", "the same WEFT_GROUP"}},
		"OtherGroupWithRareHeartbeats": {func(t *testing.T, p *pgxpool.Pool) {
			conn, err := p.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(conn.Release)
			if _, err := conn.Exec(t.Context(), "select pg_advisory_lock($1)", leader.Key("old")); err != nil {
				t.Fatal(err)
			}
			exec(t, p, fmt.Sprintf(`insert into weft_leader (group_name, epoch, instance, lock_backend_pid, lock_backend_start, acquired_at, renewed_at)
				select 'old', 3, 'c', pid, backend_start, now(), now() - interval '30 s' from pg_stat_activity where pid = %d`, conn.Conn().PgConn().PID()),
				"insert into weft_progress (table_name, group_name, projection, epoch, last_settle_at) values ('chronicle_outbox_events', 'old', 'p', 3, now())")
		}, nil, want{"rivals", Error, "chronicle_outbox_events", "c of the group old works on it", "the same WEFT_GROUP"}},
		"Subscriber": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "set allow_system_table_mods = on; insert into pg_subscription_rel (srsubid, srrelid, srsubstate) values (1, 'weft_leader'::regclass, 'r'), (1, 'chronicle_outbox_events'::regclass, 'r'), (1, 'search_index'::regclass, 'r')")
		}, nil, want{"rivals", Error, "subscription unknown", "writes into weft_leader: what the leader", "drop the subscription before it runs here"}},
		"Paused": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "insert into weft_pause values ('weft', 'chronicle_events_to_entries', now() - interval '25 h', 'alice', 'reindexing')")
		}, nil, want{"holds", Warning, "chronicle_events_to_entries", "paused by alice at 20", "weft resume chronicle_events_to_entries --by"}},
		"ShardAway": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, migrations.AwaySQL("public", 3), "insert into weft_shard_away (server, since, arriving, move) values ('db2:5432/shop', now(), false, gen_random_uuid())")
		}, nil, want{"shard.home", Error, "weft", "the shard is on db2:5432/shop since 20", "WEFT_SHARD_SERVERS"}},
		"ShardArriving": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, migrations.AwaySQL("public", 3), "insert into weft_shard_away (server, since, arriving, move) values ('db1:5432/shop', now(), true, gen_random_uuid())")
		}, nil, want{"shard.home", Error, "weft", "on its way here from db1:5432/shop", "wait for `weft shards move`"}},
		"Throttled": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "insert into weft_throttle values ('weft', 'chronicle_events_to_entries', 2.5, now(), 'alice', 'busy')")
		}, nil, want{"holds", Note, "chronicle_events_to_entries", "throttled to 2.5 events a second by alice at 20", "--off --by"}},
		"Quarantined": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "insert into weft_quarantine select 'weft', 'chronicle_events_to_entries', 'block', n, now() - n * interval '1 h', 'alice', 'bad' from generate_series(20, 26) n")
		}, nil, want{"holds", Warning, "chronicle_events_to_entries", "block:26 quarantined by alice at 20", "weft release block:26 --by"}},
		"QuarantinedByAText": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "insert into weft_quarantine values ('weft', 'chronicle_events_to_entries', 'block', 'Ann''s $1', now() - interval '25 h', 'alice', 'bad')")
		}, nil, want{"holds", Warning, "chronicle_events_to_entries", "block:Ann's $1 quarantined", `weft release 'block:Ann'\''s $1' --by`}},
		"Nameless": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "alter table chronicle_outbox_events alter entity_id drop not null",
				"insert into chronicle_outbox_events (entity_type, op, event_version) select 'book', 'upsert', n from generate_series(1, 12) n")
		}, nil, want{"schema.nameless", Warning, "chronicle_outbox_events", "events without an entity or a version, which nothing can carry: 12 (", "fill in entity_id"}},
		"Sequence": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "create sequence ids as smallint", "select setval('ids', 32000)")
		}, nil, want{"postgres.sequence", Warning, "ids", "98 % of its numbers are given out: 767 are left", "alter sequence ids as bigint"}},
		"IDs": {func(*testing.T, *pgxpool.Pool) {}, func(l *limits) { l.xids = -1 << 40 },
			want{"postgres.ids", Error, "database ", "Postgres stops taking writes in", "vacuum (freeze"}},
		"Timeout": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "do $$ begin execute format('alter role %I in database %I set idle_in_transaction_session_timeout = %L', current_user, current_database(), '9s'); end $$")
		}, nil, want{"postgres.timeouts", Warning, "role ", "idle_in_transaction_session_timeout is 9s", " reset idle_in_transaction_session_timeout;"}},
		"Connections": {func(*testing.T, *pgxpool.Pool) {}, func(l *limits) { l.connections = math.MaxInt32 },
			want{"postgres.connections", Warning, "max_connections", "connections are in use", "alter system set max_connections"}},
		"ReadOnly": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$")
		}, nil, want{"postgres.read_only", Error, "", "default_transaction_read_only is on for database ", "alter database "}},
		"NoTriggers": {func(t *testing.T, p *pgxpool.Pool) {
			exec(t, p, "do $$ begin execute format('alter database %I set session_replication_role = replica', current_database()); end $$")
		}, nil, want{"postgres.triggers", Error, "", "session_replication_role is replica for database ", " reset session_replication_role;"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			c.provoke(t, testenv.Pool(t, url))
			e := patient(t, url)
			if c.limit != nil {
				c.limit(&e.limits)
			}
			found, err := e.all(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			wantFinding(t, found, c.want)
			if i := slices.IndexFunc(found, func(f Finding) bool { return f.Check == "index.unread" && f.Check != c.want.check }); i >= 0 {
				t.Errorf("got %+v, want no advice to drop an index", found[i])
			}
			if i := slices.IndexFunc(found, func(f Finding) bool { return strings.Contains(f.Text, "could not be examined") }); i >= 0 {
				t.Errorf("got %+v", found[i])
			}
		})
	}
}

// Who has set default_transaction_read_only is named with what takes it back, and no role is
// told to write where the server's settings keep writers out.
func TestFindingOfReadOnlyNamesWhoSetIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set string // with the names of the role and the database
		on  string // whom the finding names, the same
	}{
		"Database":       {"alter database %[2]s set default_transaction_read_only = on", "database %[2]s"},
		"Role":           {"alter role %[1]s set default_transaction_read_only = on", "role %[1]s"},
		"RoleInDatabase": {"alter role %[1]s in database %[2]s set default_transaction_read_only = on", "role %[1]s in database %[2]s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			owner := testenv.Pool(t, url)
			runner := testenv.Runner(t, url)
			var database string
			if err := owner.QueryRow(t.Context(), "select quote_ident(current_database())").Scan(&database); err != nil {
				t.Fatal(err)
			}
			role := pgx.Identifier{runner.Username()}.Sanitize()
			exec(t, owner, fmt.Sprintf(c.set+" -- %[1]s %[2]s", role, database))
			e := patient(t, testenv.As(t, url, runner))
			if err := e.readOnly(t.Context()); err != nil || len(e.found) != 1 {
				t.Fatalf("got %+v, %v, want one finding", e.found, err)
			}
			on := fmt.Sprintf(c.on+"%.0[1]s%.0[2]s", runner.Username(), database)
			wantFinding(t, e.found, want{"postgres.read_only", Error, "", "default_transaction_read_only is on for " + on, "alter " + on + " reset default_transaction_read_only;"})
			statement, _, _ := strings.Cut(e.found[0].Remedy, ";")
			exec(t, testenv.Pool(t, url+"&default_transaction_read_only=off"), statement)
			e = patient(t, testenv.As(t, url, runner))
			if err := e.readOnly(t.Context()); err != nil || len(e.found) > 0 {
				t.Errorf("after the remedy: got %+v, %v, want nothing", e.found, err)
			}
		})
	}
	t.Run("Client", func(t *testing.T) {
		t.Parallel()
		e := patient(t, testenv.Database(t)+"&default_transaction_read_only=on")
		if err := e.readOnly(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantFinding(t, e.found, want{"postgres.read_only", Error, "", "default_transaction_read_only is on for this connection", "take it out of DATABASE_URL and PGOPTIONS"})
	})
	for _, source := range []string{"configuration file", "command line", "override"} {
		e := &examination{}
		e.settingIs("db:5432/shop", "default_transaction_read_only", source, "weft", "shop")
		wantFinding(t, e.found, want{"postgres.read_only", Error, "db:5432/shop", "default_transaction_read_only is on for the server (" + source + ")", "ask who set it before you change it"})
		if strings.Contains(e.found[0].Remedy, "alter ") {
			t.Errorf("%s: got remedy %q, want none that lets one role write", source, e.found[0].Remedy)
		}
	}
}

// Of a session of another role an instance sees that it holds a snapshot, and not since when.
func TestSnapshotOfAnotherRoleIsFound(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	snapshot(t, testenv.Pool(t, url))
	e := patient(t, testenv.As(t, url, testenv.Runner(t, url)))
	e.limits.held = -1
	if err := e.horizon(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, e.found, want{"vacuum.held_back", Warning, "session sleeper", "the role may not see since when", "select pg_terminate_backend("})
	e.found, e.limits = nil, ordinary()
	if err := e.horizon(t.Context()); err != nil || len(e.found) > 0 {
		t.Errorf("got %+v, %v, want nothing of a young one", e.found, err)
	}
}

// The remedy for what holds back vacuum ends nothing that others need.
func TestRemediesForWhatHoldsBackVacuum(t *testing.T) {
	t.Parallel()
	minute := 60.0
	const drop = "select pg_drop_replication_slot('s');"
	for name, c := range map[string]struct {
		h      holder
		text   string // empty: nothing is found
		remedy string
	}{
		"ReadSlot":       {holder{"replication slot", "s", drop, new(float64), 5, 2 << 30, true}, "keeps 2048 MiB of WAL: the disk", "its reader is behind"},
		"UnreadSlot":     {holder{"replication slot", "s", drop, new(float64), 5, 2 << 30, false}, "nobody reads it", drop},
		"Slot":           {holder{"replication slot", "s", drop, new(float64), 5, 1 << 20, true}, "", ""},
		"Standby":        {holder{"standby", "walreceiver", "", nil, 2_000_000, 0, true}, "a query there", "end the query there"},
		"StandbyNow":     {holder{"standby", "walreceiver", "", nil, 500, 0, true}, "", ""},
		"Session":        {holder{"session", "s", "", &minute, 2_000_000, 0, true}, "", ""},
		"SessionUnknown": {holder{"session", "s", "end it", nil, 2_000_000, 0, true}, "by 2000000 transactions", "end it"},
	} {
		e := &examination{limits: ordinary()}
		e.heldBack(c.h)
		if c.text == "" && len(e.found) > 0 || len(e.found) > 1 {
			t.Errorf("%s: got %+v, want nothing", name, e.found)
		} else if c.text != "" {
			wantFinding(t, e.found, want{"vacuum.held_back", Warning, c.h.kind + " " + c.h.name, c.text, c.remedy})
			if c.h.active && len(e.found) == 1 && strings.Contains(e.found[0].Remedy, "drop") {
				t.Errorf("%s: got %+v, want a slot that is read to stay", name, e.found)
			}
		}
	}
}

// An instance counts the connections of all roles.
func TestConnectionsOfOtherRolesCount(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	var used int
	runner := testenv.As(t, url, testenv.Runner(t, url))
	const others = 5
	for range others {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	e := patient(t, runner)
	e.limits.connections = math.MaxInt32
	if err := e.connections(t.Context()); err != nil || len(e.found) != 1 {
		t.Fatalf("got %+v, %v, want one finding", e.found, err)
	}
	if _, err := fmt.Sscanf(e.found[0].Text, "%d of", &used); err != nil || used <= others {
		t.Errorf("got %q, want more than the %d of another role", e.found[0].Text, others)
	}
}

// Of several settings of a timeout the one that counts for the role is named. A remedy changes it for this
// role, not for others.
func TestFindingsOfTimeouts(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	owner, runner := testenv.Pool(t, url), testenv.Runner(t, url)
	role := pgx.Identifier{runner.Username()}.Sanitize()
	exec(t, owner, "do $$ begin execute format('alter database %I set idle_in_transaction_session_timeout = %L', current_database(), '9s'); end $$",
		"do $$ begin execute format('alter database %I set idle_session_timeout = %L', current_database(), '9s'); end $$", // weft sets its own
		"alter role all set weft.doctor_test = 'of no role and no database'")
	t.Cleanup(func() {
		if _, err := owner.Exec(context.Background(), "alter role all reset weft.doctor_test"); err != nil {
			t.Error(err)
		}
	})
	e := patient(t, testenv.As(t, url, runner))
	if err := e.timeouts(t.Context()); err != nil {
		t.Fatal(err)
	}
	remedy := "alter role " + role + " set idle_in_transaction_session_timeout = 0;"
	wantFinding(t, e.found, want{"postgres.timeouts", Warning, "database ", "idle_in_transaction_session_timeout is 9s", remedy})
	exec(t, owner, remedy)
	e = patient(t, testenv.As(t, url, runner))
	if err := e.timeouts(t.Context()); err != nil || len(e.found) > 0 {
		t.Errorf("after the remedy: got %+v, %v, want nothing", e.found, err)
	}
}

// After the remedy for a late vacuum there is nothing to find, however many rows the table has.
func TestRemedyForALateVacuumHelps(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	e := patient(t, url)
	e.limits.vacuumAt = 40
	if err := e.vacuumSettings(t.Context()); err != nil || len(e.found) == 0 {
		t.Fatalf("got %+v, %v, want findings", e.found, err)
	}
	for _, f := range e.found {
		exec(t, testenv.Pool(t, url), f.Remedy)
	}
	e.found = nil
	if err := e.vacuumSettings(t.Context()); err != nil || len(e.found) > 0 {
		t.Errorf("after the remedy: got %+v, %v, want nothing", e.found, err)
	}
}

// deadRows leaves rows that are gone, and has the server count them.
func deadRows(t *testing.T, p *pgxpool.Pool) {
	t.Helper()
	exec(t, p, "alter table search_outbox_events set (autovacuum_enabled = off)",
		"insert into search_outbox_events (entity_type, entity_id, op, event_version) select 'block', gen_random_uuid(), 'upsert', n from generate_series(1, 100) n",
		"delete from search_outbox_events")
	testenv.Eventually(t, func() bool {
		var dead int
		err := p.QueryRow(t.Context(), "select n_dead_tup from pg_stat_user_tables where relname = 'search_outbox_events'").Scan(&dead)
		return err == nil && dead >= 100
	}, "the statistics have the dead rows")
}

// snapshot holds one until the test ends.
func snapshot(t *testing.T, p *pgxpool.Pool) {
	t.Helper()
	c := p.Config().ConnConfig.Copy()
	c.RuntimeParams["application_name"] = "sleeper"
	conn, err := pgx.ConnectConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	for _, s := range []string{"begin isolation level repeatable read", "select count(*) from search_outbox_events"} {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
}

func slot(t *testing.T, p *pgxpool.Pool) {
	t.Helper()
	exec(t, p, "select pg_create_physical_replication_slot('weft_doctor_test', true)")
	t.Cleanup(func() {
		if _, err := p.Exec(context.Background(), "select pg_drop_replication_slot('weft_doctor_test')"); err != nil {
			t.Error(err)
		}
	})
}

// A right that the role lacks is named with its grant, which is all that is missing.
func TestFindingsOfRights(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	runner, pool := testenv.Runner(t, url), testenv.Pool(t, url)
	exec(t, pool, "revoke select on weft_lease from "+pgx.Identifier{runner.Username()}.Sanitize())
	e := patient(t, testenv.As(t, url, runner))
	e.Modes = []migrations.Mode{{Table: "search_outbox_events", Finished: "keep"}}
	if err := e.rights(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, e.found, want{"postgres.rights", Error, runner.Username(), "lacks select on weft_lease", "grant select on "})
	for _, f := range e.found {
		exec(t, pool, f.Remedy)
	}
	e.found = nil
	if err := e.rights(t.Context()); err != nil || len(e.found) > 0 {
		t.Errorf("after the grants: %+v, %v, want nothing", e.found, err)
	}
}

// A check that the role may not make is told of, and the others are made.
func TestExaminationGoesOnWithoutTheVersionOfTheSchema(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	runner, pool := testenv.Runner(t, url), testenv.Pool(t, url)
	exec(t, pool, "revoke select on weft_schema_version from "+pgx.Identifier{runner.Username()}.Sanitize(),
		"alter table search_outbox_events set (autovacuum_enabled = off)")
	e := patient(t, testenv.As(t, url, runner))
	found, err := e.all(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, found, want{"schema.version", Warning, "", " denies permission to role " + runner.Username() + ": permission denied for table weft_schema_version; grant it", ""})
	wantFinding(t, found, want{"postgres.rights", Error, runner.Username(), "lacks select on weft_schema_version", "grant select on "})
	wantFinding(t, found, want{"vacuum.settings", Error, "search_outbox_events", "autovacuum is off", "reset (autovacuum_enabled)"})
	if n := strings.Count(fmt.Sprint(found), "could not be examined"); n != 1 {
		t.Errorf("%d checks could not be made, want that of the version alone: %+v", n, found)
	}
}

// A check that takes too long says what to look at.
func TestExaminationOfALockedTable(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	testenv.Lock(t, url, "weft_pause")
	e := patient(t, url)
	e.Config.Database.Timeout = 100 * time.Millisecond
	e.try(t.Context(), check{"holds", e.holds})
	wantFinding(t, e.found, want{"holds", Warning, "", "could not be examined: ", postgres.SayBusy})
}

// What a server of the tests cannot be made to do is found in the facts alone.
func TestFindingsInFacts(t *testing.T) {
	t.Parallel()
	e := patient(t, testenv.Database(t))
	e.versionIs(130012, "13.12")
	wantFinding(t, e.found, want{"postgres.version", Error, "13.12", "idle_session_timeout", "14"})
	e.poolerAt("db:6432", 7, []uint32{11, 11, 11, 11, 11})
	wantFinding(t, e.found, want{"postgres.pooler", Warning, "db:6432", "a pooler or proxy", "PostgreSQL itself"})
	e.poolerAt("db:6433", 11, []uint32{11, 12, 11, 12, 11})
	wantFinding(t, e.found, want{"postgres.pooler", Error, "db:6433", "transaction mode", "session mode"})
	e.clockIs(postgres.Vitals{ClockSkew: -3 * time.Second, Uncertain: time.Millisecond})
	wantFinding(t, e.found, want{"postgres.clock", Warning, "", "differ by 3.0 seconds", "NTP"})
	n := len(e.found)
	e.versionIs(170002, "17.2")
	e.poolerAt("db", 11, []uint32{11, 11})
	e.clockIs(postgres.Vitals{ClockSkew: 2 * time.Second, Uncertain: 3 * time.Second})
	e.idsAre("d", 200_000_000, 1e6)
	if len(e.found) != n {
		t.Errorf("of what is well: %+v, want nothing", e.found[n:])
	}
	e.Config = loaded(t, "OUTBOX_USE_ES_BULK=1")
	e.configuration()
	wantFinding(t, e.found, want{"configuration", Warning, "", "OUTBOX_USE_ES_BULK", ""})
}

func TestFindingsOfCertificates(t *testing.T) {
	t.Parallel()
	authority, err := pki.New("authority")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue("weft")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "client.pem")
	if err := os.WriteFile(path, pair.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		after    time.Duration
		severity Severity
		text     string
	}{{0, "", ""}, {100 * 365 * 24 * time.Hour, Error, "expired"}} {
		e := &examination{limits: ordinary(), now: time.Now().Add(c.after)}
		e.limits.expiry = 30 * time.Minute
		if err := e.expiringFile(path); err != nil {
			t.Fatal(err)
		}
		if c.text == "" && len(e.found) > 0 {
			t.Errorf("got %+v, want nothing", e.found)
		} else if c.text != "" {
			wantFinding(t, e.found, want{"elastic.certificate", c.severity, path, `the certificate of "weft" ` + c.text, "kill -HUP"})
		}
		e.limits.expiry, e.now, e.found = 200*365*24*time.Hour, time.Now(), nil
		if err := e.expiringFile(path); err != nil {
			t.Fatal(err)
		}
		wantFinding(t, e.found, want{"elastic.certificate", Error, path, "expires in", "kill -HUP"})
	}
}

// The certificates of a connection are those that its other side shows.
func TestPeers(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}}).DialContext(t.Context(), "tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	e := &examination{limits: ordinary(), now: s.Certificate().NotAfter.Add(-20 * 24 * time.Hour)}
	e.expiringOf("postgres.certificate", "db:5432", peers(conn))
	wantFinding(t, e.found, want{"postgres.certificate", Warning, "db:5432", "expires in 20 days", "kill -HUP"})
	plain, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	if got := peers(plain); got != nil {
		t.Errorf("of a plain connection: %v, want none", got)
	}
}

func TestParseTimeout(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"5000": 5 * time.Second, "5s": 5 * time.Second, "2min": 2 * time.Minute, "90000ms": 90 * time.Second, "1h": time.Hour, `"30 s"`: 30 * time.Second, "0": 0} {
		if got, err := parseTimeout(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, want)
		}
	}
}

// docs/operations.md names each check, and no other.
func TestChecksAreDocumented(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, f := range files {
		if !strings.HasSuffix(f, "_test.go") {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(text)
		}
	}
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	names := func(pattern, text string) (out []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			out = append(out, m[1])
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	have := names("\"((?:postgres|index|history|vacuum|elastic|shard)\\.[a-z_]+|configuration|holds)\"[^:]", source.String())
	documented := names("(?m)^\\| `((?:postgres|index|history|vacuum|elastic|shard)\\.[a-z_]+|configuration|holds)`", string(page))
	if fmt.Sprint(have) != fmt.Sprint(documented) {
		t.Errorf("docs/operations.md names\n%v\nthe code has\n%v", documented, have)
	}
}
