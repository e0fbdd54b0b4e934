package main

import (
	"encoding/json"
	"maps"
	"testing"
	"time"
)

func TestCompareCatchesEachWrongDocument(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 10, 20, 30, 456_000_000, time.UTC)
	rows := []row{
		{1, "one", "first", "1.50", at},
		{2, "two", "second", "0.10", at},
	}
	right := map[string]document{
		"1": {Title: "one", Body: "first", Price: "1.5", UpdatedAt: "2026-11-23T10:20:30.456+00:00"},
		"2": {Title: "two", Body: "second", Price: "0.10", UpdatedAtToo: "2026-11-23T10:20:30.456000000Z"},
	}
	with := func(change func(d *document)) map[string]document {
		docs := maps.Clone(right)
		d := docs["2"]
		change(&d)
		docs["2"] = d
		return docs
	}
	missing, surplus := maps.Clone(right), maps.Clone(right)
	delete(missing, "1")
	surplus["3"] = right["1"]
	cases := map[string]struct {
		docs map[string]document
		want wrong
	}{
		"Right":     {maps.Clone(right), wrong{}},
		"Missing":   {missing, wrong{Missing: 1, Example: "no document of row 1"}},
		"Surplus":   {surplus, wrong{Surplus: 1, Example: "no row of document 3"}},
		"Title":     {with(func(d *document) { d.Title = "Two" }), wrong{Different: 1, Example: "document 2: title"}},
		"Body":      {with(func(d *document) { d.Body = "" }), wrong{Different: 1, Example: "document 2: body"}},
		"Price":     {with(func(d *document) { d.Price = "0.11" }), wrong{Different: 1, Example: "document 2: price"}},
		"NoPrice":   {with(func(d *document) { d.Price = "" }), wrong{Different: 1, Example: "document 2: price"}},
		"OlderTime": {with(func(d *document) { d.UpdatedAtToo = "2026-11-23T10:20:30.455Z" }), wrong{Different: 1, Example: "document 2: updated_at"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := compare(rows, c.docs); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
	if got := compare(rows, with(func(d *document) { d.UpdatedAtToo = "yesterday" })); got.Different != 1 {
		t.Errorf("a time that cannot be read: got %+v, want 1 different", got)
	}
}

func TestDocumentIsReadAsEachPeerWritesIt(t *testing.T) {
	t.Parallel()
	r := row{7, "item 7", "text", "12.30", time.Date(2026, 11, 23, 10, 0, 0, 0, time.UTC)}
	for name, text := range map[string]string{
		"Weft":            `{"title": "item 7", "body": "text", "price": 12.30, "updated_at": "2026-11-23T10:00:00+00:00"}`,
		"PGSync":          `{"id": 7, "title": "item 7", "body": "text", "price": 12.3, "updated_at": "2026-11-23T10:00:00+00:00", "_meta": {}}`,
		"HibernateSearch": `{"_entity_type": "item", "title": "item 7", "body": "text", "price": 12.3, "updatedAt": "2026-11-23T10:00:00.000000000Z"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var doc document
			if err := json.Unmarshal([]byte(text), &doc); err != nil {
				t.Fatal(err)
			}
			if got := compare([]row{r}, map[string]document{"7": doc}); got.total() != 0 {
				t.Errorf("got %+v, want none wrong", got)
			}
		})
	}
}
