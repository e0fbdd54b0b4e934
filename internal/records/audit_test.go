package records_test

import (
	"slices"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestOutcomeOfEachKindOfAuditEntry(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ action, detail, want string }{
		{"log_level", `{"from":"info","to":"debug"}`, "from info to debug"},
		{"throttle", `{"rate":2.5}`, "2.5 events a second"},
		{"quarantine", `{"entity_type":"block","entity_id":"b\u001b1"}`, "block:b 1"},
		{"replay", `{"outcome":"finished","done":3}`, "finished; 3 done, 0 failed again, 0 open"},
		{"version_ahead", `{"entities":["tag:1","tag:2"]}`, "tag:1, tag:2"},
		{"pause", `{}`, "-"},
		{"shards_create", `{"shard":1}`, "-"},
		{"shards_move", `{"shard":1}`, "-"},
		{"log_level", `no JSON`, "-"},
	} {
		if got := records.OutcomeOf(outbox.AuditEntry{Action: tc.action, Detail: []byte(tc.detail)}); got != tc.want {
			t.Errorf("%s %s: got %q, want %q", tc.action, tc.detail, got, tc.want)
		}
		if !slices.Contains(records.Actions(), tc.action) {
			t.Errorf("%s is none of the actions", tc.action)
		}
	}
}
