package projections

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections/elastic"
)

// domain is a table with its outbox, and a projection into an index of five shards.
type domain struct {
	*bench
	declaration Declaration
	sink        *elastic.Sink
	index       *Index
	registry    *prometheus.Registry
}

const fiveShards = `{"number_of_shards": 5}`

// newDomain makes table item and its outbox item_outbox_events as the specification says.
func newDomain(t *testing.T, table string, spec migrations.OutboxSpec, d Declaration) *domain {
	t.Helper()
	dsn := testenv.Database(t)
	b := &bench{tb: t, pool: testenv.Pool(t, dsn)}
	b.exec("insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ($1, 1, 'a', now(), now())", group)
	b.exec(table)
	spec.Table = "item"
	if _, err := migrations.CreateOutbox(t.Context(), dsn, spec, true); err != nil {
		t.Fatal(err)
	}
	d.Name, d.Table, d.Index, d.Settings = "items", "item_outbox_events", testenv.Index(t), json.RawMessage(fiveShards)
	d.Mapping = json.RawMessage(`{"dynamic": false}`) // the server would wait for a change of it for seconds at most
	return &domain{bench: b, declaration: d, registry: prometheus.NewRegistry()}
}

// start makes the projection and its index.
func (d *domain) start() {
	d.tb.Helper()
	var err error
	deps := Deps{Pool: d.pool, Elastic: elasticsearch(d.tb), Log: zaptest.NewLogger(d.tb), Registerer: d.registry}
	d.sink, err = Registry{Declared: []Declaration{d.declaration}}.Sink(d.declaration.Name, deps.Elastic, deps.Log, deps.Registerer)
	if err != nil {
		d.tb.Fatal(err)
	}
	d.tb.Cleanup(d.sink.Close)
	if d.index, err = NewDeclared(d.declaration, d.pool, d.sink, deps.Log, deps.Registerer); err != nil {
		d.tb.Fatal(err)
	}
	if err := d.index.Prepare(d.tb.Context()); err != nil {
		d.tb.Fatal(err)
	}
}

// events takes the events out of the outbox, in the order of their versions.
func (d *domain) events() []outbox.Event {
	d.tb.Helper()
	rows, err := d.pool.Query(d.tb.Context(), "with gone as (delete from item_outbox_events returning entity_type, entity_id, op, event_version) select * from gone order by event_version")
	if err != nil {
		d.tb.Fatal(err)
	}
	var events []outbox.Event
	var typ, id, op string
	var version int64
	if _, err := pgx.ForEachRow(rows, []any{&typ, &id, &op, &version}, func() error {
		events = append(events, event(outbox.Op(op), outbox.Key{Type: typ, ID: outbox.Text(id)}, version))
		return nil
	}); err != nil {
		d.tb.Fatal(err)
	}
	return events
}

// project carries events as one batch; all of them must be done.
func (d *domain) project(events ...outbox.Event) {
	d.tb.Helper()
	out, err := d.index.Project(leading(d.tb, 1), events)
	if err != nil {
		d.tb.Fatal(err)
	}
	for i, o := range out {
		if o.Verdict != outbox.Done {
			d.tb.Errorf("%s %s: %+v", events[i].Op, events[i].Key, o)
		}
		if o.Noop == outbox.NoopVersionAhead {
			d.tb.Errorf("%s %s: alarm of a version ahead of its source", events[i].Op, events[i].Key)
		}
	}
}

// documents returns the documents that a search of all shards finds: each id once for each
// shard that has it, with its routing.
func (d *domain) documents() map[elastic.Doc]string {
	d.tb.Helper()
	base := testenv.ElasticURL(d.tb) + "/" + d.declaration.Index
	call(d.tb, base+"/_refresh", "POST", "")
	found := map[elastic.Doc]string{}
	for shard := range 5 {
		var answer struct {
			Hits struct {
				Hits []struct {
					ID      string          `json:"_id"`
					Routing string          `json:"_routing"`
					Source  json.RawMessage `json:"_source"`
				} `json:"hits"`
			} `json:"hits"`
		}
		text := call(d.tb, fmt.Sprintf("%s/_search?size=1000&preference=_shards:%d", base, shard), "GET", "")
		if err := json.Unmarshal(text, &answer); err != nil {
			d.tb.Fatal(err)
		}
		for _, h := range answer.Hits.Hits {
			doc := elastic.Doc{ID: h.ID, Routing: h.Routing}
			if _, twice := found[doc]; twice {
				d.tb.Errorf("%+v is on two shards", doc)
			}
			found[doc] = string(h.Source)
		}
	}
	return found
}

