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
		Name: "duplicate_delivery", runbooks: []string{"reasons"},
		About:     "the same delete and the same upsert are delivered twice, one after the other and at once",
		Shows:     "no-ops that are counted with their reason, no failure, and documents as after the first delivery",
		instances: one(),
		run: func(r *run) {
			gone, kept, burst := newKey(), newKey(), newKey()
			created := r.settled(change{key: gone, op: outbox.Upsert, role: "created"}, change{key: kept, op: outbox.Upsert, role: "upsert"})
			removed := r.settled(change{key: gone, op: outbox.Delete, role: "delete"})
			before, err := r.document(r.Ctx, kept.String())
			r.MustDo("probe document", err)
			r.probe("document_before", before)
			version := created[1].Version
			nothing := func(context.Context) error { return nil }
			if !r.inject("the delete and the upsert once more, and another upsert twice at once", nothing, nil) {
				return
			}
			r.settled(change{key: gone, op: outbox.Delete, role: "delete again", version: removed[0].Version})
			r.settled(change{key: kept, op: outbox.Upsert, role: "upsert again", version: version})
			twice := change{key: burst, op: outbox.Upsert, role: "upsert, at once", version: version + 1000}
			r.settled(twice, twice)
		},
		verify: func(j *judge) {
			j.GrewBy(1, "outbox_idempotent_noop_total", "op=delete", "reason=es_404")
			j.GrewBy(1, "outbox_idempotent_noop_total", "op=upsert", "reason=superseded")
			j.nothingFailed()
			for _, role := range []string{"", "delete again", "upsert again", "upsert, at once"} {
				j.ended(role, "done")
			}
			for _, e := range j.Events("delete again") {
				j.Spans(spanEvent, eventID+e.ID.String(), "noop=true", "deduped=true", "reason=es_404")
			}
			j.Spans(spanEvent, "noop=true", "deduped=true", "reason=superseded")
			documents, file := j.documents(), verdict.ProbeFile("documents")
			before := verdict.Probed[document](j.Judge, "document_before")
			for _, e := range j.Events("upsert") {
				j.Equal("the upserted document after the repetition", file, fmt.Sprintf("%+v", documents[e.Entity]), fmt.Sprintf("%+v", before))
			}
			for _, e := range j.Events("created") {
				j.Equal("the deleted document after the repetition", file, fmt.Sprint(documents[e.Entity].Found), "false")
			}
			j.storesEqual()
		},
	}
}
