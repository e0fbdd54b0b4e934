package systemd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samuelhu324-dev/weft/internal/lab/faults"
	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	searchUnit    = "weft@search.service"
	chronicleUnit = "weft@chronicle.service"
	otherGroup    = "chronicle"
)

// instances are those of the template, one for each group.
func instances() []string { return []string{searchUnit, chronicleUnit} }

func searchName(h *host) string { return h.Name + "-search" }

// groups replaces weft.service by two instances of the template, each of a group and a
// projection of its own, kills the leader of one of them, and goes back.
func (r *run) groups(d *Drill, p pair) {
	for _, h := range r.hosts {
		for _, env := range []struct{ file, group, projection, unit string }{
			{"search", group, "search_index_to_elastic", searchUnit}, {"chronicle", otherGroup, "chronicle_events_to_entries", chronicleUnit},
		} {
			text := fmt.Sprintf("WEFT_GROUP=%s\nWEFT_PROJECTIONS=%s\nOUTBOX_METRICS_PORT=%d\n", env.group, env.projection, h.ports[env.unit])
			r.Must(h.Write(r.Ctx, "/etc/weft/"+env.file+".env", 0o640, strings.NewReader(text)))
		}
	}
	// The standby's machine first, so that somebody always leads.
	for _, h := range []*host{p.standby, p.leader} {
		r.exec(h, "systemctl", "stop", service)
		r.exec(h, append([]string{"systemctl", "start"}, instances()...)...)
	}
	var two pair
	well := func(ctx context.Context) (err error) {
		two, err = r.well(ctx, searchUnit, searchName)
		return err
	}
	r.await("well pair of instances", well)
	r.chronicle()
	other, err := r.LeaderOf(r.Ctx, otherGroup)
	r.Must(err)
	at := r.signalled(d, faults.SIGKILL, two.leader, searchUnit, two.epoch)
	r.settles(two.epoch + 1)
	r.await("restarted instance", well)
	d.BackS = time.Since(at).Round(100 * time.Millisecond).Seconds()
	r.chronicle()
	still, err := r.LeaderOf(r.Ctx, otherGroup)
	r.Must(err)
	r.Expect(still.Epoch == other.Epoch && still.Instance == other.Instance, "the other group was led by %s (epoch %d) and is by %s (epoch %d)",
		other.Instance, other.Epoch, still.Instance, still.Epoch)
	for _, h := range []*host{two.standby, two.leader} {
		r.exec(h, append([]string{"systemctl", "stop"}, instances()...)...)
		r.exec(h, "systemctl", "start", service)
	}
	d.Seen = fmt.Sprintf("moved to two instances on each machine and back; with the leader of one group killed, %s led the other as before", still.Instance)
	r.back()
}

// chronicle writes an event of the other projection and waits for its entry.
func (r *run) chronicle() {
	id := uuid.New()
	write, cancel := context.WithTimeout(r.Ctx, rig.QueryTimeout)
	defer cancel()
	r.MustDo("write a chronicle event", pgx.BeginFunc(write, r.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(write, `insert into chronicle_events (id, event_type, book_id, payload, occurred_at) values ($1, 'book_opened', gen_random_uuid(), '{}', now())`, id)
		if err != nil {
			return err
		}
		return outbox.Enqueue(write, tx, "chronicle_outbox_events", outbox.NewEvent{Key: outbox.Key{Type: "chronicle_event", ID: outbox.UUID(id)}, Op: outbox.Upsert, Version: time.Now().UnixMicro()})
	}))
	r.await("entry of a chronicle event", func(ctx context.Context) error {
		return r.Holds(ctx, `select exists (select from chronicle_entries where id = $1)`, id)
	})
}
