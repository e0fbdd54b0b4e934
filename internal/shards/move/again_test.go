package move

import (
	"errors"
	"strings"
	"testing"

	"github.com/samuelhu324-dev/weft/migrations"
)

// A call whose plan is older than what another one has done since removes nothing.
func TestMoveLooksAgainBeforeItClears(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.structure(t)
	plan, err := Check(t.Context(), w.there())
	if err != nil {
		t.Fatal(err)
	}
	g := w.gate(w.dst, "s_1.weft_audit", true)
	done := w.begin(t.Context(), w.there())
	g.reached()
	g.kill()
	if got := <-done; !errors.Is(got.err, ErrClosed) {
		t.Fatalf("got %v, want that the target is not open", got.err)
	}
	g.open()
	const rows = "select count(*) from s_1.search_index"
	want := w.number(w.dst, rows)
	_, err = Run(t.Context(), w.there(), plan)
	if refused, ok := errors.AsType[*migrations.OutboxError](err); !ok || !strings.Contains(refused.Why, "another call has moved it meanwhile") {
		t.Errorf("an old plan: got %v, want a refusal", err)
	}
	if got := w.number(w.dst, rows); got != want || want == 0 {
		t.Errorf("got %d rows in the target after the refusal, want %d", got, want)
	}
	w.mustMove(w.there())
	w.home(w.dst, w.src)
}
