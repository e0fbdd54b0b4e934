package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestUninstall(t *testing.T) {
	t.Parallel()
	m := newMorgue(t)
	m.fill()
	if r := weft(t, runnerOf(t, m), "uninstall", "--yes"); r.code == 0 {
		t.Errorf("with the rights of an instance: got %+v, want a failure", r)
	}
	r := weft(t, m.env, "uninstall")
	for _, want := range []string{"goes\n", "  table", "weft_lease", "  function", "stays\n", "search_outbox_events", "7 events, 0 of them open", "elsewhere", "Nothing was changed: give --yes to do it."} {
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("got %+v, want %q in it", r, want)
		}
	}
	m.exec(`insert into weft_instance (group_name, instance, role, version, host, pid, started_at, seen_at) values ('weft', 'weft-b', 'standby', 'v', 'h', 1, now(), now())`)
	if r := weft(t, m.env, "uninstall", "--yes"); r.code != exitRefused || !strings.Contains(r.errOut, `instance "weft-b" of group "weft" is there: stop every`) {
		t.Errorf("beside an instance: got %+v, want a refusal", r)
	}
	m.exec(`delete from weft_instance`)
	r = weft(t, m.env, "uninstall", "--yes", "--json")
	var out uninstalled
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 || !out.Done || len(out.Goes) == 0 || len(out.Stays) == 0 || len(out.Elsewhere) == 0 {
		t.Fatalf("got %+v, %v, want what was removed", r, err)
	}
	if left := m.one(`select count(*)::text || ' ' || (select count(*) from pg_class where relname ~ '^weft_') from search_outbox_events`); left != "7 0" {
		t.Errorf("events and tables of weft that are left: %s, want 7 0", left)
	}
	if r := weft(t, m.env, "uninstall"); r.code != 0 || r.out != "nothing to do: weft is not in this schema\n" {
		t.Errorf("again: got %+v", r)
	}
	m.exec(`insert into search_outbox_events (id, entity_type, entity_id, op, event_version) values ($1, 'block', $1, 'upsert', 9)`, uuid.NewString())
	if r := weft(t, m.env, "migrate", "up"); r.code != 0 {
		t.Fatalf("installed anew: got %+v", r)
	}
	if r := weft(t, m.env, "status"); !strings.Contains(r.out, "search_index_to_elastic") {
		t.Errorf("status: got %+v", r)
	}
}
