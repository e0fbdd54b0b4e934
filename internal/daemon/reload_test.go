package daemon_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

// reloadable has the instances of r read next when they are asked to.
func (r *rig) reloadable() (ask func(in *instance, event string, environ ...string) map[string]any) {
	asked := make(chan os.Signal)
	var next atomic.Pointer[[]string]
	r.reload = daemon.Reload{Asked: asked, Load: func() (config.Config, error) {
		return config.Load(config.Options{Environ: *next.Load()})
	}}
	return func(in *instance, event string, environ ...string) map[string]any {
		r.t.Helper()
		before := len(in.logs.with("event", event))
		next.Store(&environ)
		select {
		case asked <- syscall.SIGHUP:
		case <-time.After(testenv.Limit):
			r.t.Fatal("the request was not taken")
		}
		var lines []map[string]any
		testenv.Eventually(r.t, func() bool {
			lines = in.logs.with("event", event)
			return len(lines) > before
		}, event)
		return lines[len(lines)-1]
	}
}

// What cannot be taken up is said, and the instance goes on as it was.
func TestReloadKeepsWhatItCannotTakeUp(t *testing.T) {
	t.Parallel()
	r := setup(t)
	reload := r.reloadable()
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	env := r.environ("a")

	for _, tc := range []struct{ name, event, extra, want string }{
		{"Nothing", "config.reloaded", "", ""},
		{"Restart", "config.needs_restart", "OUTBOX_BULK_SIZE=7", "outbox.bulk_size"},
		{"NotValid", "config.reload_failed", "OUTBOX_BULK_SIZE=0", "outbox.bulk_size"},
		{"OtherDatabase", "config.reload_failed", "DATABASE_URL=" + strings.Replace(r.url, "127.0.0.1", "127.0.0.2", 1), "names another server, database or parameter: that takes a restart"},
		{"OtherElastic", "config.reload_failed", "ELASTIC_URL=http://127.0.0.1:1", "another server: that takes a restart"},
		{"WrongRole", "config.reload_failed", "DATABASE_URL=" + strings.Replace(r.url, "postgres@", "nobody_here@", 1), `role "nobody_here" does not exist`},
	} {
		environ := env
		if tc.extra != "" {
			environ = append(environ[:len(environ):len(environ)], tc.extra)
		}
		line := reload(a, tc.event, environ...)
		text, _ := line["error"].(string)
		if settings, ok := line["settings"].([]any); ok {
			for _, s := range settings {
				text += s.(string)
			}
		}
		if !strings.Contains(text, tc.want) || tc.want == "" && text != "" {
			t.Errorf("%s: got %v, want %q in it", tc.name, line, tc.want)
		}
		if got, want := a.metric("weft_config_last_reload_successful"), map[bool]float64{true: 0, false: 1}[tc.event == "config.reload_failed"]; got != want {
			t.Errorf("%s: metric: got %v, want %v", tc.name, got, want)
		}
	}
	for range 20 {
		r.upsert(newKey(), 1, "x")
	}
	r.await(map[string]int{"done": 20})
	if got := a.metric("weft_leader_epoch"); got != 1 {
		t.Errorf("epoch: got %v, want 1", got)
	}
}

func TestReloadTakesUpTheLogLevel(t *testing.T) {
	t.Parallel()
	r := setup(t)
	reload := r.reloadable()
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	env := r.environ("a")
	line := reload(a, "config.reloaded", append(env, "WEFT_LOG_LEVEL=info")...)
	if settings, _ := line["settings"].([]any); len(settings) != 1 || settings[0] != "log.level" {
		t.Errorf("got %v, want the one setting that has changed", line)
	}
	if level := a.shown("/log/level"); !strings.Contains(level, `"info"`) {
		t.Errorf("the level is %s, want info", level)
	}
	reload(a, "config.reloaded", env...)
	if lines := a.logs.with("event", "log.level"); len(lines) != 2 || lines[1]["to"] != "debug" {
		t.Errorf("got %v, want both changes of the level", lines)
	}
}

// A role that lacks a right ends the start with the statement that gives it.
func TestMissingRightEndsTheStart(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.exec("revoke update (status) on search_outbox_events from " + r.runner.Username())
	a := r.start("a")
	<-a.done
	err := a.stop()
	var rights *migrations.RightsError
	if !errors.As(err, &rights) || !strings.Contains(err.Error(), `grant update (status) on "public"."search_outbox_events" to "`+r.runner.Username()+`"`) {
		t.Errorf("got %v, want what is lacking and the GRANT", err)
	}
}

