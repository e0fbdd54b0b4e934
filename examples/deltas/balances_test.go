package deltas_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap/zaptest"

	"github.com/samuelhu324-dev/weft"
	"github.com/samuelhu324-dev/weft/examples/deltas"
	"github.com/samuelhu324-dev/weft/internal/testenv"
	"github.com/samuelhu324-dev/weft/migrations"
	"github.com/samuelhu324-dev/weft/outbox"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// bank is the application, and the instances that it runs.
type bank struct {
	t    *testing.T
	dsn  string
	pool *pgxpool.Pool
}

func open(t *testing.T) *bank {
	t.Helper()
	b := &bank{t: t, dsn: testenv.Database(t)}
	b.pool = testenv.Pool(t, b.dsn)
	schema, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	b.exec(string(schema))
	if _, err := migrations.Up(t.Context(), b.dsn); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bank) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bank) account() uuid.UUID {
	b.t.Helper()
	id := uuid.New()
	b.exec("insert into bank.account (id) values ($1)", id)
	return id
}

func (b *bank) move(account uuid.UUID, amounts ...string) {
	b.t.Helper()
	for _, amount := range amounts {
		err := pgx.BeginFunc(b.t.Context(), b.pool, func(tx pgx.Tx) error { return deltas.Move(b.t.Context(), tx, account, amount) })
		if err != nil {
			b.t.Fatal(err)
		}
	}
}

// start runs an instance until the test ends, or until stop is called.
func (b *bank) start() (stop func()) {
	b.t.Helper()
	settings := weft.DefaultSettings()
	settings.Database.URL = weft.URL(b.dsn)
	w := weft.New(weft.Options{Settings: settings, Logger: zaptest.NewLogger(b.t)})
	if err := w.Register(deltas.Name, deltas.New); err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
	b.t.Cleanup(stop)
	return stop
}

func (b *bank) text(sql string, args ...any) (s string) {
	b.t.Helper()
	if err := b.pool.QueryRow(b.t.Context(), sql, args...).Scan(&s); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return s
}

func (b *bank) await(what, want, sql string, args ...any) {
	b.t.Helper()
	testenv.Eventually(b.t, func() bool { return b.text(sql, args...) == want }, what)
}

const balance = "select coalesce(max(amount)::text || ' at ' || max(version), 'none') from bank.balance where account = $1"

// differing counts the accounts whose balance is not the sum of their movements.
const differing = `
select count(*)::text
from (select account, sum(amount) as amount, max(version) as version from bank.movement group by account) m
left join bank.balance b using (account)
where b.amount is distinct from m.amount or b.version is distinct from m.version`

func TestBalancesAreSumsAcrossTakeoversAndRepeats(t *testing.T) {
	t.Parallel()
	b := open(t)
	accounts := []uuid.UUID{b.account(), b.account(), b.account()}
	stopFirst := b.start()
	b.start()
	for i := range 60 {
		b.move(accounts[rand.IntN(len(accounts))], fmt.Sprintf("%d.%02d", rand.IntN(1000), rand.IntN(100)))
		if i == 30 {
			stopFirst()
		}
	}
	b.await("every balance to be the sum", "0", differing)
	b.await("every event to be done", "60", "select count(*)::text from movement_outbox_events where status = 'done'")

	// As if no settle had been committed: every movement comes once more.
	b.exec("update movement_outbox_events set status = 'pending', next_retry_at = now(), processed_at = null")
	b.await("every repeat to be done", "60", "select count(*)::text from movement_outbox_events where status = 'done'")
	if n := b.text(differing); n != "0" {
		t.Errorf("%s balances differ after the repeats, want none", n)
	}
}

func TestRefusedMovementHoldsUpItsAccountUntilItIsReplayed(t *testing.T) {
	t.Parallel()
	b := open(t)
	held, other := b.account(), b.account()
	b.start()
	b.move(held, "10", "-25", "5")
	b.move(other, "1", "2")
	b.await("the other account's balance", "3.00 at 2", balance, other)
	b.await("the refused movement", "constraint not_overdrawn", "select coalesce(max(error), '') from movement_outbox_events where status = 'failed'")
	b.move(held, "40")
	b.move(other, "3")
	b.await("the other account to go on", "6.00 at 3", balance, other)
	if got := b.text(balance, held); got != "10.00 at 1" {
		t.Fatalf("balance %s behind a refused movement, want 10.00 at 1", got)
	}
	b.exec("alter table bank.balance drop constraint not_overdrawn")
	b.replay()
	b.await("the account's later movements", "30.00 at 4", balance, held)
}

func TestDiscardedMovementLeavesTheOthers(t *testing.T) {
	t.Parallel()
	b := open(t)
	account := b.account()
	b.start()
	b.move(account, "10", "-25", "5")
	b.await("the refused movement", "1", "select count(*)::text from movement_outbox_events where status = 'failed'")
	b.exec("update movement_outbox_events set status = 'done', processed_at = now() where status = 'failed'")
	b.await("the account's later movements", "15.00 at 3", balance, account)
}

// replay is weft replay --all.
func (b *bank) replay() {
	b.t.Helper()
	ctx := b.t.Context()
	letters, err := outbox.OpenDeadLetters(ctx, b.pool, "movement_outbox_events", deltas.Name, time.Minute)
	if err != nil {
		b.t.Fatal(err)
	}
	r, err := letters.BeginReplay(ctx, outbox.LetterOrder{By: "a clerk", Why: "overdrafts are allowed now"}, 1)
	if err != nil {
		b.t.Fatal(err)
	}
	ids, err := r.Next(ctx, 10)
	if err == nil {
		_, err = r.Send(ctx, ids)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
