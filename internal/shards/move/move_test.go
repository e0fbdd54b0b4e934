package move

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// All that a shard has moves, writes are refused where it is not, and it can come back.
func TestMove(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(w.src, "select s_1.weft_history_attach('search_outbox_events', (now() at time zone 'UTC')::date)")
	w.exec(w.src, "update s_1.search_outbox_events set processed_at = now() where entity_id in (select entity_id from s_1.search_outbox_events limit 20)")
	w.exec(w.src, "with gone as (delete from s_1.search_outbox_events where processed_at is not null returning *) insert into s_1.search_outbox_history select * from gone")
	w.exec(w.src, "insert into s_1.weft_leader (group_name, epoch, instance, acquired_at, renewed_at, released_at) values ('weft-shard-1', 7, 'a', now(), now(), now())")
	w.exec(w.src, "insert into s_1.weft_term (group_name, epoch, instance, acquired_at, ended_at, end_reason) values ('weft-shard-1', 7, 'a', now(), now(), 'stopped')")
	w.exec(w.src, "insert into s_1.weft_pause values ('weft-shard-1', 'search_index_to_elastic', now(), 'alice', 'a test')")
	w.exec(w.src, "insert into s_1.weft_audit (actor, action, why) select 'alice', 'replay', 'entry ' || x from generate_series(1, 50) x")
	mine := w.number(w.src, "select count(*) from s_1.search_index")
	lastAudit := w.number(w.src, "select max(id) from s_1.weft_audit")

	plan, err := Check(t.Context(), w.there())
	if err != nil {
		t.Fatal(err)
	}
	if !plan.Structure || plan.Open || plan.Again || plan.Done || len(plan.Tables) < 15 || plan.To.Address != address(t, w.to) {
		t.Errorf("plan: got %+v", plan)
	}
	r, err := Run(t.Context(), w.there(), plan)
	if err != nil {
		t.Fatal(err)
	}
	if r.Rows() < int64(2*mine) || r.Epoch < 7 || r.Bytes == 0 || r.Waited <= 0 {
		t.Errorf("result: got %d rows, epoch %d, %d bytes, %v", r.Rows(), r.Epoch, r.Bytes, r.Waited)
	}
	for what, c := range map[string]struct {
		sql  string
		want int
	}{
		"rows":      {"select count(*) from search_index", mine},
		"events":    {"select count(*) from s_1.search_outbox_events", mine - 20},
		"history":   {"select count(*) from s_1.search_outbox_history where processed_at is not null", 20},
		"pause":     {"select count(*) from s_1.weft_pause where reason = 'a test'", 1},
		"terms":     {"select count(*) from s_1.weft_term where epoch = 7", 1},
		"audit":     {"select count(*) from s_1.weft_audit where action = 'replay'", 50},
		"arrival":   {"select count(*) from s_1.weft_audit where action = 'shards_move' and actor = 'alice' and why = 'a test' and (detail->>'shard')::int = 1", 1},
		"identity":  {"select (min(id) > " + itoa(lastAudit) + ")::int from s_1.weft_audit where action = 'shards_move'", 1},
		"own of":    {"select count(*) from search_index where not s_1.weft_shard_has(entity_id)", 0},
		"number of": {"select count(*) from search_index where weft_shard_of(entity_id) <> 1", 0},
		"fence":     {"select count(*) from s_1.weft_fence where epoch > 7", 1},
	} {
		if got := w.number(w.dst, c.sql); got != c.want {
			t.Errorf("%s in the new home: got %d, want %d", what, got, c.want)
		}
	}
	if got := w.number(w.src, "select count(*) from search_index"); got != entities-mine {
		t.Errorf("got %d rows through the one name of the source, want the %d of other shards", got, entities-mine)
	}
	if got := w.number(w.src, "select count(*) from s_1.weft_audit where action = 'shards_move'"); got != 1 {
		t.Errorf("got %d entries of the leave, want 1", got)
	}
	w.home(w.dst, w.src)
	err = write(t.Context(), w.src, w.entity(moved))
	refused, _ := errors.AsType[*pgconn.PgError](err)
	if refused == nil || refused.Code != "WF005" || refused.Detail != address(t, w.to) || !strings.HasPrefix(refused.Message, "shard 1 is on "+address(t, w.to)+" since 20") || !strings.HasSuffix(refused.Message, ": write there") {
		t.Errorf("write to the source: got %#v", refused)
	}
	if err := write(t.Context(), w.dst, w.entity(0)); err == nil || !strings.Contains(err.Error(), "shard 0 is on "+address(t, w.from)) {
		t.Errorf("write of another shard to the target: got %v", err)
	}
	for _, sql := range []string{"truncate search_index", "truncate s_1.search_index"} {
		if _, err := w.src.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "WF005") {
			t.Errorf("%s: got %v, want a refusal", sql, err)
		}
	}
	if plan, err := Check(t.Context(), w.there()); err != nil || !plan.Done {
		t.Errorf("the same move again: got %+v, %v, want nothing to do", plan, err)
	}

	w.exec(w.src, "insert into s_1.weft_term (group_name, epoch, instance, acquired_at) values ('weft-shard-1', 8, 'of the empty shard', now())")
	again := w.mustMove(w.back())
	if again.Epoch <= r.Epoch {
		t.Errorf("epoch after the way back: got %d, want more than %d", again.Epoch, r.Epoch)
	}
	w.home(w.src, w.dst)
	if got := w.number(w.src, "select count(*) from search_index"); got != entities {
		t.Errorf("got %d rows after the way back, want %d", got, entities)
	}
	if got := w.number(w.src, "select count(*) from s_1.weft_audit where action = 'shards_move'"); got != 3 {
		t.Errorf("got %d entries of moves, want the leave, the arrival there and the arrival here", got)
	}
	w.mustMove(w.there())
	w.home(w.dst, w.src)
}

