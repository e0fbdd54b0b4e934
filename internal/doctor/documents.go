package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/internal/records"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// firstEntities are those of each projection whose documents are looked for. They are the oldest, as a rule, which few events touch.
const firstEntities = 20

// documents looks for the documents of the first rows of each projection that runs. Where somebody has deleted an index, and an
// instance has made it anew, events write what changes from then on, and nothing writes the rest. Other errors stand in
// its way.
func (e *examination) documents(ctx context.Context) error {
	if slices.ContainsFunc(e.found, func(f Finding) bool { return f.Severity == Error }) {
		return nil
	}
	built, err := e.Config.Registry().Build(e.Config.Projections, projections.Deps{
		Pool: e.Pool, Elastic: e.Elastic, ChronicleVersion: e.Config.Chronicle.ProjectionVersion, Log: zap.NewNop(), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		return err
	}
	for _, p := range built {
		defer p.Close()
	}
	for _, p := range built {
		of, ok := p.(*projections.Index)
		if !ok {
			continue
		}
		wanted, missing, err := firstDocuments(ctx, of)
		switch {
		case elastic.IsMissing(err): // a finding of its own
		case errors.Is(err, elastic.ErrOverBudget): // documents of megabytes, which `weft verify` compares
		case err != nil:
			return err
		case missing > wanted/2:
			e.add("elastic.documents", Warning, p.Name(), fmt.Sprintf("searches miss documents: %d of the first %s", missing, records.Counted(wanted, "1 row has none", "%d rows have none")),
				"wait while `weft status "+p.Name()+"` shows a load, a rebuild or events of theirs; else the index was made anew, or never loaded, and to fill it: "+e.filling(p.Name()))
		}
	}
	return nil
}

// firstDocuments returns how many of the first entities are to have a document, and how many of these have none.
func firstDocuments(ctx context.Context, of projections.Sides) (wanted, missing int, err error) {
	keys, err := of.Entities(ctx, outbox.Key{}, firstEntities)
	if err != nil {
		return 0, 0, err
	}
	rows, err := of.Wanted(ctx, keys)
	if err != nil {
		return 0, 0, err
	}
	var due []outbox.Key
	for i, row := range rows {
		if row.Found {
			due = append(due, keys[i])
		}
	}
	held, err := of.Held(ctx, due, true)
	return len(due), len(due) - len(held), err
}

// filling is the command that fills an empty index of a projection.
func (e *examination) filling(projection string) string {
	if c := e.Config; c.Shards.Of > 1 && projection == projections.SearchIndexToElastic && c.Elastic.SearchAlias == "" { // an index of all shards
		return asked("verify " + projection + " --repair")
	}
	return asked("rebuild " + projection)
}
