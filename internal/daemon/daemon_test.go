package daemon_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/daemon"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/telemetry"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestPairCarriesChangesAndHandsOver(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	b := r.start("b")
	b.awaitReady(200, `"role": "standby"`)

	keys := make([]outbox.Key, 50)
	for i := range keys {
		keys[i] = newKey()
		r.upsert(keys[i], 1, "first")
	}
	r.await(map[string]int{"done": 50})
	if err := a.stop(); err != nil {
		t.Errorf("graceful stop returned %v", err)
	}
	for i, k := range keys {
		if i%2 == 0 {
			r.upsert(k, 2, "second")
		} else {
			r.remove(k, 2)
		}
	}
	r.await(map[string]int{"done": 100})
	b.awaitReady(200, `"role": "leader"`)
	for i, k := range keys {
		found, version, source := r.document(k)
		switch {
		case i%2 == 0 && (!found || version != 2 || source["text"] != "second"):
			t.Errorf("document %d: found %v, version %d, %v, want the second", i, found, version, source)
		case i%2 == 1 && found:
			t.Errorf("document %d came back", i)
		}
	}
	var terms int
	var reason string
	if err := r.pool.QueryRow(t.Context(), "select count(*), min(end_reason) from weft_term where group_name = $1", r.group).Scan(&terms, &reason); err != nil || terms != 2 {
		t.Errorf("%d terms, %v, want 2", terms, err)
	}
	testenv.Eventually(t, func() bool {
		return b.metric("outbox_processed_total", `projection="search_index_to_elastic"`, `component="worker"`, `env="test"`) == 50
	}, "50 events that b has processed")
}

func TestPostgresAwayAtStartAndLater(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newLink(t, host(t, r.url))
	p.cut()
	direct := r.url
	r.url = p.through(direct)
	a := r.start("a")
	a.awaitReady(503, `"postgres"`)
	p.heal()
	a.awaitReady(200, `"role": "leader"`)
	r.upsert(newKey(), 1, "x")
	r.await(map[string]int{"done": 1})

	p.cut()
	a.awaitReady(503, `"postgres"`)
	r.upsert(newKey(), 1, "y") // the application has its own way in
	p.heal()
	r.await(map[string]int{"done": 2})
	a.awaitReady(200, `"role": "leader"`)
	for _, event := range []string{"dependency.down", "dependency.up"} {
		n := 0
		for _, l := range a.logs.with("event", event) {
			if l["dependency"] == "postgres" {
				n++
			}
		}
		if n == 0 || n > 3 {
			t.Errorf("%d lines %s for postgres, want one per change", n, event)
		}
	}
}

func TestElasticAwayAtStartAndLater(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newLink(t, host(t, r.elastic))
	p.cut()
	direct := r.elastic
	r.elastic = p.through(direct)
	a := r.start("a")
	r.elastic = direct
	a.awaitReady(503, `"elasticsearch"`, `"role": "leader"`)
	var keys []outbox.Key
	for range 200 {
		k := newKey()
		keys = append(keys, k)
		r.upsert(k, 1, "x")
	}
	testenv.Eventually(t, func() bool {
		return a.metric("outbox_retry_scheduled_total", `reason="es_connect"`) > 0
	}, "a retry for es_connect")
	p.heal()
	r.await(map[string]int{"done": 200})
	a.awaitReady(200)

	p.cut()
	for _, k := range keys {
		r.upsert(k, 2, "y")
	}
	a.awaitReady(503, `"elasticsearch"`)
	p.heal()
	r.await(map[string]int{"done": 400})
	if got := a.metric("outbox_failed_total"); got != 0 {
		t.Errorf("%v events failed in an outage", got)
	}
	for _, k := range keys {
		if found, version, _ := r.document(k); !found || version != 2 {
			t.Fatalf("%v: found %v at version %d, want 2", k, found, version)
		}
	}
}

