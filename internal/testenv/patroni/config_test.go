package patroni

import "testing"

// Patroni turns off what it holds for its own and is not told: without times of commits a run is
// judged by those of statements.
func TestMembersKeepTimesOfCommits(t *testing.T) {
	t.Parallel()
	for _, opts := range []Options{{}, {Quick: true, Synchronous: true}} {
		settings, _ := (&Cluster{opts: opts}).dynamic()["postgresql"].(object)
		parameters, _ := settings["parameters"].(object)
		if got := parameters["track_commit_timestamp"]; got != "on" {
			t.Errorf("%+v: got track_commit_timestamp %v, want on", opts, got)
		}
	}
}