// Readiness names the server, the role and the remedy when a right is taken away from a leader.
func TestRightThatIsTakenAwayIsNamed(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a")
	a.awaitReady(http.StatusOK, `"role": "leader"`)
	r.upsert(newKey(), 1, "x")
	r.await(map[string]int{"done": 1}) // the leader has read what operators hold back
	r.exec("revoke all on search_outbox_events from " + r.runner.Username())
	dsn, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	a.awaitReady(http.StatusServiceUnavailable, "Postgres at "+dsn.Host+dsn.Path+" denies permission to role "+r.runner.Username()+": permission denied for table search_outbox_events; grant it")

	// The answers of other calls do not take it back.
	r.exec("grant select, update on search_outbox_events to " + r.runner.Username() + "; revoke all on weft_pause from " + r.runner.Username())
	a.awaitReady(http.StatusServiceUnavailable, "permission denied for table weft_pause; grant it")
	usable := a.usable()
	r.upsert(newKey(), 1, "x")
	r.await(map[string]int{"done": 2})
	r.otherCallsAnswered()
	if got := a.usable(); got != usable {
		t.Errorf("readiness has come back %d times without the right", got-usable)
	}
	r.exec("grant select on weft_pause to " + r.runner.Username())
	a.awaitReady(http.StatusOK)
}

// Without one of these rights no event goes on, whatever other calls answer.
func TestRightWithoutWhichNothingGoesOnIsNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ right, table string }{
		{"insert", "weft_lease"}, {"select", "weft_lease"}, {"delete", "weft_lease"}, {"update", "search_outbox_events"},
	} {
		t.Run(c.right+" on "+c.table, func(t *testing.T) {
			t.Parallel()
			right := c.right + " on " + c.table
			r := setup(t)
			a := r.start("a")
			a.awaitReady(http.StatusOK, `"role": "leader"`)
			r.exec("revoke " + right + " from " + r.runner.Username())
			r.upsert(newKey(), 1, "x")
			a.awaitReady(http.StatusServiceUnavailable, "denies permission to role "+r.runner.Username()+": permission denied for table "+c.table+"; grant it")
			usable := a.usable()
			r.otherCallsAnswered()
			if got := a.usable(); got != usable {
				t.Errorf("readiness has come back %d times without the right", got-usable)
			}
			r.exec("grant " + right + " to " + r.runner.Username())
			a.awaitReady(http.StatusOK)
			r.await(map[string]int{"done": 1})
			if lines := a.logs.with("event", "outbox.settle_left"); len(lines) != 0 {
				t.Errorf("an entity is blamed: %v", lines)
			}
		})
	}
}

// A role that may not use the schema sees no table in it, and the server says that they are missing.
func TestSchemaThatTheRoleMayNotUseIsNamed(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.exec("revoke usage on schema public from public; grant usage on schema public to " + r.runner.Username())
	a := r.start("a")
	a.awaitReady(http.StatusOK, `"role": "leader"`)
	r.exec("revoke usage on schema public from " + r.runner.Username())
	a.awaitReady(http.StatusServiceUnavailable, "or run `weft migrate grant`, where the role may not use their schema")
	testenv.Eventually(t, func() bool {
		lines := a.logs.with("event", "leader.disconnected")
		return len(lines) > 0 && strings.Contains(fmt.Sprint(lines[0]["error"]), "the role may not use its schema")
	}, "the line of the leader")
	r.exec("grant usage on schema public to " + r.runner.Username())
	a.awaitReady(http.StatusOK)
}

// Where row security comes to hide rows from weft's role, an outbox would look empty, and a fence like that of a newer term.
func TestRowSecurityIsNamed(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"search_outbox_events", "weft_fence", "weft_pause", "weft_leader"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			a := r.start("a")
			a.awaitReady(http.StatusOK, `"role": "leader"`)
			r.exec("alter table " + table + " enable row level security")
			r.upsert(newKey(), 1, "x")
			a.awaitReady(http.StatusServiceUnavailable, `for table \"`+table+`\"; let the role bypass row security`)
			if lines := a.logs.with("event", "outbox.fenced"); len(lines) != 0 {
				t.Errorf("a newer term is made up: %v", lines)
			}
			r.exec("alter table " + table + " disable row level security")
			a.awaitReady(http.StatusOK)
			r.await(map[string]int{"done": 1})
		})
	}
}

// A standby that may not begin a term is not ready, also while it has a lock session.
func TestStandbyThatMayNotLeadIsNotReady(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a")
	a.awaitReady(http.StatusOK, `"role": "leader"`)
	b := r.start("b")
	b.awaitReady(http.StatusOK, `"role": "standby"`)
	r.exec("revoke update on weft_leader from " + r.runner.Username())
	for _, i := range []*instance{a, b} {
		// The leader stands by once before it has tried to lead again.
		i.awaitReady(http.StatusServiceUnavailable, `"role": "standby"`, "denies permission to role "+r.runner.Username()+": permission denied for table weft_leader; grant it")
		tries := func() float64 { return i.metric("weft_leader_transitions_total", `to="standby"`) }
		usable, tried := i.usable(), tries()
		testenv.Eventually(t, func() bool { return tries() >= tried+3 }, "more tries to lead")
		if got := i.usable(); got != usable {
			t.Errorf("readiness has come back %d times without the right", got-usable)
		}
	}
	r.exec("grant update on weft_leader to " + r.runner.Username())
	a.awaitReady(http.StatusOK)
	b.awaitReady(http.StatusOK)
}

