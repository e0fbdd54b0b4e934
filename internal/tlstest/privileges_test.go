package tlstest

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// With the least privileges, and an index that the administrator has made, weft writes events,
// verifies documents by command and in the background, and the doctor finds nothing worse than a note.
func TestKeeperRunsAndVerifies(t *testing.T) {
	t.Parallel()
	s := newSite(t, shared.keys.Keeper, "kept-")
	admin := elastic.Access{Username: shared.keys.Admin.Name, Password: shared.keys.Admin.Password, CA: shared.keys.Authority.PEM()}
	if err := sink(t, shared.ElasticURL(), s.index, admin).EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	leader := s.start("a", "WEFT_VERIFY_EVERY=1s")
	s.produce(50)
	s.settled()

	if err := s.fleet.Run(t.Context(), "verify", "search_index_to_elastic"); err != nil {
		t.Errorf("verify: %v", err)
	}
	testenv.Eventually(t, func() bool {
		return len(lines(t, leader, "verify.finished")) > 0 || len(lines(t, leader, "verify.stopped")) > 0
	}, "a comparison in the background")
	if stopped := lines(t, leader, "verify.stopped"); len(stopped) > 0 {
		t.Errorf("comparison in the background: %s", stopped[0])
	}
	want := map[string]string{"privilege maintenance": "note", "privilege manage": "note", "cluster privilege monitor": "note"}
	if got := s.lacking(); !maps.Equal(got, want) {
		t.Errorf("doctor: got lacking privileges %v, want %v", got, want)
	}
}

// With the privileges that security.md lists, weft makes an index, rebuilds it, moves the alias, and
// drops the old index.
func TestWeftRebuildsWithDocumentedPrivileges(t *testing.T) {
	t.Parallel()
	s := newSite(t, shared.keys.Weft, "made-")
	s.start("a")
	s.produce(50)
	s.settled()
	const projection = "search_index_to_elastic"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a rebuild that meets a refusal is retried
	defer cancel()
	if err := s.fleet.Run(ctx, "rebuild", projection, "--by", "test", "--why", "test"); err != nil {
		t.Fatalf("rebuild: %v", err)
	}
	if err := s.fleet.Run(t.Context(), "rebuild", "drop-old", projection, "--by", "test", "--why", "test"); err != nil {
		t.Errorf("drop-old: %v", err)
	}
	testenv.Eventually(t, func() bool {
		var found map[string]any
		s.ask(http.MethodGet, "/"+s.index+"-v*", &found)
		return len(found) == 1 && found[s.index+"-v2"] != nil
	}, "the new index alone")
	s.produce(10)
	s.settled()
	if err := s.fleet.Run(t.Context(), "verify", projection); err != nil {
		t.Errorf("verify: %v", err)
	}
	if found := s.lacking(); len(found) > 0 {
		t.Errorf("doctor: got lacking privileges %v, want none", found)
	}
}

// Without the privileges of a rebuild the leader makes nothing and ends it, the command names what is
// missing, where, and the remedy, and exits as for any right that is missing; events go on.
func TestRebuildWithoutPrivilegesMakesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, shared.keys.Keeper, "kept-")
	admin := elastic.Access{Username: shared.keys.Admin.Name, Password: shared.keys.Admin.Password, CA: shared.keys.Authority.PEM()}
	if err := sink(t, shared.ElasticURL(), s.index, admin).EnsureIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.start("a")
	s.produce(10)
	s.settled()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := s.fleet.Run(ctx, "rebuild", "search_index_to_elastic", "--by", "test", "--why", "test")
	var exit interface{ ExitCode() int }
	if !errors.As(err, &exit) || exit.ExitCode() != 77 {
		t.Fatalf("rebuild: got %v, want exit code 77", err)
	}
	last := err.Error()[strings.Index(err.Error(), "weft: the rebuild has failed"):]
	for _, want := range []string{
		`by user "weft_keeper" at 127.0.0.1:`, "lacks the cluster privilege monitor, manage on " + s.index + " and " + s.index + "-v1 and " + s.index + "-v2",
		"grant it to its role, with the names " + s.index + " and " + s.index + "-v*, and ask again: `weft doctor` prints the role",
	} {
		if !strings.Contains(last, want) {
			t.Errorf("rebuild: got %q, want %q in it", last, want)
		}
	}
	if got := one[string](s, "select phase || ' ' || failure || ' ' || new_index || ' ' || last_number from weft_rebuild"); got != "failed refused  0" {
		t.Errorf("got a rebuild that is %q, want one that was refused, without an index", got)
	}
	s.produce(10)
	s.settled()
}

// lacking returns the privileges that weft doctor misses, each with the severity of the finding.
func (s *site) lacking() map[string]string {
	s.t.Helper()
	out, err := s.fleet.Output(s.t.Context(), "doctor", "--json") // exits with 1 for any warning
	var findings []struct{ Check, Severity, Finding string }
	if jsonErr := json.Unmarshal(out, &findings); jsonErr != nil {
		s.t.Fatalf("doctor: %v, %v", jsonErr, err)
	}
	lacks := map[string]string{}
	for _, f := range findings {
		if f.Check != "elastic.rights" {
			continue
		}
		_, privilege, _ := strings.Cut(f.Finding, "lack the ")
		privilege, purpose, _ := strings.Cut(privilege, ", with which ")
		if privilege == "" || purpose == "" {
			s.t.Errorf("doctor: got %q, want a privilege and what it is for", f.Finding)
		}
		lacks[privilege] = f.Severity
	}
	return lacks
}
