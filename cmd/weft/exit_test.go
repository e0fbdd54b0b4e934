package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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

// A fault of Elasticsearch blames neither Postgres nor weft, whatever the command asked for.
func TestFaultsOfElasticsearch(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status int // of the answer; 0 for none
		body   string
		code   int
		want   string
	}{
		"Silent":       {code: exitUnavailable, want: "Elasticsearch at 127.0.0.1:1, 127.0.0.1:2 does not answer: "},
		"Overloaded":   {429, `{"error":{"type":"circuit_breaking_exception","reason":"too large"}}`, exitUnavailable, " cannot answer now: "},
		"Starting":     {503, `{"error":{"type":"cluster_block_exception","reason":"state not recovered"}}`, exitUnavailable, "status 503: cluster_block_exception: state not recovered; look at its load"},
		"NoLogin":      {401, `{"error":{"type":"security_exception","reason":"missing token"}}`, exitRefused, "asks who we are: give ELASTIC_USERNAME"},
		"NoPrivilege":  {403, `{"error":{"type":"security_exception","reason":"is unauthorized"}}`, exitRefused, "a client without credentials lacks a privilege on \"docs\""},
		"MissingIndex": {404, `{"error":{"type":"index_not_found_exception","reason":"no such index [docs]"}}`, exitTryAgain, "neither an alias nor an index is named \"docs\" at 127.0.0.1:"},
		"ClosedIndex":  {400, `{"error":{"type":"index_closed_exception","reason":"closed","index":"docs-v1"}}`, exitTryAgain, "index is closed at 127.0.0.1:"},
		"Blocked":      {403, `{"error":{"type":"cluster_block_exception","reason":"index [docs-v1] blocked by: [FORBIDDEN/9/index metadata (api)];"}}`, exitTryAgain, `ask who set it, then: PUT /docs-v1/_settings {"index.blocks.metadata":null}`},
		"ClusterBlock": {403, `{"error":{"type":"cluster_block_exception","reason":"blocked by: [FORBIDDEN/10/cluster create-index blocked (api)];"}}`, exitTryAgain, "cluster.blocks in GET /_cluster/settings"},
		"CreateBlock":  {403, `{"error":{"type":"index_create_block_exception","reason":"blocked by: [FORBIDDEN/10/cluster create-index blocked (api)];"}}`, exitTryAgain, "cluster.blocks in GET /_cluster/settings"},
		"Proxy":        {404, `<html>no such page</html>`, exitConfig, "the answer is not one of Elasticsearch (no X-Elastic-Product header) or OpenSearch: status 404 from 127.0.0.1:"},
		"ProxyRefuses": {403, `<html>no</html>`, exitRefused, "a client without credentials lacks a privilege on \"docs\""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			urls := []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}
			if tc.status != 0 {
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if !strings.HasPrefix(tc.body, "<") {
						w.Header().Set("X-Elastic-Product", "Elasticsearch")
					}
					w.WriteHeader(tc.status)
					fmt.Fprint(w, tc.body)
				}))
				t.Cleanup(server.Close)
				urls = []string{server.URL}
			}
			sink, err := elastic.New(elastic.Config{URLs: urls, Index: "docs"}, zap.NewNop(), prometheus.NewRegistry(), "search")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(sink.Close)
			_, counted := sink.Count(t.Context())
			_, got := sink.Get(t.Context(), elastic.Doc{ID: "1"})
			for what, err := range map[string]error{"count": counted, "get": got, "check": sink.CheckDefinition(t.Context())} {
				if what == "get" && tc.code == exitTryAgain || what == "check" && (errors.Is(err, elastic.ErrUnchecked) || tc.status == http.StatusBadRequest) {
					continue // there is no document; the mapping can go unchecked, and it is not that of an index
				}
				code, text := diagnose(fmt.Errorf("verify search: %w", err))
				if code != tc.code || !strings.Contains(text, tc.want) || strings.Contains(text, "Postgres") {
					t.Errorf("%s: got %d, %q, want %d and %q", what, code, text, tc.code, tc.want)
				}
			}
		})
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
		{pg("53100"), 69},
		{context.DeadlineExceeded, 69},
		{errors.New("a fault"), 70},
		{pg("42P01"), 75},
		{pg("25006"), 75},
		{postgres.ErrReadOnly, 75},
		{leader.ErrReadOnly, 75},
		{leader.ErrNotMigrated, 75},
		{&migrations.BehindError{Have: 1, Want: 3}, 75},
		{elastic.ErrOtherIndex, 75},
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
