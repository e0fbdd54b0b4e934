package consumer_test

import (
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
)

// A new term remembers no rows that were put off, and what is in the way of the first
// thousands of entities may stay for ever. It comes to the last entity all the same.
func TestNewTermWakesWhatIsPutOffBehindManyThatAreParked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change []func(*options)
		status string // of the row that was in the way of the last entity
	}{
		"Parked":    {nil, "pending"},
		"Discarded": {[]func(*options){strict}, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, c.change...)
			many := testenv.Volume(250, 1_050)
			r.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version, next_retry_at, behind)
				select gen_random_uuid(), 'block', lpad(to_hex(n), 32, '0')::uuid, 'upsert', v,
					case v when 1 then 'infinity' else now() + interval '1 hour' end, case v when 1 then null else 1 end
				from generate_series(1, $1::int) n, generate_series(1, 2) v`, many)
			last := "entity_id = lpad(to_hex($1::int), 32, '0')::uuid"
			r.exec("update search_outbox_events set status = $2, next_retry_at = null where event_version = 1 and "+last, many, c.status)
			if c.status == "failed" {
				if err := r.discard(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			r.start()
			r.eventually(func() bool {
				return r.count("search_outbox_events where event_version = 2 and status = 'done' and "+last, many) == 1
			}, "the last entity's event to be done")
			if n := r.count("search_outbox_events where status = 'done'"); n > 2 {
				t.Errorf("%d events are done, want those of the last entity alone", n)
			}
		})
	}
}
