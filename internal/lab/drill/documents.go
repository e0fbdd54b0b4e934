package drill

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/internal/lab/traffic"
	"github.com/samuelhu324-dev/weft/internal/lab/verdict"
	"github.com/samuelhu324-dev/weft/outbox"
)

const repairWhy = "drill: somebody wrote into the index"

// compared is what the drill reads of the report of weft verify.
type compared struct {
	Rows     int `json:"rows"`
	Missing  int `json:"missing"`
	Extra    int `json:"extra"`
	Stale    int `json:"stale"`
	Ahead    int `json:"ahead"`
	Corrupt  int `json:"corrupt"`
	Repaired int `json:"repaired"`
}

func (c compared) differs() int { return c.Missing + c.Extra + c.Stale + c.Ahead + c.Corrupt }

// documentsDiffer writes into the index past weft, and lets weft find and repair it.
func documentsDiffer() Scenario {
	return Scenario{
		Name: "documents_differ", runbooks: []string{"documents-differ"},
		About:     "documents are deleted, changed and added in the index past weft; weft verify names them, and --repair has them written anew",
		Shows:     "a comparison that finds exactly these while the pair works, and after the repair none",
		Params:    []Param{{"documents", "30", "documents; a third of them is deleted, a third changed, and a third added"}},
		instances: one(),
		run: func(r *run) {
			third := r.count("documents", 3, 3000) / 3
			written := r.settled(upserts(2*third, "written")...)
			r.inject("deletes, changes and additions in the index", func(ctx context.Context) error {
				for i, e := range written {
					at := "/" + r.Index + "/_doc/" + url.PathEscape(e.Entity)
					if i < third {
						if err := r.Elastic.Do(ctx, http.MethodDelete, at+fmt.Sprintf("?version=%d&version_type=external_gte", e.Version), nil, nil); err != nil {
							return err
						}
						continue
					}
					// The version is the one of the row, so that only the content differs.
					version := fmt.Sprintf("?version=%d&version_type=external_gte", e.Version)
					if err := r.Elastic.Do(ctx, http.MethodPut, at+version, map[string]any{"text": "written past weft"}, nil); err != nil {
						return err
					}
					ghost := "/" + r.Index + "/_doc/" + url.PathEscape(traffic.NewKey().String())
					if err := r.Elastic.Do(ctx, http.MethodPut, ghost+version, map[string]any{"text": "nobody's"}, nil); err != nil {
						return err
					}
				}
				return nil
			}, nil)
			r.compare(r.Fleet, searchProjection, "found")
			r.compare(r.Fleet, searchProjection, "repaired", "--repair", "--by", operator, "--why", repairWhy)
			r.compare(r.Fleet, searchProjection, "after")
		},
		verify: func(j *judge) {
			third := len(j.Recipe.Events) / 2
			found, repaired, after := verdict.Probed[compared](j.Judge, "found"), verdict.Probed[compared](j.Judge, "repaired"), verdict.Probed[compared](j.Judge, "after")
			j.atLeast("documents that were damaged", "found", found.differs(), 3)
			j.counted("missing documents that weft verify named", "found", found.Missing, third)
			j.counted("changed documents that it named", "found", found.Corrupt, third)
			j.counted("documents without a row that it named", "found", found.Extra, third)
			j.counted("documents that it had written anew, or deleted", "repaired", repaired.Repaired, 3*third)
			j.counted("documents that differ in the end", "after", after.differs(), 0)
			j.counted("rows of the last comparison", "after", after.Rows, 2*third)
			j.counted("repaired documents in the audit", "audit", j.signedRows(outbox.ActionRepair, operator, repairWhy), 3*third)
			j.storesEqual()
		},
	}
}

// compare runs weft verify on a projection with the settings of a fleet, and probes its report.
func (r *run) compare(f *rig.Fleet, projection, probe string, args ...string) {
	args = append([]string{"verify", projection, "--json"}, args...)
	r.step("weft %v", args)
	out, err := f.Output(r.Ctx, args...)
	var reports []compared
	bad := json.Unmarshal(out, &reports)
	r.Expect(bad == nil && len(reports) == 1, "report of weft verify: %q, %w", out, err)
	r.Must(r.dir.WriteText(verdict.LogDir+"/verify_"+probe+".json", out))
	r.probe(probe, reports[0])
}

// duplicateDelivery writes events again that say the same: one after the other, so that the
// second finds what the first has done, and at once, so that they meet in a batch.
func duplicateDelivery() Scenario {
	return Scenario{
		Name: "duplicate_delivery", runbooks: []string{"reasons"},
		About:     "the same delete and the same upsert are delivered twice, one after the other and at once",
		Shows:     "no-ops that are counted with their reason, no failure, and documents as after the first delivery",
		instances: one(),
		run: func(r *run) {
			gone, kept, burst := traffic.NewKey(), traffic.NewKey(), traffic.NewKey()
			created := r.settled(change{key: gone, op: outbox.Upsert, role: "created"}, change{key: kept, op: outbox.Upsert, role: "upsert"})
			removed := r.settled(change{key: gone, op: outbox.Delete, role: "delete"})
			before := rig.Try(r.document(r.Ctx, kept.String())).MustDo(r, "probe document")
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
