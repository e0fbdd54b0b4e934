package projections

import (
	"testing"

	"github.com/samuelhu324-dev/weft/outbox"
)

// BenchmarkSearch1000 reads a batch of rows of search_index and makes their documents.
func BenchmarkSearch1000(b *testing.B) {
	s := setup(b)
	s.exec(`insert into search_index (entity_type, entity_id, text, snippet, rank_score, event_version)
		select 'block', gen_random_uuid(), repeat('x', 200), 'snippet', 0.5, 1 from generate_series(1, 100000)`)
	s.exec("analyze search_index")
	var events []outbox.Event
	rows, err := s.pool.Query(b.Context(), "select entity_id from search_index limit 1000")
	if err != nil {
		b.Fatal(err)
	}
	for rows.Next() {
		e := event(outbox.Upsert, outbox.Key{Type: "block"}, 1)
		if err := rows.Scan(&e.Key.ID); err != nil {
			b.Fatal(err)
		}
		events = append(events, e)
	}
	if err := rows.Err(); err != nil || len(events) != 1000 {
		b.Fatal(len(events), err)
	}
	source := s.search(&sink{}).source
	a := &arena{}
	b.ReportAllocs()
	for b.Loop() {
		if n, err := source.read(b.Context(), a, events); n != len(events) || err != nil {
			b.Fatal(n, err)
		}
	}
}
