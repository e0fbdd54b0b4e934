package projections

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/samuelhu324-dev/weft/projections/elastic"
)

func TestRegistry(t *testing.T) {
	t.Parallel()
	var r Registry
	deps := Deps{Elastic: elastic.Config{URLs: []string{"http://h:1"}, Index: "i"}, ChronicleVersion: 1, Log: zap.NewNop(), Registerer: prometheus.NewRegistry()}
	built, err := r.Build(r.Names(), deps)
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]string{}
	for _, p := range built {
		tables[p.Name()] = p.Table()
	}
	want := map[string]string{SearchIndexToElastic: "search_outbox_events", ChronicleEventsToEntries: "chronicle_outbox_events"}
	if d := cmp.Diff(want, tables); d != "" {
		t.Errorf("projections (-want +got):\n%s", d)
	}
	deps.ChronicleVersion = 0
	_, err = r.Build([]string{"nobody", ChronicleEventsToEntries, ChronicleEventsToEntries}, deps)
	for _, part := range []string{`unknown projection "nobody"`, SearchIndexToElastic, "version 0", "named twice"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error: got %v, want it to say %q", err, part)
		}
	}
}
