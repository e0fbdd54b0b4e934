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
func (r *run) groups(ctx context.Context, d *Drill, p pair) error {
	for _, h := range r.hosts {
		for _, env := range []struct{ file, group, projection, unit string }{
			{"search", group, "search_index_to_elastic", searchUnit}, {"chronicle", otherGroup, "chronicle_events_to_entries", chronicleUnit},
		} {
			text := fmt.Sprintf("WEFT_GROUP=%s\nWEFT_PROJECTIONS=%s\nOUTBOX_METRICS_PORT=%d\n", env.group, env.projection, h.ports[env.unit])
			if err := h.Write(ctx, "/etc/weft/"+env.file+".env", 0o640, strings.NewReader(text)); err != nil {
				return err
			}
		}
	}
	// The standby's machine first, so that somebody always leads.
	for _, h := range []*host{p.standby, p.leader} {
		if _, err := h.Exec(ctx, "systemctl", "stop", service); err != nil {
			return err
		}
		if _, err := h.Exec(ctx, append([]string{"systemctl", "start"}, instances()...)...); err != nil {
			return err
		}
	}
	var two pair
	err := r.await(ctx, "well pair of instances", func(ctx context.Context) (err error) {
		two, err = r.well(ctx, searchUnit, searchName)
		return err
	})
	if err != nil {
		return err
	}
	if err := r.chronicle(ctx); err != nil {
		return err
	}
	other, err := r.LeaderOf(ctx, otherGroup)
	if err != nil {
		return err
	}
	at, err := r.signalled(ctx, d, faults.SIGKILL, two.leader, searchUnit, two.epoch)
	if err != nil {
		return err
	}
	if err := r.Settles(ctx, two.epoch+1); err != nil {
		return err
	}
	err = r.await(ctx, "restarted instance", func(ctx context.Context) (err error) {
		two, err = r.well(ctx, searchUnit, searchName)
		return err
	})
	if err != nil {
		return err
	}
	d.BackS = time.Since(at).Round(100 * time.Millisecond).Seconds()
	if err := r.chronicle(ctx); err != nil {
		return err
	}
	still, err := r.LeaderOf(ctx, otherGroup)
	if err != nil {
		return err
	}
	if err := expect(still.Epoch == other.Epoch && still.Instance == other.Instance, "the other group was led by %s (epoch %d) and is by %s (epoch %d)",
		other.Instance, other.Epoch, still.Instance, still.Epoch); err != nil {
		return err
	}
	for _, h := range []*host{two.standby, two.leader} {
		if _, err := h.Exec(ctx, append([]string{"systemctl", "stop"}, instances()...)...); err != nil {
			return err
		}
		if _, err := h.Exec(ctx, "systemctl", "start", service); err != nil {
			return err
		}
	}
	d.Seen = fmt.Sprintf("moved to two instances on each machine and back; with the leader of one group killed, %s led the other as before", still.Instance)
	_, err = r.back(ctx)
	return err
}

// chronicle writes an event of the other projection and waits for its entry.
func (r *run) chronicle(ctx context.Context) error {
	id := uuid.New()
	write, cancel := context.WithTimeout(ctx, rig.QueryTimeout)
	defer cancel()
	err := pgx.BeginFunc(write, r.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(write, `insert into chronicle_events (id, event_type, book_id, payload, occurred_at) values ($1, 'book_opened', gen_random_uuid(), '{}', now())`, [16]byte(id))
		if err != nil {
			return err
		}
		return outbox.Enqueue(write, tx, "chronicle_outbox_events", outbox.NewEvent{Key: outbox.Key{Type: "chronicle_event", ID: outbox.UUID(id)}, Op: outbox.Upsert, Version: time.Now().UnixMicro()})
	})
	if err != nil {
		return fmt.Errorf("write a chronicle event: %w", err)
	}
	return r.await(ctx, "entry of a chronicle event", func(ctx context.Context) error {
		return r.Holds(ctx, `select exists (select from chronicle_entries where id = $1)`, [16]byte(id))
	})
}
