package drill

import (
	"context"
	"fmt"

	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/outbox"
)

// duplicateDelivery writes events again that say the same: one after the other, so that the
// second finds what the first has done, and at once, so that they meet in a batch.
func duplicateDelivery() Scenario {
	return Scenario{
		Name:      "duplicate_delivery",
		About:     "the same delete and the same upsert are delivered twice, one after the other and at once",
		Shows:     "no-ops that are counted with their reason, no failure, and documents as after the first delivery",
		instances: one(),
		run: func(ctx context.Context, r *run) error {
			gone, kept, burst := newKey(), newKey(), newKey()
			created, err := r.settled(ctx, change{key: gone, op: outbox.Upsert, role: "created"}, change{key: kept, op: outbox.Upsert, role: "upsert"})
			if err != nil {
				return err
			}
			removed, err := r.settled(ctx, change{key: gone, op: outbox.Delete, role: "delete"})
			if err != nil {
				return err
			}
			before, err := r.document(ctx, kept.String())
			if err == nil {
				err = r.probe("document_before", before)
			}
			if err != nil {
				return fmt.Errorf("probe document: %w", err)
			}
			version := created[1].Version
			_, err = r.inject(ctx, "the delete and the upsert once more, and another upsert twice at once", func(ctx context.Context) error {
				if _, err := r.settled(ctx, change{key: gone, op: outbox.Delete, role: "delete again", version: removed[0].Version}); err != nil {
					return err
				}
				if _, err := r.settled(ctx, change{key: kept, op: outbox.Upsert, role: "upsert again", version: version}); err != nil {
					return err
				}
				_, err := r.settled(ctx, change{key: burst, op: outbox.Upsert, role: "upsert, at once", version: version + 1000},
					change{key: burst, op: outbox.Upsert, role: "upsert, at once", version: version + 1000})
				return err
			}, nil)
			return err
		},
		verify: func(j *judge) {
			j.GrewBy(1, "outbox_idempotent_noop_total", "op=delete", "reason=es_404")
			j.GrewBy(1, "outbox_idempotent_noop_total", "op=upsert", "reason=superseded")
			j.GrewBy(0, "outbox_failed_total")
			j.GrewBy(0, "outbox_retry_scheduled_total")
			j.ended("", "done")
			for _, role := range []string{"delete again", "upsert again", "upsert, at once"} {
				j.ended(role, "done")
			}
			for _, e := range j.Events("delete again") {
				j.Spans(spanEvent, "wordloom.outbox_event_id="+e.ID.String(), "noop=true", "deduped=true", "reason=es_404")
			}
			j.Spans(spanEvent, "noop=true", "deduped=true", "reason=superseded")
			documents := j.documents()
			var before document
			if err := j.Probe("document_before", &before); err != nil {
				j.Check("the document was probed", verdict.ProbeFile("document_before"), err.Error(), "a document", false)
			}
			for _, e := range j.Events("upsert") {
				j.Equal("the upserted document after the repetition", verdict.ProbeFile("documents"), fmt.Sprintf("%+v", documents[e.Entity]), fmt.Sprintf("%+v", before))
			}
			for _, e := range j.Events("created") {
				j.Equal("the deleted document after the repetition", verdict.ProbeFile("documents"), fmt.Sprint(documents[e.Entity].Found), "false")
			}
			j.storesEqual()
		},
	}
}

// settled writes changes and waits until they are done.
func (r *run) settled(ctx context.Context, changes ...change) ([]verdict.Event, error) {
	events, err := r.enqueue(ctx, changes...)
	if err != nil {
		return nil, err
	}
	return events, r.become(ctx, events, "done")
}
