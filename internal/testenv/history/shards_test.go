package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/internal/testenv/reconcile"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

// dealtRun is a sound run over two shards, each with an entity whose only document is there, and
// each led by an instance of its own.
func dealtRun() (Run, []*script, map[outbox.Key]int) {
	shards := []*script{{}, {}}
	for n, leader := range []string{"a", "b"} {
		shards[n].term(1, leader)
	}
	shards[0].commit(enqueued(1))
	shards[0].batch("a", 1, done(1))
	shards[1].commit(ofAnother(enqueued(2)))
	shards[1].batch("b", 1, ofAnother(done(2)))
	sent := func(ms int, by string, key outbox.Key, version int64) Applied {
		at := start.Add(time.Duration(ms)*time.Millisecond + 500*time.Microsecond)
		return Applied{
			Request: 1, Instance: by, Sent: at, Answered: at, Op: Index, ID: key.String(), Version: version,
			Status: 201, Result: "created", ResultVersion: version, PrimaryTerm: 1, SeqNo: version, Forwarded: true, Known: true,
		}
	}
	r := Run{
		Acknowledged: []Enqueued{{id(1), entity, 1}, {id(2), another, 2}},
		Applied:      []Applied{sent(3, "a", entity, 1), sent(3, "b", another, 2)},
		End:          &End{Compared: &reconcile.Report{}, Documents: map[string]int64{entity.String(): 1, another.String(): 2}},
	}
	return r, shards, map[outbox.Key]int{entity: 0, another: 1}
}

// What is wrong in one shard is found there, also what only the other shards know to be wrong.
func TestCheckOfShards(t *testing.T) {
	t.Parallel()
	stranger := outbox.Key{Type: "book", ID: id(77)}
	for name, tc := range map[string]struct {
		spoil func(*Run, []*script)
		shard int
		want  []string // each of "invariant: what"
	}{
		"Sound": {func(*Run, []*script) {}, 0, nil},
		"Overtaken": {func(_ *Run, s []*script) {
			s[1].commit(ofAnother(enqueued(3)), ofAnother(enqueued(4)))
			late := s[1].lease("b", 1, 3)
			s[1].batch("b", 1, ofAnother(done(4)))
			s[1].end(late, "b", ofAnother(done(3)))
		}, 1, []string{"order per entity: done while earlier events were unsettled: 1, the oldest version 3"}},
		"Lost": {func(r *Run, _ []*script) {
			r.Acknowledged = append(r.Acknowledged, Enqueued{id(9), another, 9})
		}, 1, []string{"no event lost: committed by the producer and never recorded"}},
		"TwoLeadersOfOneShard": {func(_ *Run, s []*script) {
			s[1].term(2, "c")
			s[1].commit(ofAnother(enqueued(3)))
			s[1].batch("b", 1, ofAnother(done(3)))
		}, 1, []string{
			"one claimer: lease by \"b\" under epoch 1 after epoch 2 was committed",
			"one claimer: settle of what \"b\" leased under epoch 1 after epoch 2 was committed",
		}},
		"EventInAnotherShard": {func(_ *Run, s []*script) {
			s[1].commit(enqueued(3))
			s[1].batch("b", 1, done(3))
		}, 1, []string{"one shard per entity: its event is in shard 1, and belongs to shard 0"}},
		"RowInAnotherShard": {func(_ *Run, s []*script) {
			s[0].log.Source = append(s[0].log.Source, SourceChange{At: start, Key: another, Version: 1})
		}, 0, []string{"one shard per entity: its row is in shard 0, and belongs to shard 1"}},
		"EntityWithoutShard": {func(_ *Run, s []*script) {
			lone := enqueued(5)
			lone.Key = stranger
			gone := became(5, Failed)
			gone.Key = stranger
			s[1].commit(lone)
			s[1].batch("b", 1, gone)
		}, 1, []string{"one shard per entity: its event is in shard 1, and belongs to none"}},
		// The leader of shard 0 sends what the leader of shard 1 has leased.
		"SentByTheLeaderOfAnotherShard": {func(r *Run, _ []*script) {
			again := r.Applied[1]
			again.Instance, again.Result, again.SeqNo = "a", "updated", 3
			r.Applied = append(r.Applied, again)
		}, 1, []string{"a lease before every send: sent without a lease on an event of its entity: index version 2 by a"}},
		"DocumentOfNobody": {func(r *Run, _ []*script) {
			r.End.Documents[stranger.String()] = 1
			r.End.Differences = append(r.End.Differences, reconcile.Difference{Kind: reconcile.Extra, ID: stranger.String()})
		}, 0, []string{"convergence: extra " + stranger.String()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, shards, home := dealtRun()
			tc.spoil(&r, shards)
			var logs []*Log
			for _, s := range shards {
				logs = append(logs, s.read())
			}
			for n, part := range Deal(r, logs, home) {
				v := Check(part)
				var want []string
				if n == tc.shard {
					want = tc.want
				}
				for _, w := range want {
					invariant, what, _ := strings.Cut(w, ": ")
					if !slices.ContainsFunc(v.Breaches(), func(b Breach) bool {
						return b.Invariant == invariant && slices.ContainsFunc(b.Findings, func(f Finding) bool { return strings.Contains(f.String(), what) })
					}) {
						t.Errorf("shard %d: got %v, want %q", n, v.Breaches(), w)
					}
				}
				if (len(want) == 0) != (len(v.Breaches()) == 0) {
					t.Errorf("shard %d: got %v, want %q", n, v.Breaches(), want)
				}
			}
		})
	}
}