// otherCallsAnswered waits for seconds in which the leader's heartbeat, among others, is answered.
func (r *rig) otherCallsAnswered() {
	r.t.Helper()
	var beat time.Time
	r.scan("select renewed_at from weft_leader where group_name = $1", []any{r.group}, &beat)
	testenv.Eventually(r.t, func() bool {
		var later bool
		r.scan("select renewed_at - $2::timestamptz > interval '3 s' from weft_leader where group_name = $1", []any{r.group, beat}, &later)
		return later
	}, "seconds in which other calls are answered")
}

// An instance of several shards says that others take a restart, and takes up the rest for all that it has.
func TestReloadOfShards(t *testing.T) {
	t.Parallel()
	r := sharded(t)
	reload := r.reloadable()
	a := r.start("a", fmt.Sprintf("WEFT_SHARDS=%d", shardCount))
	a.awaitReady(200)
	env := append(r.environ("a"), fmt.Sprintf("WEFT_SHARDS=%d", 2*shardCount), "WEFT_SHARDS_PREFIX=other_", "WEFT_LOG_LEVEL=info")
	got := reload(a, "config.needs_restart", env...)
	if want := []any{"shards.count", "shards.prefix"}; !slices.Equal(got["settings"].([]any), want) {
		t.Errorf("got %v, want %v", got, want)
	}
	testenv.Eventually(t, func() bool { return len(a.logs.with("event", "config.reloaded")) == shardCount }, "each shard has taken up the rest")
	a.awaitReady(200)
}

// What keeps the source from being read is told of as a fault of Postgres, and not of Elasticsearch.
func TestSourceThatCannotBeReadIsNamed(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a")
	a.awaitReady(http.StatusOK, `"role": "leader"`)
	r.upsert(newKey(), 1, "x")
	r.await(map[string]int{"done": 1})
	r.exec("revoke all on search_index from " + r.runner.Username())
	r.upsert(newKey(), 1, "x")
	const source = "postgres (source of search_index_to_elastic)"
	a.awaitReady(http.StatusServiceUnavailable, source, "permission denied for table search_index", "; grant select on it to weft's role")
	r.exec("grant select on search_index to " + r.runner.Username())
	r.await(map[string]int{"done": 2})
	a.awaitReady(http.StatusOK)
	for _, event := range []string{"dependency.down", "dependency.up"} {
		testenv.Eventually(t, func() bool { // readiness shows it before the line is written
			lines := a.logs.with("event", event)
			return len(lines) > 0 && lines[len(lines)-1]["dependency"] == source
		}, "the source as the last of the lines "+event)
	}
	if lines := a.logs.with("dependency", "elasticsearch"); len(lines) > 1 {
		t.Errorf("Elasticsearch was told of: %v, want that it is usable once", lines)
	}
}

// So is a query that is refused only while it runs, as by a function in it.
func TestSourceThatRefusesWhileItRunsIsNamed(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, s := range []string{
		"alter table search_index rename to books", "create table refuses ()",
		`create function readable() returns boolean language plpgsql as $$ begin
			if to_regclass('refuses') is not null then raise exception using errcode = '42501', message = 'permission denied for table prices'; end if;
			return true;
		end $$`,
		"create view search_index as select * from books where readable()", "alter table refuses rename to nobody",
		"grant select on search_index to " + r.runner.Username(),
	} {
		r.exec(s)
	}
	f := newFront(t, r.elastic)
	a := r.start("a", "ELASTIC_URL="+f.URL)
	a.awaitReady(http.StatusOK, `"role": "leader"`)
	r.upsert(newKey(), 1, "x")
	r.await(map[string]int{"done": 1})
	r.exec("alter table nobody rename to refuses")
	const n = 100 // more than a few may fail alone, before it is an outage
	for range n {
		r.upsert(newKey(), 1, "x")
	}
	const source = "postgres (source of search_index_to_elastic)"
	a.awaitReady(http.StatusServiceUnavailable, source, "source.query of projection search_index_to_elastic: ", "permission denied for table prices")
	trial := f.hold(t)
	r.exec("alter table refuses rename to nobody")
	<-trial.arrived // nor is it Elasticsearch's fault while the trial takes its time
	testenv.Eventually(t, func() bool {
		lines := a.logs.with("event", "dependency.up")
		return lines[len(lines)-1]["dependency"] == source
	}, "the source to be told of as usable")
	f.set(nil)
	trial.release()
	r.await(map[string]int{"done": n + 1})
	a.awaitReady(http.StatusOK)
	if lines := a.logs.with("event", "dependency.down"); len(lines) == 0 || lines[len(lines)-1]["dependency"] != source {
		t.Errorf("dependency.down: got %v, want the source", lines)
	}
	if lines := a.logs.with("dependency", "elasticsearch"); len(lines) > 1 {
		t.Errorf("Elasticsearch was told of: %v, want that it is usable once", lines)
	}
	for _, line := range a.logs.with("event", "projection.outage") {
		if text := fmt.Sprint(line["msg"], line["message"]); !strings.Contains(text, "source or destination unusable") {
			t.Errorf("projection.outage: got %v, want the source named", line)
		}
	}
}
