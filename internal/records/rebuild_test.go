package records

import (
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/outbox"
)

func TestLineOfARebuildSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	for redo, want := range map[int64]string{
		0: "1 row", 1: ", 1 entity is to be written again", 9_999: ", 9999 entities are to be written again",
		outbox.MostRedo: ", at least 10000 entities are to be written again",
	} {
		line := DescribeRebuild("books", outbox.Rebuild{Phase: outbox.RebuildVerifying, Rows: 1, Filled: 1, Redo: redo}).Line()
		if !strings.HasSuffix(line, want) {
			t.Errorf("%d: got %q, want %q at its end", redo, line, want)
		}
	}
}
