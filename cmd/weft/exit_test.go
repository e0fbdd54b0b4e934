package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// A command that Elasticsearch does not answer sends nobody to Postgres.
func TestSilentElasticsearchIsNotPostgres(t *testing.T) {
	t.Parallel()
	sink, err := elastic.New(elastic.Config{URLs: []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}, Index: "docs"}, zap.NewNop(), prometheus.NewRegistry(), "search")
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	_, err = sink.Count(t.Context())
	code, text := diagnose(fmt.Errorf("verify search: %w", err))
	if code != exitUnavailable || !strings.Contains(text, "Elasticsearch at 127.0.0.1:1, 127.0.0.1:2 does not answer") || strings.Contains(text, "Postgres") {
		t.Errorf("got %d, %q, want %d and the addresses of Elasticsearch", code, text, exitUnavailable)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	pg := func(code string) error { return &pgconn.PgError{Code: code, Message: "x"} }
	for _, tc := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{&exitError{exitBad, "nobody leads"}, 1},
		{&exitError{exitUsage, "no such flag"}, 64},
		{pg("57P03"), 69},
		{pg("53300"), 69},
		{context.DeadlineExceeded, 69},
		{errors.New("a fault"), 70},
		{pg("42P01"), 75},
		{pg("25006"), 75},
		{postgres.ErrReadOnly, 75},
		{leader.ErrReadOnly, 75},
		{leader.ErrNotMigrated, 75},
		{&migrations.BehindError{Have: 1, Want: 3}, 75},
		{&migrations.LockError{What: "x"}, 75},
		{pg("28P01"), 77},
		{pg("42501"), 77},
		{&postgres.EnvironmentError{Want: "dev", Have: "test"}, 77},
		{&migrations.AheadError{Have: 4, Knows: 3}, 77},
		{syscall.EACCES, 77},
		{&config.Problem{Msg: "x"}, 78},
		{errors.Join(&config.Problem{Msg: "x"}, &config.Problem{Msg: "y"}), 78},
		{pg("3D000"), 78},
		{pg("26000"), 78},
		{leader.ErrPooled, 78},
		{postgres.ErrPooler, 78},
		{leader.ErrServerTooOld, 78},
		{syscall.EADDRINUSE, 75},
	} {
		err := tc.err
		if err != nil {
			if _, joined := err.(interface{ Unwrap() []error }); !joined {
				err = fmt.Errorf("some work: %w", err)
			}
		}
		code, lines := explain(err)
		if code != tc.want {
			t.Errorf("%v: got %d, want %d", err, code, tc.want)
		}
		if code == 2 {
			t.Errorf("%v: 2 is what a panic exits with", err)
		}
		if tc.err != nil && (len(lines) == 0 || lines[0] == "") {
			t.Errorf("%v: says nothing", err)
		}
	}
}
