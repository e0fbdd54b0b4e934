package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	// known is how many entities there are to be changed, unless each is to be removed.
	known     = 1000
	hot       = 10
	fillBatch = 200
)

// work carries out the operations of a load. Its fields do not change after prepare.
type work struct {
	Settings
	app      *Application
	entities []outbox.Key
}

// prepare makes the entities that the scenario changes, which are no operations and not in the ledger.
func (w *work) prepare(ctx context.Context, made func(int)) error {
	filler := &Application{Pool: w.app.Pool}
	n := 0
	switch {
	case w.Missing != "", w.Scenario == CreateScenario:
	case w.Scenario == DeleteScenario:
		n = w.Ops
	default:
		n = known
	}
	for len(w.entities) < n {
		random := rand.New(rand.NewPCG(w.Seed, uint64(len(w.entities))))
		var changes []Change
		for range min(fillBatch, n-len(w.entities)) {
			key := NewKey()
			changes = append(changes, w.upsert(key, random))
			w.entities = append(w.entities, key)
		}
		if _, err := filler.Write(ctx, changes...); err != nil {
			return fmt.Errorf("make the entities: %w", err)
		}
		made(len(w.entities))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// operation n is the same for a seed, apart from what others do to its entity.
func (w *work) operation(ctx context.Context, n int) ([]outbox.NewEvent, error) {
	if w.Missing != "" {
		return w.app.WriteMissing(ctx, w.Missing)
	}
	random := rand.New(rand.NewPCG(w.Seed, uint64(n)|1<<63))
	scenario := w.Scenario
	if scenario == MixedScenario {
		switch d := random.IntN(10); {
		case d < 3:
			scenario = CreateScenario
		case d < 8:
			scenario = UpdateScenario
		default:
			scenario = DeleteScenario
		}
	}
	var key outbox.Key
	switch {
	case scenario == CreateScenario:
		key = NewKey()
	case w.Scenario == DeleteScenario:
		key = w.entities[n]
	case w.Scenario == HotScenario && random.IntN(5) > 0:
		key = w.entities[random.IntN(hot)]
	default:
		key = w.entities[random.IntN(len(w.entities))]
	}
	if scenario == DeleteScenario {
		events, err := w.app.Write(ctx, Change{Key: key, Op: outbox.Delete, If: IfPresent})
		if err != nil || len(events) > 0 {
			return events, err
		}
		// A mixed load has removed it before: it comes back.
	}
	return w.app.Write(ctx, w.upsert(key, random))
}

func (w *work) upsert(key outbox.Key, random *rand.Rand) Change {
	return Change{Key: key, Op: outbox.Upsert, Row: Row{Text: words(random, w.Bytes), Rank: random.Float64()}}
}

// words is a text of n bytes.
func words(random *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%07x ", random.Uint32()>>4)
	}
	return b.String()[:n]
}
