package daemon

import (
	"slices"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/config"
	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// An instance that crashed before the database clock stepped back is not counted for as long as the step.
func TestBalancerCountsNoInstanceOfTheFuture(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t, testenv.Database(t))
	if _, err := pool.Exec(t.Context(), `
		insert into weft_instance (group_name, instance, role, version, host, pid, started_at, seen_at)
		select 'g', name, 'standby', 'v', 'h', 1, now(), now() + ago::interval
		from (values ('lives', '0 s'), ('crashed', '1 hour'), ('gone', '-1 hour')) as v (name, ago)`); err != nil {
		t.Fatal(err)
	}
	cfg := config.Config{Group: "g"}
	b := newBalancer(&process{cfg: cfg, shards: []*daemon{{cfg: cfg, pool: pool}}})
	if live, err := b.live(t.Context()); err != nil || !slices.Equal(live, []string{"lives"}) {
		t.Errorf("got %v, %v, want only the instance that lives", live, err)
	}
}
