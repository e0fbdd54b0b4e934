package outbox_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/samuelhu324-dev/weft/outbox"
)

func TestProduced(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	created, renamed := outbox.Kind{EventType: "block.created", EntityType: "block"}, outbox.Kind{EventType: "book.renamed", EntityType: "book"}
	p, err := outbox.NewProduced(reg, created, renamed)
	if err != nil {
		t.Fatal(err)
	}
	p.Add(created, 3)
	p.Add(outbox.Kind{EventType: "nobody.knows", EntityType: "block"}, 2)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP outbox_produced_total Events that were enqueued, in transactions that have committed.
# TYPE outbox_produced_total counter
outbox_produced_total{entity_type="block",event_type="block.created"} 3
outbox_produced_total{entity_type="book",event_type="book.renamed"} 0
outbox_produced_total{entity_type="other",event_type="other"} 2
`)); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	if _, err := outbox.NewProduced(reg); err == nil {
		t.Error("the counter could be registered twice")
	}
}