// What only a person can heal ends the start, with an error that names it.
func TestStartRefuses(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, r *rig, env ...string) error {
		t.Helper()
		cfg := r.config("a", env...)
		tel, err := telemetry.New(&logs{}, telemetry.Options{})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- daemon.Run(t.Context(), cfg, tel, "test", daemon.Reload{}) }()
		select {
		case err := <-done:
			return err
		case <-time.After(testenv.Limit):
			t.Fatal("still running")
			return nil
		}
	}
	t.Run("MissingMigration", func(t *testing.T) {
		t.Parallel()
		err := run(t, newRig(t, testenv.Schema(t)))
		if _, ok := errors.AsType[*migrations.BehindError](err); !ok || !strings.Contains(err.Error(), "weft migrate up") {
			t.Errorf("error %v, want one that says to migrate", err)
		}
	})
	t.Run("WrongEnvironment", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		r.exec("insert into environment_sentinel (id, env) values (1, 'dev')")
		err := run(t, r, "WORDLOOM_ENV=test")
		if kind, text := postgres.Diagnose(err); kind != postgres.WrongEnvironment || !strings.Contains(text, "dev") {
			t.Errorf("error %v (%v), want one that names dev", err, kind)
		}
	})
	t.Run("UnknownDatabase", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		r.url = strings.Replace(r.url, "?", "_missing?", 1)
		if kind, text := postgres.Diagnose(run(t, r)); kind != postgres.UnknownDatabase || !strings.Contains(text, "_missing") {
			t.Errorf("kind %v, %q, want an unknown database by name", kind, text)
		}
	})
	t.Run("UnknownRole", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		r.url = strings.Replace(r.url, "postgres@", "nobody_here:hunter2@", 1)
		kind, text := postgres.Diagnose(run(t, r))
		if kind != postgres.WrongPassword || strings.Contains(text, "hunter2") {
			t.Errorf("kind %v, %q, want a refused login without the password", kind, text)
		}
	})
	t.Run("WrongPassword", func(t *testing.T) {
		t.Parallel()
		if testenv.PostgresMajor(t) < 16 {
			t.Skip("the stack asks for passwords by a pattern in pg_hba.conf, which PostgreSQL has from 16 on")
		}
		r := setup(t)
		role := "weft_password_" + r.group // the stack asks roles of this name for their password
		r.exec(fmt.Sprintf("create role %s login password 'right'", role))
		t.Cleanup(func() { r.exec("drop role " + role) })
		r.url = strings.Replace(r.url, "postgres@", role+":hunter2@", 1)
		kind, text := postgres.Diagnose(run(t, r))
		if kind != postgres.WrongPassword || strings.Contains(text, "hunter2") || strings.Contains(text, "\n") {
			t.Errorf("kind %v, %q, want one line about the password, without it", kind, text)
		}
	})
	t.Run("TakenPort", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		addr := r.start("first").address()
		port := addr[strings.LastIndexByte(addr, ':')+1:]
		if err := run(t, r, "OUTBOX_METRICS_PORT="+port); err == nil || !strings.Contains(err.Error(), "OUTBOX_METRICS_PORT") {
			t.Errorf("error %v, want one that names the port and the setting", err)
		}
	})
}

// A leader whose new sessions take no writes, by a setting of its role, says so for as long as that lasts, although its lists go
// through.
func TestSessionsThatBecomeReadOnlyAreToldSteadily(t *testing.T) {
	t.Parallel()
	r := setup(t)
	role := pgx.Identifier{r.runner.Username()}.Sanitize()
	a := r.start("a")
	a.awaitReady(200, `"role": "leader"`)
	downs := func() (n int) {
		for _, line := range a.logs.with("event", "dependency.down") {
			if line["dependency"] == "postgres" {
				n++
			}
		}
		return n
	}
	r.exec("alter role " + role + " set default_transaction_read_only = on")
	r.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name like '%/work'")
	r.upsert(newKey(), 1, "waits")
	a.awaitReady(503, "takes no writes, although it is no standby: default_transaction_read_only is on", `"role": "leader"`)
	told := downs()
	testenv.Eventually(t, func() bool {
		var long bool
		err := r.pool.QueryRow(t.Context(), "select clock_timestamp() - seen_at > '8 s' from weft_instance").Scan(&long)
		return err == nil && long
	}, "a while without an announcement")
	if n := downs() - told; n > 0 {
		t.Errorf("told %d times more, want it told steadily", n)
	}
	r.exec("alter role " + role + " reset default_transaction_read_only")
	a.awaitReady(200, `"role": "leader"`)
	r.await(map[string]int{"done": 1})
}

// A read-only server may become the primary, and so may one of several: the instance stays up, says why it does not
// lead, and leads then.
func TestReadOnlyServerIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{"One": "", "Several": ",localhost:"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			role, at := pgx.Identifier{r.runner.Username()}.Sanitize(), host(t, r.url)
			if more != "" {
				more += at[strings.LastIndexByte(at, ':')+1:]
			}
			r.exec("alter role " + role + " set default_transaction_read_only = on")
			a := r.start("a", "DATABASE_URL="+strings.Replace(testenv.As(t, r.url, r.runner), at, at+more, 1))
			a.awaitReady(503, "read-only")
			r.exec("alter role " + role + " reset default_transaction_read_only")
			a.awaitReady(200, `"role": "leader"`)
		})
	}
}
