package chaos

import (
	"net/http"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A command that fails when everything is healed fails the run, and so does one that says that it
// has deleted the old index and has not.
func TestOldIndexMustGo(t *testing.T) {
	t.Parallel()
	client, err := reconcile.NewClient(testenv.ElasticURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	old := testenv.Index(t)
	if err := client.Do(t.Context(), http.MethodPut, "/"+old, nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		weft, index string
		phase       outbox.RebuildPhase
		want        string
	}{
		{"/bin/false", old, outbox.RebuildDone, "false rebuild drop-old products"},
		{"/bin/true", old, outbox.RebuildDone, "the old index is still there: " + old},
		{"/bin/true", old + "-gone", outbox.RebuildDone, ""},
		{"/bin/false", old, outbox.RebuildAborted, ""}, // it is in use
		{"/bin/false", "", outbox.RebuildDone, ""},
	} {
		b := &rebuilds{run: &run{
			Group: &rig.Group{Place: &rig.Place{Elastic: client}, Fleet: &rig.Fleet{Binary: tc.weft}}, domain: &domain{projection: "products"},
		}}
		err := b.dropOld(t.Context(), outbox.Rebuild{Phase: tc.phase, OldIndex: tc.index})
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s with old index %q, %s: got %v, want %q", tc.weft, tc.index, tc.phase, err, tc.want)
		}
	}
}
