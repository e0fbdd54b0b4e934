package tlstest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/outbox"
)

// site is a database that roles.sql and weft itself have set up, and a pair on it.
type site struct {
	t        *testing.T
	pool     *pgxpool.Pool // the superuser's
	database string
	runner   account // as whom the pair runs
	password string  // file
	elastic  string  // file
	index    string
	fleet    *rig.Fleet
	keys     []uuid.UUID // of the entities written
}

// newSite prepares a pair that logs in to Elasticsearch as login and writes to an index whose
// name begins with prefix.
func newSite(t *testing.T, login stack.Login, prefix string) *site {
	t.Helper()
	name := unique(t, "weft")
	s := &site{t: t, database: name, index: prefix + strings.ReplaceAll(name, "_", "-")}
	owner := role(t, name+"_owner")
	s.runner = role(t, name+"_runner")
	exec(t, "", "create database "+name)
	t.Cleanup(func() {
		if err := execOn(context.Background(), superuser(t, ""), "drop database "+name+" with (force)"); err != nil {
			t.Error(err)
		}
	})
	roles, err := os.ReadFile("../../deploy/postgres/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	// The names are this test's, so that tests may run side by side.
	exec(t, name, strings.NewReplacer("'weft_owner'", "'"+owner.name+"'", "'weft'", "'"+s.runner.name+"'", "to weft_owner", "to "+owner.name, "to weft;", "to "+s.runner.name+";").Replace(string(roles)))

	s.password, s.elastic = write(t, "database", s.runner.password+"\n"), write(t, "elastic", login.Password+"\n")
	dir, binary := t.TempDir(), testenv.Program(t, "weft")
	s.fleet = &rig.Fleet{Binary: binary, Dir: dir, Env: rig.Environment(os.Environ(), false,
		"DATABASE_URL="+s.runner.url(t, name, nil), "DATABASE_PASSWORD_FILE="+s.password,
		"ELASTIC_URL="+shared.ElasticURL(), "ELASTIC_CA_FILE="+write(t, "ca.pem", string(shared.keys.Authority.PEM())),
		"ELASTIC_USERNAME="+login.Name, "ELASTIC_PASSWORD_FILE="+s.elastic, "ELASTIC_INDEX="+s.index, "WEFT_GROUP="+s.index,
		"WEFT_LEADER_TRUST=20s", "WEFT_LEADER_IDLE_SESSION=25s")} // so that a machine that stands still for a moment ends no term
	t.Cleanup(func() {
		if err := s.fleet.Stop(); err != nil {
			t.Error(err)
		}
		logs, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
		if err != nil {
			t.Error(err)
		}
		for _, name := range logs {
			if text, err := os.ReadFile(name); err == nil && t.Failed() {
				t.Logf("%s:\n%s", filepath.Base(name), text)
			}
		}
	})
	migrator := &rig.Fleet{Binary: binary, Dir: dir, Env: rig.Environment(os.Environ(), false,
		"DATABASE_URL_FILE="+write(t, "owner", owner.url(t, name, nil)+"&password="+url.QueryEscape(owner.password)))}
	if err := s.fleet.Run(t.Context(), "migrate", "up"); err == nil || !strings.Contains(err.Error(), "may not create tables") {
		t.Errorf("migration by the role that runs: got %v, want a refusal", err)
	}
	for _, args := range [][]string{{"migrate", "up"}, {"migrate", "grant", s.runner.name}, {"migrate", "grant", s.runner.name}} {
		if err := migrator.Run(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	s.pool = testenv.Pool(t, superuser(t, name))
	return s
}

func (s *site) start(name string, env ...string) *rig.Instance {
	s.t.Helper()
	i, err := s.fleet.Start(s.t.Context(), name, append(env, "OUTBOX_RECLAIM_INTERVAL_SECONDS=0.5")...)
	if err == nil {
		err = i.Ready(s.t.Context())
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return i
}

// produce commits n entities with their events, as an application does.
func (s *site) produce(n int) {
	s.t.Helper()
	err := pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
		for range n {
			id := uuid.New()
			s.keys = append(s.keys, id)
			if _, err := tx.Exec(s.t.Context(), `insert into search_index (entity_type, entity_id, text, event_version) values ('book', $1, 'x', 1)`, id); err != nil {
				return err
			}
			if err := outbox.Enqueue(s.t.Context(), tx, "search_outbox_events", outbox.NewEvent{Key: outbox.Key{Type: "book", ID: outbox.UUID(id)}, Op: outbox.Upsert, Version: 1}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// settled waits until all that was produced is done, and in Elasticsearch.
func (s *site) settled() {
	s.t.Helper()
	testenv.Eventually(s.t, func() bool {
		return one[int](s, "select count(*) from search_outbox_events where status <> 'done'") == 0
	}, "all events done")
	if got := one[int](s, "select count(*) from search_outbox_events"); got != len(s.keys) {
		s.t.Errorf("events: got %d, want %d", got, len(s.keys))
	}
	var found struct{ Count int }
	s.ask(http.MethodPost, "/"+s.index+"/_refresh", nil)
	s.ask(http.MethodGet, "/"+s.index+"/_count", &found)
	if found.Count != len(s.keys) {
		s.t.Errorf("documents: got %d, want %d", found.Count, len(s.keys))
	}
}

func (s *site) ask(method, path string, into any) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, shared.ElasticURL()+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.SetBasicAuth(shared.keys.Admin.Name, shared.keys.Admin.Password)
	res, err := shared.keys.Client().Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	if err == nil && into != nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
}

func one[T any](s *site, sql string, args ...any) (v T) {
	s.t.Helper()
	if err := s.pool.QueryRow(context.WithoutCancel(s.t.Context()), sql, args...).Scan(&v); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// backends are the process ids of the sessions whose application_name ends in use.
func (s *site) backends(use string) (pids []int32) {
	s.t.Helper()
	return one[[]int32](s, `select coalesce(array_agg(pid order by pid), '{}') from pg_stat_activity
		where datname = current_database() and application_name like '%/' || $1`, use)
}

// term is the epoch and its holder.
func (s *site) term() string {
	s.t.Helper()
	return one[string](s, "select epoch || ' ' || instance from weft_leader")
}

func (s *site) awaitTerm(want string) {
	s.t.Helper()
	testenv.Eventually(s.t, func() bool { return s.term() == want }, "term "+want)
}

// lines are those of an instance's log with an event.
func lines(t *testing.T, i *rig.Instance, event string) (found []string) {
	t.Helper()
	text, err := os.ReadFile(i.Log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, `"event":"`+event+`"`) {
			found = append(found, line)
		}
	}
	return found
}

// reload sends SIGHUP, and returns the line that answers it.
func (s *site) reload(i *rig.Instance, event string) string {
	s.t.Helper()
	before := len(lines(s.t, i, event))
	if _, err := i.Signal(syscall.SIGHUP); err != nil {
		s.t.Fatal(err)
	}
	var all []string
	testenv.Eventually(s.t, func() bool {
		all = lines(s.t, i, event)
		return len(all) > before
	}, event+" in the log of "+i.Name)
	return all[len(all)-1]
}

func (s *site) put(path, text string) {
	s.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// A pair on servers that ask for everything, as a role with the least rights: it leads,
// claims, settles, hands over, takes over from a killed and from a frozen leader whose
// transaction is in the way, reclaims, and says how it is.
func TestPairWithLeastRights(t *testing.T) {
	t.Parallel()
	s := newSite(t, shared.keys.Weft, "made-")
	s.start("a")
	s.awaitTerm("1 a")
	b := s.start("b")
	s.produce(50)
	s.settled()

	if _, err := s.fleet.Output(t.Context(), "resign", "--by", "test", "--why", "test"); err != nil {
		t.Fatal(err)
	}
	s.awaitTerm("2 b")
	s.produce(50)
	s.settled()

	// What a leader of the first term would have left.
	s.keys = append(s.keys, uuid.New())
	left := s.keys[len(s.keys)-1]
	if _, err := s.pool.Exec(t.Context(), `insert into search_index (entity_type, entity_id, text, event_version) values ('book', $1, 'x', 1)`, left); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), `insert into search_outbox_events (entity_type, entity_id, op, event_version, status, owner, epoch, lease_until, processing_started_at)
		values ('book', $1, 'upsert', 1, 'processing', 'a', 1, now() + interval '1 h', now())`, left); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	s.awaitTerm("3 a")
	s.settled()
	if got := one[int](s, "select count(*) from weft_audit where action = 'reclaim' and from_owner = 'a' and by_epoch in (2, 3)"); got != 1 {
		t.Errorf("reclaims on record: got %d, want 1", got)
	}

	c := s.start("c", "WEFT_LEADER_TRUST=3s", "WEFT_LEADER_IDLE_SESSION=5s")
	if _, err := s.fleet.Output(t.Context(), "resign", "--by", "test", "--why", "test"); err != nil {
		t.Fatal(err)
	}
	s.awaitTerm("4 c")
	conn, err := pgx.Connect(t.Context(), s.runner.url(t, s.database, func(_ *url.URL, q url.Values) {
		q.Set("password", s.runner.password)
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	application := one[string](s, "select application_name from pg_stat_activity where datname = current_database() and application_name like '%/c/lock'")
	for _, sql := range []string{
		"set application_name = '" + strings.TrimSuffix(application, "lock") + "work'",
		"begin", "select from weft_leader for key share",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.awaitTerm("5 a")
	testenv.Eventually(t, func() bool { // it is recorded beside the work
		return one[int](s, "select count(*) from weft_audit where action = 'session_ended' and actor = 'a'") == 1
	}, "the end of the session on record")
	s.produce(50)
	s.settled()
	if _, err := c.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := c.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if out, err := s.fleet.Output(t.Context(), "status", "--json"); err != nil || !strings.Contains(string(out), `"epoch": 5`) || !strings.Contains(string(out), `"application_name": "weft/`) {
		t.Errorf("status: got %s, %v", out, err)
	}
}

// What the role that runs may not do.
func TestRunnerMayNotMore(t *testing.T) {
	t.Parallel()
	s := newSite(t, shared.keys.Weft, "made-")
	pool := testenv.Pool(t, s.runner.url(t, s.database, func(_ *url.URL, q url.Values) { q.Set("password", s.runner.password) }))
	for _, sql := range []string{
		"insert into search_outbox_events (entity_type, entity_id, op, event_version) values ('book', gen_random_uuid(), 'delete', 1)",
		"update search_outbox_events set entity_id = gen_random_uuid()",
		"update search_outbox_events set event_version = 0",
		"delete from search_outbox_events",
		"truncate search_outbox_events",
		"update search_index set text = 'x'",
		"delete from weft_audit",
		"update weft_audit set why = ''",
		"update environment_sentinel set env = 'dev'",
		"delete from weft_leader",
		"update weft_schema_version set version_id = 0",
		"create table mine (id int)",
		"drop table weft_leader",
		"alter table search_outbox_events add column mine int",
		"select from pg_authid",
	} {
		_, err := pool.Exec(t.Context(), sql)
		if err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: got %v, want permission denied", sql, err)
		}
	}
}

// New passwords of both servers are taken up without a change of the term, and bad ones
// change nothing.
func TestRotation(t *testing.T) {
	t.Parallel()
	s := newSite(t, shared.keys.Changing, "made-")
	pair := []*rig.Instance{s.start("a")}
	s.awaitTerm("1 a")
	pair = append(pair, s.start("b"))
	s.produce(20)
	s.settled()
	locks := s.backends("lock")

	for round := range 2 {
		t.Logf("round %d", round)
		work := s.backends("work")
		database, elastic := fmt.Sprintf("n'e & w%d", round), fmt.Sprintf("elastic-%d", round)
		if _, err := s.pool.Exec(t.Context(), "alter role "+s.runner.name+" password '"+strings.ReplaceAll(database, "'", "''")+"'"); err != nil {
			t.Fatal(err)
		}
		if err := shared.SetElasticPassword(elastic); err != nil {
			t.Fatal(err)
		}
		s.put(s.password, database+"\n")
		s.put(s.elastic, elastic+"\n")
		s.awaitElastic(elastic)
		s.produce(100)
		for _, i := range pair {
			line := s.reload(i, "config.reloaded")
			for _, want := range []string{"database.password", "elastic.password"} {
				if !strings.Contains(line, want) {
					t.Errorf("%s: got %s, want %s in it", i.Name, line, want)
				}
			}
			if strings.Contains(line, database) || strings.Contains(line, elastic) {
				t.Errorf("the log shows a password: %s", line)
			}
		}
		s.produce(100)
		s.settled()
		testenv.Eventually(t, func() bool {
			now := s.backends("work")
			return len(now) > 0 && !slices.ContainsFunc(now, func(pid int32) bool { return slices.Contains(work, pid) })
		}, "new connections instead of those of the old password")
	}
	if got := s.backends("lock"); !slices.Equal(got, locks) {
		t.Errorf("lock sessions: got %v, want %v", got, locks)
	}
	if got := s.term(); got != "1 a" {
		t.Errorf("term: got %s, want the first", got)
	}

	good, err := os.ReadFile(s.password)
	if err != nil {
		t.Fatal(err)
	}
	keep := s.backends("work")
	for _, bad := range []struct{ file, text, want string }{
		{s.password, "", "is empty: want one line with the value"},
		{s.password, "guess", "refuses the password"},
		{s.elastic, "guess", "does not let user"},
	} {
		before, err := os.ReadFile(bad.file)
		if err != nil {
			t.Fatal(err)
		}
		s.put(bad.file, bad.text)
		if line := s.reload(pair[0], "config.reload_failed"); !strings.Contains(line, bad.want) || !strings.Contains(line, "stays as it was") || strings.Contains(line, "guess") {
			t.Errorf("bad %s: got %s, want %q in it", filepath.Base(bad.file), line, bad.want)
		}
		s.metric(pair[0], `weft_config_last_reload_successful\{.*\} 0`)
		s.put(bad.file, string(before))
	}
	if bad := s.backends("work"); !slices.ContainsFunc(bad, func(pid int32) bool { return slices.Contains(keep, pid) }) {
		t.Errorf("connections: got %v, want those of before, %v, for the empty and the wrong file", bad, keep)
	}
	s.produce(50)
	s.settled()
	s.put(s.password, string(good))
	s.reload(pair[0], "config.reloaded")
	s.metric(pair[0], `weft_config_last_reload_successful\{.*\} 1`)
	if got := s.term(); got != "1 a" {
		t.Errorf("term: got %s, want the first", got)
	}

	// The successor logs in with what it has taken up.
	if _, err := pair[0].Kill(); err != nil {
		t.Fatal(err)
	}
	s.produce(50)
	s.awaitTerm("2 b")
	s.settled()
}

// awaitElastic waits until the server has taken note of a password.
func (s *site) awaitElastic(password string) {
	s.t.Helper()
	testenv.Eventually(s.t, func() bool {
		req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, shared.ElasticURL()+"/_security/_authenticate", nil)
		if err != nil {
			s.t.Fatal(err)
		}
		req.SetBasicAuth(shared.keys.Changing.Name, password)
		res, err := shared.keys.Client().Do(req)
		if err != nil {
			s.t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	}, "the new password at Elasticsearch")
}

func (s *site) metric(i *rig.Instance, want string) {
	s.t.Helper()
	line := regexp.MustCompile(want)
	testenv.Eventually(s.t, func() bool {
		req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, i.URL("/metrics"), nil)
		if err != nil {
			s.t.Fatal(err)
		}
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			s.t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return err == nil && line.Match(text)
	}, want)
}
