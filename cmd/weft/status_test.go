package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/admin"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/projections"
)

// sample is a state with every field set.
func sample() records.Status {
	at := func(s int) time.Time { return time.Date(2026, 5, 4, 3, 2, s, 0, time.FixedZone("", 7200)) }
	retry, settle := at(40).UTC(), at(20).UTC()
	pid := leader.State{Group: "books", Key: -42, Epoch: 7, Instance: "a", AcquiredAt: at(1), RenewedAt: at(30), RenewedAgo: 250 * time.Millisecond,
		LockHeld: true, LockPID: 4711, LockUser: "weft", LockApp: "weft/books/a/lock", LockMatches: true}
	st := records.ElectionStatus(pid, []leader.Instance{
		{Group: "books", Name: "a", Role: leader.RoleLeader, Version: "0.1.0", Host: "h1", PID: 11, HTTPAddr: "127.0.0.1:9108", Uptime: 90 * time.Second, StartedAt: at(0), SeenAt: at(30), SeenAgo: time.Second},
		{Group: "books", Name: "b", Role: leader.RoleStandby, Version: "0.1.0", Host: "h2", PID: 12, Uptime: 72 * time.Hour, StartedAt: at(0), SeenAt: at(29), SeenAgo: 2340 * time.Millisecond,
			Twin: &leader.Process{Host: "h3", PID: 13, StartedAt: at(7).UTC()}},
	})
	st.Projections = []records.Projection{
		{Projection: "search_index_to_elastic", Table: "search_outbox_events", Pending: 12, Retrying: 5, Processing: 11, Failed: 1, Stuck: 1,
			DoneEstimate: 15000, Lag: 28, OldestSecs: 1.234, NextRetryAt: &retry, LastSettleAt: &settle, Now: at(30),
			InFlight: 10, Batches: 2, OldestBatchSecs: 0.43, PutOff: 2, Foreign: 1,
			Nameless:     &records.Nameless{Events: 1000, IDs: []string{"17", "4711"}},
			VersionAhead: &records.Ahead{Writes: 41, FirstAt: at(2).UTC(), LastAt: at(25).UTC(), Entities: []string{"book:b1", "block:b2"}}},
		{Projection: "chronicle_events_to_entries", Table: "chronicle_outbox_events"},
	}
	return st
}

func TestStatusTable(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := writeStatus(&b, sample()); err != nil {
		t.Fatal(err)
	}
	golden(t, "status-table.txt", b.String())
}

