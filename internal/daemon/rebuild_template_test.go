package daemon_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/outbox"
)

// A rebuild whose new index cannot be made, or refuses all documents, because of an index template of the server names the
// template, and goes on once that is gone.
func TestRebuildNamesTheIndexTemplateInItsWay(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fillSource(50)
	r.start("a").awaitReady(http.StatusOK, `"role": "leader"`)
	template := "/_index_template/" + r.index
	drop := func() {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodDelete, r.elastic+template, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}
	t.Cleanup(drop)
	for n, tt := range []struct{ brings, says string }{
		{`"index.mapping.total_fields.limit":1`, "Limit of total fields [1] has been exceeded"},
		{`"index.blocks.write":true`, "FORBIDDEN/8/index write (api)"},
	} {
		index := fmt.Sprintf("%s-v%d", r.index, n+2)
		r.elasticCall(http.MethodPut, template, fmt.Sprintf(`{"index_patterns":["%s-*"],"priority":500,"template":{"settings":{%s}}}`, r.index, tt.brings), nil)
		r.askRebuild(searchProjection, false)
		var row outbox.Rebuild
		testenv.Eventually(t, func() bool { row = r.rebuild(searchProjection); return strings.Contains(row.Note, tt.says) }, "a note with "+tt.says)
		if want := fmt.Sprintf("the index template %q of the server applies to %s", r.index, index); !strings.Contains(row.Note, want) {
			t.Errorf("got %q, want %q in it", row.Note, want)
		}
		drop()
		if n == 1 {
			r.elasticCall(http.MethodPut, "/"+index+"/_settings", `{"index.blocks.write":null}`, nil)
		}
		if row := r.awaitRebuild(searchProjection); row.Phase != outbox.RebuildDone {
			t.Errorf("got %+v", row)
		}
		r.equalsSource()
		if ok, err := outbox.AskRebuild(t.Context(), r.pool, searchProjection, outbox.RebuildDropOld, "test", "test", testenv.Limit); err != nil || !ok {
			t.Fatalf("drop of the old index: %v, %v", ok, err)
		}
		testenv.Eventually(t, func() bool { return r.rebuild(searchProjection).OldIndex == "" }, "the drop of the old index")
	}
}
