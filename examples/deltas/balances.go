package deltas

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samuelhu324-dev/weft/outbox"
	"github.com/samuelhu324-dev/weft/projections"
)

// Name is the name to register the projection under.
const Name = "movements_to_balances"

const table = "movement_outbox_events"

// Move is the application's part: it writes a movement and its event in tx. The update locks
// the account, so that versions are committed in their order.
func Move(ctx context.Context, tx pgx.Tx, account uuid.UUID, amount string) error {
	var version int64
	err := tx.QueryRow(ctx, "update bank.account set version = version + 1 where id = $1 returning version", account).Scan(&version)
	if err != nil {
		return fmt.Errorf("account %s: %w", account, err)
	}
	if _, err := tx.Exec(ctx, "insert into bank.movement values ($1, $2, $3::text::numeric)", account, version, amount); err != nil {
		return fmt.Errorf("movement %d of account %s: %w", version, account, err)
	}
	return outbox.Enqueue(ctx, tx, table, outbox.NewEvent{
		Key: outbox.Key{Type: "account", ID: outbox.UUID(account)}, Op: outbox.Upsert, Version: version,
	})
}

// Balances is the projection.
type Balances struct{ pool projections.Querier }

// New makes the projection.
func New(d projections.Deps) (projections.Projection, error) { return &Balances{d.Pool}, nil }

// Name implements Projection.
func (b *Balances) Name() string { return Name }

// Table implements Projection.
func (b *Balances) Table() string { return table }

// Destination implements Projection.
func (b *Balances) Destination() string { return "postgres/bank.balance" }

// Strict implements projections.Strict: no movement may be left out or come late.
func (b *Balances) Strict() bool { return true }

// Close implements Projection.
func (b *Balances) Close() {}

// Ready implements Projection.
func (b *Balances) Ready(ctx context.Context) error {
	rows, err := b.pool.Query(ctx, "select from bank.movement, bank.balance limit 0")
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	return err
}

// applyQuery adds movements to their balances, under the fence: a leader that has lost its
// term changes nothing. There is one event of an account at most. It answers for each event
// whether the fence held, the movement is there, and it has counted now.
const applyQuery = `
with fence as materialized (
  select from weft_fence where group_name = $1 and epoch = $2 and instance = $3 for key share
), event as materialized (
  select * from unnest($4::uuid[], $5::bigint[]) with ordinality as e(account, version, n)
), written as (
  insert into bank.balance as b (account, amount, version)
  select m.account, m.amount, m.version from event join bank.movement m using (account, version) where exists (select from fence)
  on conflict (account) do update set amount = b.amount + excluded.amount, version = excluded.version
  where b.version < excluded.version
  returning account
)
select exists (select from fence), m.account is not null, w.account is not null
from event e
left join bank.movement m on m.account = e.account and m.version = e.version
left join written w on w.account = e.account
order by e.n`

// Project implements Projection.
func (b *Balances) Project(ctx context.Context, events []outbox.Event) ([]outbox.Outcome, error) {
	term, ok := outbox.AuthorityFrom(ctx)
	if !ok {
		return nil, errors.New("balances: no authority in context")
	}
	versions := make([]int64, len(events))
	for i := range events {
		versions[i] = events[i].Version
	}
	accounts := outbox.IDs(events, func(e *outbox.Event) *outbox.ID { return &e.Key.ID })
	out := make([]outbox.Outcome, 0, len(events))
	rows, err := b.pool.Query(ctx, applyQuery, term.Group, term.Epoch, term.Instance, accounts, versions)
	if err == nil {
		var fenced, found, counted bool
		_, err = pgx.ForEachRow(rows, []any{&fenced, &found, &counted}, func() error {
			switch {
			case !fenced:
				return outbox.ErrFenced
			case !found:
				out = append(out, outbox.NoOp(outbox.NoopSourceMissing))
			case !counted: // a repeat
				out = append(out, outbox.NoOp(outbox.NoopAlreadyApplied))
			default:
				out = append(out, outbox.OK())
			}
			return nil
		})
	}
	refused, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return out, nil
	case ok && strings.HasPrefix(refused.Code, "23") && len(events) == 1:
		return []outbox.Outcome{outbox.Reject(outbox.ReasonDeterministic, "constraint "+refused.ConstraintName)}, nil
	default: // of several events, weft halves the batch until the one at fault is alone
		return nil, projections.DatabaseFault(ctx, "balances", err)
	}
}
