package move

import (
	"strconv"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
)

func itoa(n int) string { return strconv.Itoa(n) }

// own makes shards of its own in the target.
func (w *world) own(t *testing.T) {
	t.Helper()
	w.exec(w.dst, "create schema app")
	if _, err := migrations.CreateShards(t.Context(), w.to, w.spec(w.to, "")); err != nil {
		t.Fatal(err)
	}
}

// structure makes in the target what a move makes first.
func (w *world) structure(t *testing.T) {
	t.Helper()
	w.exec(w.dst, "create schema app")
	if _, err := migrations.CreateShards(t.Context(), w.to, w.spec(w.to, address(t, w.from))); err != nil {
		t.Fatal(err)
	}
}

// stranger is the address of the shard for a role that runs it and owns nothing.
func (w *world) stranger(t *testing.T) string {
	t.Helper()
	shard := in(t, w.from, "s_1")
	return testenv.As(t, shard, testenv.Runner(t, shard))
}
