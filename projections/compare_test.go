package projections

import (
	"testing"

	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

// Elasticsearch takes no empty id: the row of such a key has a problem, and all others are compared.
func TestEmptyKeyIsComparedWithNoDocument(t *testing.T) {
	t.Parallel()
	d := newDomain(t, "create table item (code text primary key, name text)", migrations.OutboxSpec{}, Declaration{
		Query: "select i.code as entity_id, v.version, i.name from item i join item_outbox_versions v on v.entity_id = i.code where i.code = any($1)",
	})
	d.start()
	d.exec("insert into item values ('', 'empty'), ('a', 'b')")
	events := d.events()
	out, err := d.index.Project(leading(t, 1), events)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]outbox.Key, len(events))
	for i, e := range events {
		keys[i] = e.Key
		want := outbox.OK()
		if e.Key.ID == outbox.Text("") {
			want = outbox.Reject(outbox.ReasonDeterministic, "")
		}
		wantOutcomes(t, out[i:i+1], []outbox.Outcome{want})
	}
	wanted, err := d.index.Wanted(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range wanted {
		if empty := keys[i].ID == outbox.Text(""); empty != (w.Problem != "") || empty == w.Found {
			t.Errorf("%s: got %+v", keys[i], w)
		}
	}
	d.documents() // refreshes
	for _, newest := range []bool{false, true} {
		held, err := d.index.Held(t.Context(), keys, newest)
		if err != nil || len(held) != 1 || held[0].ID != "a" {
			t.Errorf("newest %t: got %+v, %v, want the other document", newest, held, err)
		}
	}
	if held, err := d.index.Held(t.Context(), []outbox.Key{{ID: outbox.Text("")}}, true); err != nil || len(held) > 0 {
		t.Errorf("the empty key alone: got %+v, %v", held, err)
	}
}
