package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/leader"
)

// A table that somebody has locked holds up the leader and does not unseat it: its
// successor would stand before the same lock. It says so once, and goes on when the
// lock is gone.
func TestLockedTableIsWaitedFor(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const events = 20
	for i := range events {
		r.upsert(newKey(), int64(i+1), "x")
	}
	unlock := testenv.Lock(t, r.url, "search_outbox_events")
	a := r.start("a", "WEFT_DB_TIMEOUT=500ms")
	b := r.start("b", "WEFT_DB_TIMEOUT=500ms")
	testenv.Eventually(t, func() bool {
		return len(a.logs.with("event", "reclaim.fault"))+len(b.logs.with("event", "reclaim.fault")) > 0
	}, "the leader to say that it waits")
	testenv.Eventually(t, func() bool {
		var long bool // at night, longer than a leader that gets no answer keeps its term
		err := r.pool.QueryRow(t.Context(), "select renewed_at - acquired_at > make_interval(secs => $2) from weft_leader where group_name = $1",
			r.group, testenv.Volume(5, 35)).Scan(&long)
		return err == nil && long
	}, "heartbeats beside the lock")
	unlock()
	r.await(map[string]int{"done": events})
	var terms int
	if err := r.pool.QueryRow(t.Context(), "select count(*) from weft_term where group_name = $1", r.group).Scan(&terms); err != nil || terms != 1 {
		t.Errorf("%d terms, %v, want the first to go on", terms, err)
	}
}

// tables is the way of an instance to its tables.
type tables struct {
	mu   sync.Mutex
	full bool // they take no session
	open map[net.Conn]bool
}

// enter lets a session in, or not. Whatever was let in is ended by a cut.
func (w *tables) enter(client net.Conn) (let bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.full {
		w.open[client] = true
	}
	return !w.full
}

func (w *tables) leave(client net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, client)
}

func (w *tables) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = true
	for client := range w.open {
		_ = client.Close()
	}
}

func (w *tables) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = false
}

// startApart starts an instance on a way to Postgres of its own. cut takes the tables off it and leaves it the
// lock session, also a new one. heal gives them back.
func (r *rig) startApart(name string) (in *instance, cut, heal func()) {
	r.t.Helper()
	direct, work := r.url, leader.AppName(r.group, name, "work")
	u, err := url.Parse(direct)
	if err != nil {
		r.t.Fatal(err)
	}
	server, way := u.Host, &tables{open: map[net.Conn]bool{}}
	u.Host = listenAt(r.t, func(client net.Conn) { relay(client, server, work, way) })
	r.url = u.String()
	in = r.start(name, "WEFT_PROJECTIONS=search_index_to_elastic")
	r.url = direct
	return in, way.cut, way.heal
}

// relay connects client with the server until one of them ends it. Sessions of the given name take the way to
// the tables.
func relay(client net.Conn, server, name string, way *tables) {
	b := pgproto3.NewBackend(client, client)
	hello, err := b.ReceiveStartupMessage()
	if err != nil {
		return
	}
	if m, ok := hello.(*pgproto3.StartupMessage); ok && m.Parameters["application_name"] == name {
		if !way.enter(client) {
			sayFull(b)
			return
		}
		defer way.leave(client)
	}
	first, err := hello.Encode(nil)
	if err != nil {
		return
	}
	conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", server)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	if _, err = conn.Write(first); err == nil {
		var up sync.WaitGroup
		up.Go(func() { _, _ = io.Copy(conn, client); _ = conn.Close() })
		_, _ = io.Copy(client, conn)
		_ = client.Close()
		up.Wait()
	}
}

// A standby that has lost its way to the tables is not ready and says why, stays in the election, and is ready
// when it has found the way again.
func TestStandbyWithoutAWayToTheTablesIsNotReady(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a", "WEFT_PROJECTIONS=search_index_to_elastic")
	a.awaitReady(200, `"role": "leader"`)
	b, cut, heal := r.startApart("b")
	b.awaitReady(200, `"role": "standby"`)
	cut()
	b.awaitReady(503, `"role": "standby"`, "the pool gets no connection to the tables", "has no connection left")
	heal()
	b.awaitReady(200, `"role": "standby"`)
	if gone := b.logs.with("event", "leader.disconnected"); len(gone) > 0 {
		t.Errorf("the standby has left the election: %v", gone)
	}
}

