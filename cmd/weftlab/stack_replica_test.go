package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// replicated starts a PostgreSQL with a replica, and no Elasticsearch.
func replicated(t *testing.T, kind stack.Replication) *stack.Stack {
	t.Helper()
	s, err := stack.Start(t.Context(), stack.Options{
		ElasticURL:  testenv.ElasticURL(t),
		Replication: kind,
	})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func ask(ctx context.Context, url, statement string) (answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	err = conn.QueryRow(ctx, statement).Scan(&answer)
	return answer, err
}

// Twice round: the server that was lost comes back as the replica of the one that took
// over, and takes over from it. What was committed synchronously is there each time.
func TestReplicaIsPromotedAndReplaced(t *testing.T) {
	t.Parallel()

	s := replicated(t, stack.Synchronous)
	want := func(url, statement, answer string) {
		t.Helper()
		if got, err := ask(t.Context(), url, statement); err != nil || got != answer {
			t.Errorf("%s on %s: got %q (%v), want %q", statement, url, got, err, answer)
		}
	}
	const words = "select string_agg(word, ' ' order by n) from kept"
	if _, err := ask(t.Context(), s.PairURL(), "create table kept (n serial, word text)"); err != nil && !strings.Contains(err.Error(), "no rows") {
		t.Fatal(err)
	}
	primary, replica := stack.Postgres, stack.Replica
	kept := ""
	for round, end := range []stack.Operation{stack.KillServer, stack.StopServerImmediately} {
		want(s.URL(replica), "select pg_is_in_recovery()::text", "true")
		word := []string{"one", "two"}[round]
		want(s.PairURL(), "insert into kept (word) values ('"+word+"') returning word", word)
		kept = strings.TrimSpace(kept + " " + word)

		if err := s.Do(t.Context(), end, primary); err != nil {
			t.Fatalf("end of %s: %v", primary, err)
		}
		if _, err := ask(t.Context(), s.PairURL(), "select 'x'"); err == nil {
			t.Error("read-write session before the promotion: got one, want none")
		}
		if err := s.Do(t.Context(), stack.Promote, replica); err != nil {
			t.Fatalf("promote %s: %v", replica, err)
		}
		want(s.PairURL(), words, kept)
		primary, replica = replica, primary
		url := s.URL(replica)
		if err := s.MakeReplica(t.Context(), replica, stack.Synchronous); err != nil {
			t.Fatalf("make %s a replica: %v", replica, err)
		}
		if got := s.URL(replica); got != url {
			t.Errorf("URL of the new replica: got %s, want %s", got, url)
		}
		want(s.URL(primary), "select sync_state from pg_stat_replication", "sync")
		want(s.URL(replica), words, kept)
	}
	want(s.PairURL(), "select timeline_id::text from pg_control_checkpoint()", "3")

	for name, got := range map[string]error{
		"promotion of a primary":       s.Do(t.Context(), stack.Promote, primary),
		"replica of another kind":      s.MakeReplica(t.Context(), replica, "semi"),
		"replica that is not ours":     s.MakeReplica(t.Context(), stack.Elastic, stack.Asynchronous),
		"immediate stop of the others": s.Do(t.Context(), stack.StopServerImmediately, stack.Elastic),
	} {
		if got == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}

func TestReplicaNeedsAServerOfOurs(t *testing.T) {
	t.Parallel()

	_, err := stack.Start(t.Context(), stack.Options{
		DatabaseURL: testenv.Schema(t), ElasticURL: testenv.ElasticURL(t), Replication: stack.Asynchronous,
	})
	if err == nil || !strings.Contains(err.Error(), "DATABASE_URL is set") {
		t.Errorf("start with a replica of the caller's server: got %v, want a refusal", err)
	}
}
