package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft/consumer"
	"github.com/samuelhu324-dev/weft/consumer/observe"
	"github.com/samuelhu324-dev/weft/internal/postgres"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/leader"
	"github.com/samuelhu324-dev/weft/outbox"
)

// heldTerm is a term whose lock session lives for ever.
type heldTerm struct{}

func (heldTerm) Epoch() int64              { return 1 }
func (heldTerm) Check() error              { return nil }
func (heldTerm) Stopping() <-chan struct{} { return nil }

// nowhere is a projection that takes everything.
type nowhere struct{ projected chan int }

func (nowhere) Name() string                { return "nowhere" }
func (nowhere) Ready(context.Context) error { return nil }

func (n nowhere) Project(_ context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
	out := make([]outbox.Outcome, len(events))
	for i := range out {
		out[i] = outbox.OK()
	}
	n.projected <- len(events)
	return out, nil
}

// A leader that gets no connection to the tables ends its term, although its lock session
// lives: another instance may get one. A way that is silent, so that dialling outlasts the
// deadline of every call, counts as much as a server that refuses connections.
func TestCutOffFromTheTablesEndsTheTerm(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(net.Conn){
		"Silent": nil, // the kernel accepts, and nobody says anything
		"Refused": func(conn net.Conn) {
			b := pgproto3.NewBackend(conn, conn)
			if _, err := b.ReceiveStartupMessage(); err == nil {
				sayFull(b)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testCutOff(t, listenAt(t, serve))
		})
	}
}

// sayFull answers as a server without a free connection.
func sayFull(b *pgproto3.Backend) {
	b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "53300", Message: "too many connections for role"})
	_ = b.Flush()
}

// listenAt returns an address at which connections are served so.
func listenAt(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	if serve != nil {
		wg.Go(func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				wg.Go(func() { serve(conn); _ = conn.Close() })
			}
		})
	}
	return ln.Addr().String()
}

func testCutOff(t *testing.T, elsewhere string) {
	t.Helper()
	r := setup(t)
	var away atomic.Bool
	const app = "weft-cut-off"
	pool, err := postgres.NewPool(t.Context(), r.url, postgres.Options{
		AppName: app, Params: outbox.SessionParams(), Around: func(dial pgconn.DialFunc) pgconn.DialFunc {
			return func(ctx context.Context, network, addr string) (net.Conn, error) {
				if away.Load() {
					addr = elsewhere
				}
				return dial(ctx, network, addr)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	const callTimeout, cutOff = 2 * time.Second, time.Second
	var store *outbox.Store
	testenv.Eventually(t, func() bool { // the deadline is meant for what comes later
		store, err = outbox.OpenStore(t.Context(), pool, outbox.StoreConfig{
			Table: outboxTable, Projection: "nowhere", Group: r.group, Owner: "a", Lease: 30 * time.Second, Timeout: callTimeout,
		})
		return !outbox.Slow(err)
	}, "a store that opens within its deadline")
	if err != nil {
		t.Fatal(err)
	}
	r.exec("insert into weft_leader (group_name, epoch, instance, acquired_at, renewed_at) values ($1, 1, 'a', now(), now())", r.group)
	metrics, err := observe.NewMetrics(prometheus.NewRegistry(), []string{"nowhere"})
	if err != nil {
		t.Fatal(err)
	}
	proj := nowhere{projected: make(chan int, 10)}
	pipe, err := consumer.New(store, proj, consumer.Config{
		Group: r.group, Instance: "a", BatchSize: 100, Concurrency: 2, Poll: 100 * time.Millisecond,
		Retry:            consumer.RetryPolicy{MaxAttempts: 10, BaseBackoff: 50 * time.Millisecond, MaxBackoff: time.Second},
		BreakerThreshold: 20, Grace: time.Second, CutOff: cutOff,
	}, zaptest.NewLogger(t), metrics)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		end := pipe.Run(context.Background(), heldTerm{})
		for !away.Load() { // a server that stands still for seconds ends a term, too
			end = pipe.Run(context.Background(), heldTerm{})
		}
		ended <- end
	}()
	r.upsert(newKey(), 1, "x")
	<-proj.projected
	r.await(map[string]int{"done": 1})

	away.Store(true)
	var end error
	testenv.Eventually(t, func() bool {
		// Again and again: a dial that was under way may make one more session.
		r.exec("select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1 and datname = current_database()", app)
		select {
		case end = <-ended:
			return true
		default:
			return false
		}
	}, "the end of a term without an answer")
	if end == nil || errors.Is(end, outbox.ErrFenced) || !outbox.Unreachable(end) {
		t.Errorf("the term ended with %v, want that the outbox does not answer", end)
	}
}

// A lock session for which the server has no connection left gets the place of an idle one of the pool: without it the
// instance would stay out of the election for as long as the pool needs its connections.
func TestLockSessionGetsThePlaceOfAnIdleConnection(t *testing.T) {
	t.Parallel()
	r := setup(t)
	holder := r.lock() // so that the instance stands by, and its pool has little to do
	defer holder()
	a := r.start("a")
	a.awaitReady(200, `"role": "standby"`)
	var n int
	r.scan("select count(*) from pg_stat_activity where application_name = $1", []any{leader.AppName(r.group, "a", "work")}, &n)
	r.exec(fmt.Sprintf("alter role %s connection limit %d", pgx.Identifier{r.runner.Username()}.Sanitize(), n))
	r.exec("select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1", leader.AppName(r.group, "a", "lock"))
	testenv.Eventually(t, func() bool { return len(a.logs.with("event", "leader.standby")) >= 2 }, "another lock session")
	if len(a.logs.with("event", "leader.disconnected")) == 0 {
		t.Error("no lock session was refused")
	}
	a.awaitReady(200, `"role": "standby"`)
}

// lock takes the lock of the group until the returned func is called.
func (r *rig) lock() (unlock func()) {
	r.t.Helper()
	tx, err := r.pool.Begin(context.Background())
	if err == nil {
		_, err = tx.Exec(context.Background(), "select pg_advisory_xact_lock($1)", leader.Key(r.group))
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return func() { _ = tx.Rollback(context.Background()) }
}