// A standby that has lost its way to the tables wins the lock all the same. It stays not ready, says why, and
// ends its term, so that an instance that gets through can lead.
func TestTakeoverWithoutAWayToTheTables(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.start("a", "WEFT_PROJECTIONS=search_index_to_elastic")
	a.awaitReady(200, `"role": "leader"`)
	b, cut, _ := r.startApart("b")
	b.awaitReady(200, `"role": "standby"`)
	cut()
	b.awaitReady(503, `"role": "standby"`)
	usable := b.usable()
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	b.awaitReady(503, `"role": "leader"`, "has no connection left")
	c := r.start("c", "WEFT_PROJECTIONS=search_index_to_elastic")
	r.upsert(newKey(), 1, "x")
	r.await(map[string]int{"done": 1})
	c.awaitReady(200, `"role": "leader"`)
	b.awaitReady(503, `"role": "standby"`)
	if n := b.usable() - usable; n != 0 {
		t.Errorf("postgres became usable %d times for b without a way to the tables", n)
	}
}

// usable returns how often Postgres has become usable for an instance.
func (in *instance) usable() int {
	in.t.Helper()
	return len(slices.DeleteFunc(in.logs.with("event", "dependency.up"), func(line map[string]any) bool { return line["dependency"] != "postgres" }))
}

// A leader that has lost its way to the tables but not its lock session still hands
// over when it is asked to, and its standby goes on. It stays not ready.
func TestLeaderCutOffFromTheTablesHandsOver(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a, cut, _ := r.startApart("a")
	a.awaitReady(200, `"role": "leader"`)
	b := r.start("b", "WEFT_PROJECTIONS=search_index_to_elastic")
	b.awaitReady(200, `"role": "standby"`)
	r.upsert(newKey(), 1, "x")
	r.await(map[string]int{"done": 1})

	cut()
	testenv.Eventually(t, func() bool { return len(a.logs.with("event", "outbox.fault")) > 0 }, "a to say that the outbox does not answer")
	testenv.Eventually(t, func() bool { return len(a.logs.with("event", "presence.fault")) > 0 }, "a to say that its presence is not recorded")
	a.awaitReady(503) // what was answered before the cut may have been heard after the first fault
	usable := a.usable()
	r.upsert(newKey(), 2, "y")
	if _, err := leader.Resign(t.Context(), r.pool, r.group, leader.Resignation{Epoch: 1, By: "operator", Why: "nothing moves"}); err != nil && !errors.Is(err, leader.ErrNoTerm) {
		t.Fatal(err)
	}
	r.await(map[string]int{"done": 2})
	b.awaitReady(200, `"role": "leader"`)
	a.awaitReady(503, `"role": "standby"`)
	if n := a.usable() - usable; n != 0 {
		t.Errorf("postgres became usable %d times for a without a way to the tables", n)
	}
}

// An end of leadership is news and not an error, however it comes about, and the work
// that it cuts off makes no noise.
func TestEndOfLeadershipIsNoError(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a, b := r.start("a"), r.start("b")
	p := r.produce(200, newKeys(8))
	epoch := r.doneAfter(0)
	for _, sessions := range []string{"lock", "%"} {
		r.exec(`select pg_terminate_backend(s.pid) from pg_stat_activity s, weft_leader l
			where l.group_name = $1 and s.application_name like 'weft/' || $1 || '/' || l.instance || '/' || $2`, r.group, sessions)
		epoch = r.doneAfter(epoch)
	}
	n := p.stop()
	for _, in := range []*instance{a, b} {
		if err := in.stop(); err != nil {
			t.Errorf("stop of %s: %v", in.name, err)
		}
		for _, line := range in.logs.with("level", "error") {
			t.Errorf("%s has logged an error: %v", in.name, line)
		}
	}
	if lost := len(a.logs.with("event", "leader.lost")) + len(b.logs.with("event", "leader.lost")); lost < 2 {
		t.Errorf("%d lines that a term was lost, want one for each", lost)
	}
	if got := r.counts(); got["failed"] != 0 || got["processing"] != 0 || got["done"]+got["pending"] != n {
		t.Errorf("counts %v of %d events, want them done or ready", got, n)
	}
}

// doneAfter waits for an event that is done under an epoch after the given one, and
// returns that epoch.
func (r *rig) doneAfter(epoch int64) (newest int64) {
	r.t.Helper()
	testenv.Eventually(r.t, func() bool {
		err := r.pool.QueryRow(context.Background(), `select coalesce(max(l.epoch), 0) from weft_leader l
			where l.group_name = $1 and exists (select from search_outbox_events where processed_at > l.acquired_at)`, r.group).Scan(&newest)
		return err == nil && newest > epoch
	}, fmt.Sprintf("an event done after epoch %d", epoch))
	return newest
}
