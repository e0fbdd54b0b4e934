package doctor

import (
	"slices"
	"testing"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/projections"
)

// An outbox that triggers fill and nobody empties is named, with what waits in it, until somebody reads it.
func TestOutboxThatNobodyReadsIsFound(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	e := patient(t, url)
	exec(t, testenv.Pool(t, url), "create table product (id int primary key)")
	if _, err := migrations.CreateOutbox(t.Context(), url, migrations.OutboxSpec{Table: "product"}, true); err != nil {
		t.Fatal(err)
	}
	nothing := func(when string) {
		t.Helper()
		if e.found = nil; e.unread(t.Context()) != nil || len(e.found) > 0 {
			t.Errorf("%s: got %+v, want nothing", when, e.found)
		}
	}
	finds := func(text, remedy string) {
		t.Helper()
		e.found = nil
		if err := e.unread(t.Context()); err != nil || len(e.found) != 1 {
			t.Fatalf("got %+v, %v, want one finding", e.found, err)
		}
		wantFinding(t, e.found, want{"schema.unread", Warning, "product_outbox_events", text, remedy})
	}
	nothing("an outbox without an event")
	exec(t, e.Pool, "insert into product select generate_series(1, 3)", "update product_outbox_events set created_at = now() - interval '3 days'")
	finds("and no leader: 3 events wait, the oldest for 3 days. Each change of public.product adds one",
		"start instances that declare a projection with outbox.table product_outbox_events; or, if nobody needs it, `weft outbox drop --name product_outbox_events --force --apply`")

	exec(t, e.Pool, "insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ('shop', 3, 'c', now(), now())",
		"insert into weft_progress (table_name, group_name, projection, epoch, last_settle_at) values ('product_outbox_events', 'shop', 'p', 3, now())")
	nothing("another group leads and reads it")
	exec(t, e.Pool, "update weft_leader set released_at = now()")
	finds("no leader any more (the last one was of the group shop): 3 events wait", "start instances")
	exec(t, e.Pool, "update weft_leader set released_at = null, epoch = 4")
	finds("(the last one was of the group shop)", "start instances")

	e.Config.Declared = []projections.Declaration{{Name: "products", Table: "product_outbox_events"}}
	e.Config.Projections = append(e.Config.Projections, "products")
	nothing("a projection of this configuration reads it")
	e.Config.Projections = slices.DeleteFunc(e.Config.Projections, func(name string) bool { return name == "products" })
	finds("(the last one was of the group shop)", "start instances")

	exec(t, e.Pool, "update weft_leader set group_name = 'weft'", "update weft_progress set group_name = 'weft', epoch = 4")
	nothing("the leader of this group still reads it")
	exec(t, e.Pool, "update weft_leader set renewed_at = now() - interval '1 hour'")
	finds("no leader: 3 events wait", "start instances")
}

// Events are counted up to a limit, and a role without a right on the outbox is told of it all the same.
func TestUnreadOutboxIsCountedUpToALimit(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	exec(t, testenv.Pool(t, url), "create table product (id int primary key)")
	runner := testenv.Runner(t, url)
	if _, err := migrations.CreateOutbox(t.Context(), url, migrations.OutboxSpec{Table: "product"}, true); err != nil {
		t.Fatal(err)
	}
	e := patient(t, url)
	exec(t, e.Pool, "insert into product select generate_series(1, 10100)")
	if err := e.unread(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, e.found, want{"schema.unread", Warning, "product_outbox_events", "10000 events or more wait, the oldest for", "weft outbox drop"})
	e = patient(t, testenv.As(t, url, runner))
	if err := e.unread(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, e.found, want{"schema.unread", Note, "product_outbox_events", "the role may not count its events", "weft outbox drop"})
}