func (d *domain) wantDocuments(what string, want map[elastic.Doc]string) {
	d.tb.Helper()
	if diff := cmp.Diff(want, d.documents()); diff != "" {
		d.tb.Errorf("%s: documents (-want +got):\n%s", what, diff)
	}
}

func call(tb testing.TB, url, method, body string) []byte {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, url, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode > 299 {
		tb.Fatalf("%s %s: %d %s %v", method, url, res.StatusCode, text, err)
	}
	return text
}

// The third domain: keys of texts with every sign that means something somewhere.
func TestCompositeTextKeysFromTheTriggerToTheDocument(t *testing.T) {
	t.Parallel()
	d := newDomain(t, "create table item (tenant text, code text, n numeric, name text, primary key (tenant, code, n))", migrations.OutboxSpec{}, Declaration{
		Query: `select i.tenant, i.code, i.n, v.version, i.name from item i join item_outbox_versions v on v.entity_id = item_outbox_id(i.tenant, i.code, i.n)
			where (i.tenant, i.code, i.n) in (select * from unnest($1::text[], $2::text[], $3::numeric[]))`,
	})
	d.start()
	texts := []string{"", "a", `a'b"c\`, "50%/x?y#z", "a:b", "{x,null}", "日本 🎉", "%3A", "two\nlines", ".", "..", strings.Repeat("é", 250), strings.Repeat("🎉:%", 150)}
	want := map[elastic.Doc]string{}
	names := func(f func(tenant, code, n string) string) {
		clear(want)
		for i, code := range texts {
			tenant := texts[(i+1)%len(texts)]
			id := d.index.source.(*declaredSource).naming.Load().doc(outbox.Key{ID: outbox.Composite(tenant, code, "1.5")})
			body, err := json.Marshal(f(tenant, code, "1.50"))
			if err != nil {
				t.Fatal(err)
			}
			jsonOf := func(s string) string { return string(elastic.AppendString(nil, s)) }
			want[id] = `{"tenant":` + jsonOf(tenant) + `,"code":` + jsonOf(code) + `,"n":1.50,"name":` + string(body) + `}`
		}
	}
	for i, code := range texts {
		d.exec("insert into item values ($1, $2, 1.50, 'first')", texts[(i+1)%len(texts)], code)
	}
	names(func(string, string, string) string { return "first" })
	d.project(d.events()...)
	d.wantDocuments("insert", want)
	d.exec("update item set name = 'second'")
	names(func(string, string, string) string { return "second" })
	d.project(d.events()...)
	d.wantDocuments("update", want)
	for _, code := range texts {
		id := outbox.Composite(texts[(slices.Index(texts, code)+1)%len(texts)], code, "1.5")
		r, err := Registry{Declared: []Declaration{d.declaration}}.Render(t.Context(), "items", id.String(), Deps{Pool: d.pool, Elastic: elasticsearch(t)})
		if err != nil || r.Document == nil || !bytes.Equal(r.Document, r.Indexed) {
			t.Errorf("render %s: %+v, %v", id, r, err)
		}
	}
	d.exec("update item set code = code || '!'")
	for i := range texts {
		texts[i] += "!"
	}
	d.exec("update item set tenant = tenant || '!'")
	names(func(string, string, string) string { return "second" })
	d.project(d.newest()...)
	d.wantDocuments("key change", want)
	d.exec("delete from item")
	d.project(d.events()...)
	d.wantDocuments("delete", map[elastic.Doc]string{})
}

// An id that PostgreSQL writes otherwise, as an application may call weft_enqueue with, fails alone. A document of
// such an id belongs to no entity.
func TestMisspelledIDsOfSeveralPartsFailAlone(t *testing.T) {
	t.Parallel()
	d := newDomain(t, "create table item (tenant text, id integer, n numeric, u uuid, c char(4), name text, primary key (tenant, id, n, u, c))", migrations.OutboxSpec{}, Declaration{
		Query: `select i.tenant, i.id, i.n, i.u, i.c, v.version, i.name from item i join item_outbox_versions v on v.entity_id = item_outbox_id(i.tenant, i.id, i.n, i.u, i.c)
			where (i.tenant, i.id, i.n, i.u, i.c) in (select * from unnest($1::text[], $2::bigint[], $3::numeric[], $4::uuid[], $5::bpchar[]))`,
	})
	d.start()
	const u = "0af76519-16cd-43dd-8448-eb211c80319c"
	d.exec("insert into item values ('a%:', 7, 1.50, $1, 'x', 'first')", u)
	good := d.events()
	id := good[0].Key.ID.String()
	if id != "a%25%3A:7:1.5:"+u+":x" {
		t.Fatalf("id: got %s", id)
	}
	for old, other := range map[string]string{":7:": ":007:", ":1.5:": ":1.50:", "0af7": "0AF7", ":x": ":x   ", "%25": "%", "%3A": "%3a", ":7:1": ":seven:1", ":7:1.5": ":9223372036854775808:1.5"} {
		key := outbox.Key{Type: "item", ID: outbox.Text(strings.Replace(id, old, other, 1))}
		wrong, gone := event(outbox.Upsert, key, 1), event(outbox.Delete, key, 1)
		out, err := d.index.Project(leading(t, 1), []outbox.Event{wrong, good[0]})
		if err != nil {
			t.Fatal(err)
		}
		if out[0].Reason != outbox.ReasonDeterministic || !strings.Contains(out[0].Detail, "id "+strings.TrimRight(key.ID.String(), " ")) || out[1].Verdict != outbox.Done {
			t.Errorf("%s: got %+v, want it to fail and %s to be done", key.ID, out, id)
		}
		if got, ours := d.index.source.(*declaredSource).naming.Load().entity(elastic.Doc{ID: key.ID.String()}); !got.ID.IsZero() || !ours {
			t.Errorf("document %s: got entity %s, want none", key.ID, got)
		}
		d.project(gone)
	}
}

// newest takes the events, of each entity only the newest, as coalescing does.
func (d *domain) newest() []outbox.Event {
	newest := map[outbox.Key]outbox.Event{}
	for _, e := range d.events() {
		newest[e.Key] = e
	}
	return slices.Collect(maps.Values(newest))
}

func newRouted(t *testing.T) *domain {
	t.Helper()
	d := newDomain(t, "create table item (id bigint primary key, tenant text not null, name text)", migrations.OutboxSpec{Routing: "tenant"}, Declaration{
		Query:   "select i.id as entity_id, v.version, i.tenant, i.name from item i join item_outbox_versions v on v.entity_id = i.id where i.id = any($1)",
		Routing: "tenant",
	})
	d.start()
	return d
}

// A move leaves nothing on the old shard, in whatever order and batches its events arrive, and
// whether or not both places are on one shard.
func TestMovesLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	d := newRouted(t)
	const tenants, rounds = 8, 4
	random := rand.New(rand.NewPCG(1, 2))
	at := map[int]string{}
	for id := range 40 {
		d.exec("insert into item values ($1, $2, 'x')", id, "t"+fmt.Sprint(id%tenants))
	}
	var late []outbox.Event
	for round := range rounds {
		for id := range 40 {
			to := "t" + fmt.Sprint(random.IntN(tenants))
			d.exec("update item set tenant = $2, name = $3 where id = $1", id, to, fmt.Sprint(round))
			at[id] = to
		}
		events := d.events()
		events = append(events, late...)
		late = nil
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		// Of each place once in a batch; some wait for the round after.
		for len(events) > 0 {
			var batch, rest []outbox.Event
			seen := map[outbox.Key]bool{}
			for _, e := range events {
				switch {
				case random.IntN(5) == 0 && round < rounds-1:
					late = append(late, e)
				case seen[e.Key]:
					rest = append(rest, e)
				default:
					seen[e.Key] = true
					batch = append(batch, e)
				}
			}
			if len(batch) > 0 {
				d.project(batch...)
			}
			events = rest
		}
	}
	want := map[elastic.Doc]string{}
	for id, tenant := range at {
		want[elastic.Doc{ID: fmt.Sprint(id), Routing: tenant}] = fmt.Sprintf(`{"tenant":"%s","name":"%d"}`, tenant, rounds-1)
	}
	d.wantDocuments("moves", want)
	d.exec("delete from item")
	d.project(d.newest()...)
	d.wantDocuments("deletes", map[elastic.Doc]string{})
}

// A row with an empty routing has no document, and holds up no look at the others.
func TestEmptyRoutingHasNoDocument(t *testing.T) {
	t.Parallel()
	d := newRouted(t)
	d.exec("insert into item values (1, 'a', 'x'), (2, '', 'x')")
	events := d.events()
	out, err := d.index.Project(leading(t, 1), events)
	if err != nil || out[0].Verdict != outbox.Done || out[1].Verdict != outbox.Failed || !strings.Contains(out[1].Detail, "routing is required") {
		t.Fatalf("got %+v, %v, want the second to fail for its routing", out, err)
	}
	held, err := d.index.Held(t.Context(), []outbox.Key{events[0].Key, events[1].Key}, true)
	if err != nil || len(held) != 1 || held[0].ID != "1" {
		t.Errorf("held: got %+v, %v, want document 1", held, err)
	}
	live, err := d.sink.Live(t.Context(), []elastic.Doc{{ID: "1", Routing: "a"}, {ID: "2"}})
	if err != nil || !slices.Equal(live, []bool{true, false}) {
		t.Errorf("live: got %v, %v, want the first alone", live, err)
	}
}

// Events of the old place that come late, beside those of the new one, and after a return.
func TestLateEventsOfAnOldPlace(t *testing.T) {
	t.Parallel()
	d := newRouted(t)
	for id := range 10 { // of ten tenants some share a shard with the one that they move to
		d.exec("insert into item values ($1, $2, 'a')", id, fmt.Sprintf("from%d", id))
	}
	inserted := d.events()
	d.exec("update item set tenant = 'there', name = 'b'")
	moved := d.events()
	var there, left []outbox.Event
	for _, e := range moved {
		if e.Op == outbox.Upsert {
			there = append(there, e)
		} else {
			left = append(left, e)
		}
	}
	want := map[elastic.Doc]string{}
	for id := range 10 {
		want[elastic.Doc{ID: fmt.Sprint(id), Routing: "there"}] = `{"tenant":"there","name":"b"}`
	}
	d.project(there...)
	d.project(inserted...) // the rows have moved on: deletes of the old places
	d.wantDocuments("late insert", want)
	d.project(left...)
	d.wantDocuments("late delete", want)
	d.project(append(slices.Clone(left), there...)...)
	d.wantDocuments("both places in one batch, again", want)

	d.exec("update item set tenant = 'from' || id, name = 'c'")
	returned := d.newest()
	clear(want)
	for id := range 10 {
		want[elastic.Doc{ID: fmt.Sprint(id), Routing: fmt.Sprintf("from%d", id)}] = fmt.Sprintf(`{"tenant":"from%d","name":"c"}`, id)
	}
	d.project(returned...)
	d.project(left...) // of before the return
	d.project(there...)
	d.wantDocuments("return", want)
}

// Two entities of one outbox are two documents under a template, and one index holds two outboxes.
func TestSharedIndex(t *testing.T) {
	t.Parallel()
	d := newDomain(t, "create table item (id bigint primary key, name text)", migrations.OutboxSpec{}, Declaration{
		Query: "select id as entity_id, 1 as version, name from item where id = any($1)", ID: "p-{id}",
	})
	d.start()
	other := *d
	other.declaration.Name, other.declaration.ID = "others", "o-{id}"
	if err := other.declaration.Overlap(d.declaration); err != nil {
		t.Fatal(err)
	}
	unlike := other.declaration
	unlike.Settings = nil
	if err := unlike.Overlap(d.declaration); err == nil || !strings.Contains(err.Error(), "with other settings") {
		t.Errorf("settings of one alone: got %v, want it refused", err)
	}
	other.start()
	d.exec("insert into item values (1, 'a')")
	e := event(outbox.Upsert, outbox.Key{Type: "item", ID: outbox.Number(1)}, 1)
	d.project(e)
	other.project(e)
	d.wantDocuments("both", map[elastic.Doc]string{{ID: "p-1"}: `{"name":"a"}`, {ID: "o-1"}: `{"name":"a"}`})
	d.exec("delete from item")
	e.Op, e.Version = outbox.Delete, 2
	d.project(e)
	d.wantDocuments("one", map[elastic.Doc]string{{ID: "o-1"}: `{"name":"a"}`})
}

// What is declared and what the outbox was made with must agree; each refusal says what to do.
func TestDeclaredPlacesThatAreRefused(t *testing.T) {
	t.Parallel()
	routed := newRouted(t).bench
	routed.exec("create table pair (a text, b bigint, version text, primary key (a, b))")
	routed.exec(`insert into weft_outbox (table_name, entity_type, source, key_columns, key_types) values ('pair_outbox_events', 'pair', 'pair', '{a,b}', '{text,bigint}'), ('odd_outbox_events', 'odd', 'odd', '{a,version}', '{text,text}'), ('line_outbox_events', 'line', 'line', '{"Line No",b}', '{text,bigint}')`)
	routed.exec("create table pair_outbox_events (id uuid, entity_id text); create table odd_outbox_events (id uuid, entity_id text); create table line_outbox_events (id uuid, entity_id text)")
	const one, two = "select 1 as entity_id, 1 as version, 't' as tenant where 1 = any($1)", "select 'x' as a, 1::bigint as b, 1 as version where 'x' = any($1) and 1 = any($2)"
	for name, tc := range map[string]struct {
		d             Declaration
		setting, want string
	}{
		"NoRoutingDeclared": {Declaration{Table: "item_outbox_events", Query: one}, "index.routing", "it is missing, and outbox table item_outbox_events was made with --routing tenant: name the column of the query that has it, as in `routing: tenant`"},
		"NoRoutingRecorded": {Declaration{Table: "pair_outbox_events", Query: two, Routing: "a"}, "index.routing", "records no routing, so a delete would not find its shard: drop the outbox, and make it again with `weft outbox create` --routing COLUMN"},
		"RoutingColumn":     {Declaration{Table: "item_outbox_events", Query: one, Routing: "other"}, "source.query", "there is no column other"},
		"SecondParameter":   {Declaration{Table: "pair_outbox_events", Query: "select 'x' as a, 1 as b, 1 as version where 'x' = any($1)"}, "source.query", "it does not use $2, and the key has 2 columns: filter the rows by the key, as in `where (a, b) in (select * from unnest($1::text[], $2::bigint[]))`"},
		"FurtherParameter":  {Declaration{Table: "pair_outbox_events", Query: two + " and 'y' = $3"}, "source.query", "it has another number of parameters than the key has columns, which is 2: filter the rows by the key, as in"},
		"KeyColumn":         {Declaration{Table: "pair_outbox_events", Query: strings.Replace(two, " as b", " as c", 1)}, "source.query", "there is no column b"},
		"QuotedColumn":      {Declaration{Table: "line_outbox_events", Query: two}, "source.query", "there is no column Line No: name the column that has it, as in `p.id as \"Line No\"`"},
		"QuotedParameter":   {Declaration{Table: "line_outbox_events", Query: one}, "source.query", "as in `where (\"Line No\", b) in (select"},
		"KeyOfOne":          {Declaration{Table: "pair_outbox_events", Query: two, Key: []string{"a"}}, "source.key", "it names a, and outbox table pair_outbox_events was made for a key of 2 columns: a, b"},
		"KeyReserved":       {Declaration{Table: "pair_outbox_events", Query: two, Key: []string{"a", "version"}}, "source.key", "it names version, which has a meaning of its own"},
		"KeyNamedVersion":   {Declaration{Table: "odd_outbox_events", Query: two}, "source.key", "the key of outbox table odd_outbox_events is a, version, of which one has another meaning in the query"},
		"TemplateColumn":    {Declaration{Table: "pair_outbox_events", Query: two, ID: "{a}:{c}"}, "index.id", "c is no column of the key: want a, b"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.d.Name, tc.d.Index = "p", "p"
			err := newDeclaredSource(tc.d, routed.pool).prepare(t.Context())
			fault, ok := errors.AsType[*outbox.Fault](err)
			if !ok || !fault.Shared || !strings.HasPrefix(fault.Err.Error(), tc.setting+" of projection p: ") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s: %s", err, tc.setting, tc.want)
			}
		})
	}
}
