package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/stack"
)

// members asks a node how many there are, itself among them. A node without a master says so.
func members(ctx context.Context, node string) (n int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, node+"/_cluster/health?master_timeout=1s", nil)
	if err != nil {
		return 0, err
	}
	request.Close = true
	response, err := (&http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, errors.New(response.Status)
	}
	var health struct {
		Nodes int `json:"number_of_nodes"`
	}
	err = json.NewDecoder(response.Body).Decode(&health)
	return health.Nodes, err
}

// Three nodes are one cluster. One that is killed, and one that is cut off, is missed by the
// others and comes back; the one that is cut off has no master for as long.
func TestNodesOfACluster(t *testing.T) {
	t.Parallel()
	if testenv.Volume(0, 1) == 0 {
		t.Skip("three nodes take a minute and 3 GB: WEFT_TEST_LONG")
	}
	s, err := stack.Start(t.Context(), stack.Options{
		DatabaseURL: testenv.Schema(t), ElasticNodes: 3, Quick: true, Cables: stack.CanCutOff(),
	})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	urls := strings.Split(s.ElasticURL(), ",")
	if len(urls) != 3 || len(s.ElasticNodes()) != 3 || s.ElasticNodes()[2] != stack.ElasticNode(3) {
		t.Fatalf("got the addresses %v of %v, want three", urls, s.ElasticNodes())
	}
	want := func(n int, nodes ...string) {
		t.Helper()
		for _, node := range nodes {
			testenv.Eventually(t, func() bool {
				got, err := members(t.Context(), node)
				return got == n || n == 0 && err != nil
			}, fmt.Sprintf("%d nodes, by the one at %s", n, node))
		}
	}
	want(3, urls...)
	if err := s.Do(t.Context(), stack.KillServer, stack.ElasticNode(3)); err != nil {
		t.Fatal(err)
	}
	want(2, urls[:2]...)
	if err := s.Do(t.Context(), stack.StartServer, stack.ElasticNode(3)); err != nil {
		t.Fatal(err)
	}
	want(3, urls...)
	if !stack.CanCutOff() {
		if err := s.Do(t.Context(), stack.CutOff, stack.Elastic); err == nil {
			t.Error("cut off without cables: got no error")
		}
		return
	}
	if err := s.Do(t.Context(), stack.CutOff, stack.ElasticNode(2)); err != nil {
		t.Fatal(err)
	}
	want(2, urls[0], urls[2])
	want(0, urls[1])
	if err := s.Do(t.Context(), stack.Reconnect, stack.ElasticNode(2)); err != nil {
		t.Fatal(err)
	}
	want(3, urls...)
}

func TestNodesThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, opts := range []stack.Options{
		{ElasticNodes: 10}, {ElasticNodes: -1}, {ElasticNodes: 3, Secured: true}, {ElasticNodes: 1, Cables: true},
		{ElasticNodes: 3, ElasticURL: testenv.ElasticURL(t)},
	} {
		if _, err := stack.Start(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "nodes of Elasticsearch") {
			t.Errorf("%d nodes: got %v, want a refusal", opts.ElasticNodes, err)
		}
	}
}