// What an application writes by the one name is recorded in the shard that has the row, once; what
// is done in the shard itself is, too.
func TestRecordOfShards(t *testing.T) {
	t.Parallel()
	const shards, entities = 2, 20
	url := testenv.Database(t)
	f := &fixture{t: t, pool: testenv.Pool(t, url)}
	f.exec("create schema app")
	inSchema := func(schema string) string {
		in, err := postgres.InSchema(url, schema)
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	spec := migrations.ShardsSpec{By: "alice", Why: "a test"}
	for n := range shards {
		schema := fmt.Sprintf("shard_%d", n)
		spec.Shards = append(spec.Shards, migrations.Shard{Schema: schema, URL: inSchema(schema)})
	}
	if _, err := migrations.CreateShards(t.Context(), inSchema("app"), spec); err != nil {
		t.Fatal(err)
	}
	f.pool = testenv.Pool(t, inSchema("app"))
	var own []*fixture
	for _, s := range spec.Shards {
		one := &fixture{t: t, pool: testenv.Pool(t, s.URL)}
		for range 2 { // a second call changes nothing
			if err := errors.Join(Install(t.Context(), one.pool, table), InstallSource(t.Context(), one.pool)); err != nil {
				t.Fatal(err)
			}
		}
		own = append(own, one)
	}
	f.exec(`insert into search_index (entity_type, entity_id, text, event_version) select 'book', md5(x::text)::uuid, '', 1 from generate_series(1, $1::int) x`, entities)
	f.exec(`update search_index set event_version = 2`)
	f.exec(`delete from search_index`)
	f.exec(`insert into search_outbox_events (entity_type, entity_id, op, event_version) select 'book', md5(x::text)::uuid, 'delete', 2 from generate_series(1, $1::int) x`, entities)
	home, all := map[outbox.Key]int{}, 0
	var logs []*Log
	for n, one := range own {
		one.exec(`update search_outbox_events set status = 'done', processed_at = now()`)
		log, err := Read(t.Context(), one.pool, table, group)
		if err != nil {
			t.Fatal(err)
		}
		perEntity := map[outbox.Key]string{}
		for _, c := range log.Changes {
			perEntity[c.Key] += string(c.From) + ">" + string(c.To) + " "
		}
		for _, c := range log.Source {
			perEntity[c.Key] += c.String() + " "
		}
		for k, got := range perEntity {
			if want := ">pending pending>done written as version 1 written as version 2 deleted after version 2 "; got != want {
				t.Errorf("shard %d, %s: got %q, want %q", n, k, got, want)
			}
			home[k]++
			all++
		}
		logs = append(logs, log)
	}
	if all != entities || len(home) != entities || len(logs[0].Changes) == 0 || len(logs[1].Changes) == 0 {
		t.Errorf("got %d entities, %d of them different, want %d in two shards", all, len(home), entities)
	}
}