func TestStatusJSON(t *testing.T) {
	t.Parallel()
	b, err := json.MarshalIndent(sample(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "status.json", string(b)+"\n")
}

func TestStatusNobody(t *testing.T) {
	t.Parallel()
	released := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	for want, s := range map[string]leader.State{
		"nobody, ever": {},
		"nobody; the last was a, epoch 3, which ended with a hand-over at 2026-05-04T03:02:01Z":                                                                  {Epoch: 3, Instance: "a", ReleasedAt: &released},
		"nobody; the last was a, epoch 3, which ended without a hand-over, last heartbeat 2026-05-04T03:02:01Z":                                                  {Epoch: 3, Instance: "a", RenewedAt: released},
		"nobody; the lock is held by pid 5 (psql), which has no term yet":                                                                                        {Epoch: 3, Instance: "a", LockHeld: true, LockPID: 5, LockApp: "psql"},
		"nobody; the lock is held by pid 5 (weft/g/b/lock), which works on the tables of another schema: give each schema of a database a WEFT_GROUP of its own": {LockHeld: true, LockPID: 5, LockApp: "weft/g/b/lock", LockElsewhere: true},
		"nobody; the lock is held by pid 5, which has no term yet":                                                                                               {LockHeld: true, LockPID: 5},
		"a, epoch 3, since 2026-05-04T03:02:01Z, heartbeat 1.5s ago":                                                                                             {Epoch: 3, Instance: "a", AcquiredAt: released, RenewedAgo: 1500 * time.Millisecond, LockHeld: true, LockMatches: true},
	} {
		if got := records.ElectionStatus(s, nil).LeaderLine(); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

func TestStatusEmptyDatabase(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + testenv.Database(t), "WEFT_GROUP=nobody"}
	r := weft(t, env, "status")
	if want := "weft: nobody leads group nobody: start `weft run`, or look at the log of the instances\n"; r.code != exitBad || r.errOut != want {
		t.Errorf("got code %d and %q, want %d and %q", r.code, r.errOut, exitBad, want)
	}
	for _, want := range []string{"group   nobody (lock key ", "leader  nobody, ever\n", "none was seen\n", "search_index_to_elastic ", "chronicle_events_to_entries "} {
		if !strings.Contains(r.out, want) {
			t.Errorf("output lacks %q:\n%s", want, r.out)
		}
	}
	r = weft(t, env, "status", "--json", "--projections=search_index_to_elastic")
	var st records.Status
	if err := json.Unmarshal([]byte(r.out), &st); err != nil || r.code != exitBad {
		t.Fatalf("--json: got code %d, %v", r.code, err)
	}
	if st.Leader != nil || st.LastTerm != nil || len(st.Projections) != 1 || st.Instances == nil {
		t.Errorf("--json: got %+v", st)
	}
}

func TestStatusCountsRows(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	pool := testenv.Pool(t, url)
	for _, sql := range []string{`
		insert into search_outbox_events (id, entity_type, entity_id, op, event_version, status, next_retry_at, behind, created_at)
		select gen_random_uuid(), 'book', gen_random_uuid(), 'upsert', n,
		       case when n <= 7 then 'pending' when n <= 8 then 'processing' else 'failed' end,
		       case when n in (4, 5) then now() + interval '1 hour' end, case n when 5 then 4 end, now() - interval '1 minute'
		  from generate_series(1, 11) n`, `
		insert into weft_lease (batch, table_name, group_name, owner, epoch, leased_at, lease_until, uuids)
		select gen_random_uuid(), 'search_outbox_events', 'weft', 'a', 1, now() - n * interval '20 seconds', now(),
		       array(select id from search_outbox_events where event_version in (n, 2 * n + 5))
		  from generate_series(1, 1) n`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	r := weft(t, []string{"DATABASE_URL=" + url}, "status", "--json")
	var st records.Status
	if err := json.Unmarshal([]byte(r.out), &st); err != nil {
		t.Fatal(err)
	}
	p := st.Projections[0]
	if p.Pending != 3 || p.Retrying != 2 || p.PutOff != 1 || p.Failed != 3 || p.Lag != 8 || p.OldestSecs < 60 || p.NextRetryAt == nil || p.LastSettleAt != nil {
		t.Errorf("got %+v", p)
	}
	if p.Processing != 3 || p.InFlight != 2 || p.Batches != 1 || p.Foreign != 1 || p.OldestBatchSecs < 20 || p.Stuck != 0 || p.VersionAhead != nil {
		t.Errorf("in flight: got %+v, want a batch of two, one row of another worker, and nothing stuck", p)
	}
	r = weft(t, []string{"DATABASE_URL=" + url}, "status", "--json", "--max-processing=16s")
	if err := json.Unmarshal([]byte(r.out), &st); err != nil {
		t.Fatalf("%v: %s", err, r.errOut)
	}
	if got := st.Projections[0].Stuck; got != 2 {
		t.Errorf("stuck after 16s: got %d, want the two of the batch", got)
	}
}

func TestStatusNamesEventsThatNothingCanCarry(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	if _, err := testenv.Pool(t, url).Exec(t.Context(), `alter table search_outbox_events alter event_version drop not null;
		insert into search_outbox_events (id, entity_type, entity_id, op) values ('7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11', 'book', gen_random_uuid(), 'upsert')`); err != nil {
		t.Fatal(err)
	}
	r := weft(t, []string{"DATABASE_URL=" + url}, "status")
	want := "\nNAMELESS  search_index_to_elastic: events without an entity or a version, which nothing can carry: 1 (7b0e4c52-8f55-4d4e-9a3e-3f0b6f1d2c11); correct the producer"
	if !strings.Contains(r.out, want) || strings.Count(r.out, "NAMELESS") != 1 {
		t.Errorf("output lacks %q:\n%s", want, r.out)
	}
}

func TestStatusShowsDocumentsNewerThanTheirSource(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	pool := testenv.Pool(t, url)
	if _, err := pool.Exec(t.Context(), `
		insert into weft_audit (at, actor, action, why, projection, by_epoch, count, detail) values
		(now() - interval '2 days',  'a', 'version_ahead', 'x', 'search_index_to_elastic', 1, 1000, '{"entities": ["book:old"]}'),
		(now() - interval '3 hours', 'a', 'version_ahead', 'x', 'search_index_to_elastic', 1, 7, '{"entities": ["book:b1"]}'),
		(now() - interval '2 hours', 'a', 'reclaim', 'x', 'search_index_to_elastic', 1, 1000, null),
		(now() - interval '1 hour',  'a', 'version_ahead', 'x', 'search_index_to_elastic', 1, 2,
		 jsonb_build_object('entities', array['book:b2', 'block:b3'], 'last_at', now() - interval '10 minutes'))`); err != nil {
		t.Fatal(err)
	}
	r := weft(t, []string{"DATABASE_URL=" + url}, "status", "--json")
	var st records.Status
	if err := json.Unmarshal([]byte(r.out), &st); err != nil {
		t.Fatal(err)
	}
	v := st.Projections[0].VersionAhead
	if v == nil || v.Writes != 9 || strings.Join(v.Entities, " ") != "book:b2 block:b3" || v.LastAt.Sub(v.FirstAt).Round(time.Minute) != 170*time.Minute {
		t.Errorf("got %+v, want 9 writes of the last day, the last after 170 minutes, and the entities of the newest entry", v)
	}
	if st.Projections[1].VersionAhead != nil {
		t.Errorf("%s: got %+v, want no alarm", st.Projections[1].Projection, st.Projections[1].VersionAhead)
	}
	r = weft(t, []string{"DATABASE_URL=" + url}, "status")
	if want := "\nALARM   search_index_to_elastic: documents are newer than their source rows and stay so: 9 writes refused since "; !strings.Contains(r.out, want) || !strings.Contains(r.out, "(book:b2, block:b3)") {
		t.Errorf("output lacks %q:\n%s", want, r.out)
	}
	r = weft(t, []string{"DATABASE_URL=" + url}, "audit", "--action=version_ahead")
	if r.code != 0 || strings.Count(r.out, "version_ahead") != 3 || !strings.Contains(r.out, "book:b2, block:b3") {
		t.Errorf("audit: got code %d and\n%s%s", r.code, r.out, r.errOut)
	}
}

func TestStatusNotMigrated(t *testing.T) {
	t.Parallel()
	base := testenv.Database(t) // the tables are in public, to which no search_path of these leads
	pool := testenv.Pool(t, base)
	if _, err := pool.Exec(t.Context(), "create schema empty"); err != nil {
		t.Fatal(err)
	}
	name := pool.Config().ConnConfig.Database
	for _, schema := range []string{"empty", "mislaid"} {
		url, err := postgres.InSchema(base, schema)
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"status", "failed summary", "replay --all --by a --why b", "verify", "rebuild status search_index_to_elastic", "audit", "doctor"} {
			r := weft(t, []string{"DATABASE_URL=" + url, "ELASTIC_URL=http://127.0.0.1:1"}, strings.Fields(command)...)
			want := "weft: weft's tables are missing from schema " + schema + " of database " + name +
				": run `weft migrate up`, or correct DATABASE_URL, whose search_path does not lead to schema public, which has such tables\n"
			if r.code != exitTryAgain || r.errOut != want {
				t.Errorf("%s: got code %d and %q, want %d and %q", command, r.code, r.errOut, exitTryAgain, want)
			}
		}
	}
}

func TestTablesOfProjections(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		projections.SearchIndexToElastic: "search_outbox_events", projections.ChronicleEventsToEntries: "chronicle_outbox_events",
	} {
		if got := (projections.Registry{}).Table(name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

// Of a killed leader and its successor one leads, whatever each said last.
func TestStatusShowsOneLeader(t *testing.T) {
	t.Parallel()
	led := leader.State{Epoch: 8, Instance: "b", LockHeld: true, LockMatches: true}
	for name, tc := range map[string]struct {
		state leader.State
		seen  leader.Instance
		want  string
	}{
		"Leads":            {led, leader.Instance{Name: "b", Role: leader.RoleLeader}, "leader"},
		"LeadsSaidStandby": {led, leader.Instance{Name: "b", Role: leader.RoleStandby}, "leader"},
		"Drains":           {led, leader.Instance{Name: "b", Role: leader.RoleDraining}, "draining"},
		"Killed":           {led, leader.Instance{Name: "a", Role: leader.RoleLeader, SeenAgo: 2 * time.Second}, "lost"},
		"KilledLongAgo":    {led, leader.Instance{Name: "a", Role: leader.RoleLeader, SeenAgo: 8 * time.Second}, "gone"},
		"KilledNobodyYet":  {leader.State{Epoch: 7, Instance: "a"}, leader.Instance{Name: "a", Role: leader.RoleLeader}, "lost"},
		"Standby":          {led, leader.Instance{Name: "c", Role: leader.RoleStandby}, "standby"},
	} {
		if got := records.ElectionStatus(tc.state, []leader.Instance{tc.seen}).Instances[0].Role; got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}

// The tour shows the columns that weft status has.
func TestTourHasTheColumnsOfStatus(t *testing.T) {
	t.Parallel()
	tour, err := os.ReadFile("../../docs/tour.md")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := writeStatus(&out, records.Status{Projections: []records.Projection{{Projection: "chronicle_events_to_entries"}}}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "PROJECTION ") && !strings.Contains(string(tour), line) {
			t.Errorf("docs/tour.md lacks the line %q", line)
		}
	}
}

// serveAt makes an address that of each instance.
func (c *crew) serveAt(address string) {
	c.t.Helper()
	_, err := c.pool.Exec(c.t.Context(), `create function addressed() returns trigger language plpgsql as 'begin new.http_addr = tg_argv[0]; return new; end';
		create trigger addressed before insert or update on weft_instance for each row execute function addressed('`+address+`');
		update weft_instance set http_addr = ''`)
	if err != nil {
		c.t.Fatal(err)
	}
}

// What the leader alone knows is asked of it: a destination that is away, and a breaker that is open.
func TestStatusNamesWhatHoldsUpTheLeader(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	c.join("a", atOnce)
	st := func() (r result, out records.Status) {
		r = weft(t, append(c.env, "OUTBOX_PROJECTIONS="+projections.SearchIndexToElastic), "status", "--json")
		if err := json.Unmarshal([]byte(r.out), &out); err != nil {
			t.Fatalf("%v: %+v", err, r)
		}
		return weft(t, c.env, "status"), out
	}
	if r, s := st(); r.code != 0 || s.Leader.Trouble != nil {
		t.Errorf("without an address: got %+v, want nothing that was not asked for", s.Leader)
	}

	health := admin.NewHealth("crew", "a")
	health.SetRole(admin.Leader, 1)
	health.Set("postgres", nil)
	server := httptest.NewServer(admin.Handler(admin.Options{Health: health, Gatherer: prometheus.NewRegistry(), Log: zap.NewNop()}))
	defer server.Close()
	c.serveAt(server.Listener.Addr().String())
	if r, s := st(); r.code != 0 || s.Leader.Trouble == nil || len(s.Leader.Trouble) != 0 || strings.Contains(r.out, "UNUSABLE") {
		t.Errorf("without trouble: got %+v and %s", s.Leader, r.out)
	}
	health.Set("elasticsearch", errors.New("no answer"))
	health.Set("home", errors.New("the shard is on db2")) // the command itself says that
	health.SetProjection("books", admin.Outage, "es_connect")
	health.SetProjection("tags", admin.Paused, "es_4xx")
	health.SetMoved("blocks", "the index is another one")
	health.SetRival("blocks", "a copy writes, too")
	r, s := st()
	if len(s.Leader.Trouble) != 5 {
		t.Errorf("JSON: got %+v, want five", s.Leader.Trouble)
	}
	for _, want := range []string{"\nUNUSABLE  elasticsearch since 20", ": no answer\n", "\nOUTAGE  books since 20", ": es_connect\n", "\nBREAKER  tags since 20", ": es_4xx\n",
		"\nMOVED  blocks since 20", ": the index is another one\n", "\nRIVAL  blocks since 20", ": a copy writes, too\n"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("got %s, want %q", r.out, want)
		}
	}
	health.SetRole(admin.Leader, 2)
	if r, s := st(); r.code != 0 || s.Leader.Trouble != nil {
		t.Errorf("of another term: got %+v, want nothing", s.Leader)
	}
}
