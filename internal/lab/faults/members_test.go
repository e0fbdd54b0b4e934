//go:build patroni

package faults

import (
	"slices"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv/patroni"
)

// Each fault of the members leaves a mark that is not there without it.
func TestPatroniFaultIsSeen(t *testing.T) {
	t.Parallel()
	cluster, err := patroni.Start(t.Context(), patroni.Options{Progress: t.Output(), Quick: true, Synchronous: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	pool, err := rig.OpenPool(t.Context(), cluster.URL(), 1)
	if err != nil {
		t.Fatal(err)
	}
	var keeps string
	if err := pool.QueryRow(t.Context(), "show track_commit_timestamp").Scan(&keeps); err != nil || keeps != "on" {
		t.Errorf("times of commits: got %q (%v), want them kept", keeps, err)
	}
	pool.Close()
	prepare := func(name string) *Injection {
		t.Helper()
		i := New(name, &Target{Group: &rig.Group{}, Patroni: cluster}, nil, Params{})
		if err := i.Play(t.Context(), func() { i.Available(i) }); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return i
	}
	for _, name := range MemberFaults() {
		i := prepare(name)
		if err := i.Observe(t.Context()); err != nil || len(i.Findings) != 1 || !strings.HasPrefix(i.Findings[0], name+": ") {
			t.Errorf("%s was not injected: got %q (%v), want a finding", name, i.Findings, err)
		}
	}
	for _, name := range []string{"member-switchover", "etcd-killed"} {
		if !slices.Contains(MemberFaults(), name) {
			t.Fatalf("no fault is named %s", name)
		}
		i := prepare(name)
		if err := i.Inject(t.Context()); err != nil {
			t.Errorf("inject %s: %v", name, err)
		}
		if err := i.Observe(t.Context()); err != nil || len(i.Findings) != 0 {
			t.Errorf("%s was injected: got %q (%v), want no finding", name, i.Findings, err)
		}
		if err := i.Heal(t.Context()); err != nil {
			t.Errorf("heal %s: %v", name, err)
		}
	}
}
