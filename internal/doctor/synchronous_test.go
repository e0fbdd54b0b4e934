package doctor

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
	"github.com/samuelhu324-dev/weft/migrations"
)

// Commits that wait for a replica which is gone are found by a role that sees replicas and by one that does not. What the
// latter cannot see is said.
func TestReplicaThatDoesNotAnswerIsFound(t *testing.T) {
	t.Parallel()
	s, err := stack.Start(t.Context(), stack.Options{Progress: io.Discard, Quick: true, ElasticURL: testenv.ElasticURL(t), Replication: stack.Synchronous,
		Versions: stack.Versions{PostgresMajor: testenv.PostgresMajor(t)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	pool := testenv.Pool(t, s.DatabaseURL())
	exec(t, pool, "create role weft login") // the servers ask for no password
	if _, err := migrations.Up(t.Context(), s.DatabaseURL()); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Grant(t.Context(), s.DatabaseURL(), "weft"); err != nil {
		t.Fatal(err)
	}
	least := strings.Replace(s.DatabaseURL(), "//postgres@", "//weft@", 1)
	examined := func(url string) []Finding {
		t.Helper()
		found, err := patient(t, url).all(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(found, func(f Finding) bool { return f.Check != "postgres.synchronous" })
	}
	const check, name = "postgres.synchronous", "synchronous_standby_names"
	const grant = "grant pg_read_all_stats to weft;"
	if found := examined(s.DatabaseURL()); len(found) > 0 {
		t.Errorf("the replica answers: got %+v, want nothing", found)
	}
	wantFinding(t, examined(least), want{check, Note, name, "the role may not see whether they answer", grant})
	exec(t, pool, grant)
	if found := examined(least); len(found) > 0 {
		t.Errorf("after the grant: got %+v, want nothing", found)
	}
	exec(t, pool, "revoke pg_read_all_stats from weft")

	settings := []string{"ANY 2 (weft_replica, other)", "First 1(other)", "2 (other, weft_replica)", "other"}
	for _, setting := range settings {
		exec(t, pool, "alter system set synchronous_standby_names = '"+setting+"'", "select pg_reload_conf()")
		testenv.Eventually(t, func() bool { return len(examined(s.DatabaseURL())) == 1 }, "the setting "+setting+" is found")
		wantFinding(t, examined(s.DatabaseURL()), want{check, Error, name, "(" + setting + ")", "alter system set synchronous_standby_names = ''"})
	}

	exec(t, pool, "alter system set synchronous_standby_names = 'weft_replica'", "select pg_reload_conf()")
	if err := s.Do(t.Context(), stack.KillServer, stack.Replica); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{s.DatabaseURL(), least} {
		testenv.Eventually(t, func() bool { return len(examined(url)) == 1 && examined(url)[0].Severity == Error }, "the dead replica is found by "+url)
		wantFinding(t, examined(url), want{check, Error, name, "commits wait for 1 of its replicas (weft_replica), and 0 answer: nobody can lead", "start the replica"})
	}
	_, remedy, _ := strings.Cut(examined(least)[0].Remedy, "for good: ")
	exec(t, pool, strings.SplitAfter(remedy, "; ")...)
	testenv.Eventually(t, func() bool { return len(examined(least)) == 0 }, "nothing is found after the remedy")
	exec(t, pool, "create table committed ()")
}
