package elastic

import (
	"net/http"
	"strings"
	"testing"
)

func TestRefusalNamesTheMissingPrivilege(t *testing.T) {
	t.Parallel()
	for detail, want := range map[string][2]string{
		"action [indices:monitor/stats] is unauthorized for user [weft] on indices [docs]":                                                       {`a privilege on "docs"`, "view_index_metadata and monitor"},
		"action [cluster:monitor/health] is unauthorized for user [weft], this action is granted by the cluster privileges [monitor,manage,all]": {"a privilege on the cluster", "the cluster privilege monitor"},
		"no permissions for [cluster:monitor/health] and User [name=weft]":                                                                       {"a privilege on the cluster", "the cluster privilege monitor"},
	} {
		err := refused("host:1", http.StatusForbidden, detail, "docs", Access{Username: "weft"})
		for _, part := range want {
			if !strings.Contains(err.Error(), part) || !IsAccess(err) {
				t.Errorf("got %v, want %q in it", err, part)
			}
		}
	}
}

// A handshake that fails names its remedy itself: the server runs, and the address is right.
func TestRemedyOfAHandshake(t *testing.T) {
	t.Parallel()
	err := &UnansweredError{Hosts: "host:1", err: &handshakeError{"host:1", "correct it", errFingerprint}}
	if got := err.Error() + "; " + err.Remedy(); !strings.HasSuffix(got, ": correct it; then try again") {
		t.Errorf("got %q", got)
	}
}