// A target of an older schema is brought up to the source's before anything is copied: all of its shards
// get the columns that are new, and the one that moves the version.
func TestMoveBringsAnOlderTargetUp(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.structure(t)
	for n := range count {
		w.exec(w.dst, fmt.Sprintf("drop view s_%[1]d.weft_inflight, s_%[1]d.search_outbox_events_live; delete from s_%[1]d.weft_schema_version where version_id >= 6", n))
	}
	w.exec(w.dst, "alter table search_outbox_events drop column discarded_by")
	w.mustMove(w.there())
	w.home(w.dst, w.src)
	if got := w.number(w.dst, "select count(*) from pg_attribute where attname = 'discarded_by' and attrelid in ('s_0.search_outbox_events'::regclass, 's_1.search_outbox_events'::regclass)"); got != count {
		t.Errorf("got %d shards with the column, want %d", got, count)
	}
}

func TestMoveRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		src, dst string // done before
		change   func(*testing.T, *world, *Options)
		why      string
	}{
		"SameDatabase":  {change: func(_ *testing.T, _ *world, o *Options) { o.To = o.From }, why: "shard 1 is in 127.0.0.1:"},
		"ReadOnly":      {dst: "alter database {db} set default_transaction_read_only = on", why: "takes no writes: give the address of a primary"},
		"OwnShards":     {change: func(t *testing.T, w *world, _ *Options) { w.own(t) }, why: "shard 1 is at home in 127.0.0.1:"},
		"AnotherNumber": {change: func(_ *testing.T, _ *world, o *Options) { o.From.Spec.Shards = o.From.Spec.Shards[:1] }, why: "app.search_outbox_events is dealt out to 2 shards already"},
		"TableThere":    {dst: "create schema app; create table app.search_index (id int)", why: "app.search_index is there already: it has no rows"},
		"ForeignKey":    {src: "create table app.mine (t varchar(50), e uuid, foreign key (t, e) references app.search_index (entity_type, entity_id))", why: "table app.mine has a foreign key to a table that is dealt out"},
		"Environment":   {change: func(_ *testing.T, _ *world, o *Options) { o.Env = "dev" }, why: "WORDLOOM_ENV is dev"},
		"NoShards":      {change: func(t *testing.T, w *world, o *Options) { w.exec(w.dst, "create schema app"); *o = w.back() }, why: "has no shards: make them with `weft shards create 2`"},
		"TableOfOneOnly": {change: func(t *testing.T, w *world, _ *Options) {
			w.structure(t)
			w.exec(w.src, "create table s_1.mine (id int)")
		}, why: "s_1.mine is not in 127.0.0.1:"},
		"OtherColumns": {change: func(t *testing.T, w *world, _ *Options) {
			w.structure(t)
			w.exec(w.src, "alter table s_1.weft_pause add column x int")
		}, why: "s_1.weft_pause has other columns in 127.0.0.1:"},
		"RowsThere": {change: func(t *testing.T, w *world, _ *Options) {
			w.structure(t)
			w.exec(w.dst, "alter table s_1.search_index disable trigger user; insert into s_1.search_index (entity_type, entity_id, text) values ('book', '"+w.entity(moved)+"', 'text')")
		}, why: "has rows, although its shard is not at home there"},
		"NotAtHome": {change: func(t *testing.T, w *world, o *Options) {
			w.structure(t)
			w.exec(w.dst, "update s_1.weft_shard_away set server = 'db3:5432/shop'")
			*o = w.back()
		}, why: "shard 1 is on db3:5432/shop since 20"},
		"NotTheOwner": {change: func(t *testing.T, w *world, o *Options) { o.From.URL = w.stranger(t) }, why: "does not own s_1."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.t = t
			o := w.there()
			if c.change != nil {
				c.change(t, w, &o)
			}
			w.exec(w.src, c.src+"; select")
			if c.dst != "" {
				w.exec(w.dst, strings.ReplaceAll(c.dst, "{db}", pgx.Identifier{w.dst.Config().ConnConfig.Database}.Sanitize()))
			}
			if _, err := Check(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("got %v, want %q", err, c.why)
			}
		})
	}
}
