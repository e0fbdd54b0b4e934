package traffic

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/outbox"
)

const (
	// perTransaction is how many events a transaction of a stream has on average.
	perTransaction = 2.0
	pauseOnError   = 50 * time.Millisecond
	skipAfter      = time.Second
)

// Stream is everyday traffic: updates, deletes and re-creations by several writers that meet
// at the same entities. Servers that are away do not end it.
type Stream struct {
	App     *Application
	Writers int
	Rate    float64 // events per second
	Seed    uint64

	Entities []outbox.Key
	Hot      int                       // every other change is of the first so many, so that events of an entity meet
	Row      func(*rand.Rand, int) Row // what is written about an entity; nil: a text of 20 to some 2,000 bytes
	Late     func(outbox.Key) bool     // entities that are changed out of the order of versions, too; nil: none
	pause    sync.RWMutex              // held for reading by a transaction, for writing by a pause
}

// Run writes until ctx ends, which is no error.
func (s *Stream) Run(ctx context.Context) error {
	loop := Loop{Rate: s.Rate / perTransaction, Concurrency: s.Writers, Skip: skipAfter}
	return rig.Wrap("stream of changes", loop.everyday(ctx, s.Seed, s.operation))
}

// everyday runs operations, each with random numbers of its own, and rests after trouble that an
// application lives with.
func (l Loop) everyday(ctx context.Context, seed uint64, operation func(context.Context, *rand.Rand) error) error {
	return l.Run(ctx, func(ctx context.Context, n int, _ time.Time) error {
		err := operation(ctx, rand.New(rand.NewPCG(seed, uint64(n)+1)))
		if err == nil || !Temporary(err) {
			return err
		}
		_ = rig.Sleep(ctx, pauseOnError)
		return nil
	})
}

// Pause returns when no transaction of the stream is under way; none begins before Resume.
func (s *Stream) Pause() { s.pause.Lock() }

// Resume ends a pause.
func (s *Stream) Resume() { s.pause.Unlock() }

// operation changes one to three entities, some of them twice, or one of them late.
func (s *Stream) operation(ctx context.Context, random *rand.Rand) error {
	s.pause.RLock()
	defer s.pause.RUnlock()
	n := s.pick(random)
	if key := s.Entities[n]; s.Late != nil && s.Late(key) && random.IntN(3) > 0 {
		_, err := s.App.WriteLate(ctx, key, s.row(random, n), time.Duration(random.IntN(250))*time.Millisecond)
		return err
	}
	picked := map[int]bool{n: true}
	for range random.IntN(3) {
		picked[s.pick(random)] = true
	}
	var changes []Change
	for n := range picked {
		for range 1 + random.IntN(5)/4 {
			c := Change{Key: s.Entities[n], Op: outbox.Upsert, Row: s.row(random, n)}
			if random.IntN(7) == 0 {
				c = Change{Key: c.Key, Op: outbox.Delete, If: IfPresent}
			}
			changes = append(changes, c)
		}
	}
	_, err := s.App.Write(ctx, changes...)
	return err
}

func (s *Stream) pick(random *rand.Rand) int {
	if s.Hot > 0 && random.IntN(2) == 0 {
		return random.IntN(min(s.Hot, len(s.Entities)))
	}
	return random.IntN(len(s.Entities))
}

func (s *Stream) row(random *rand.Rand, n int) Row {
	if s.Row != nil {
		return s.Row(random, n)
	}
	var b strings.Builder
	for range 2 + random.IntN(1+random.IntN(200)) {
		fmt.Fprintf(&b, "%08x ", random.Uint32())
	}
	return Row{Text: b.String(), Rank: random.Float64()}
}

// EntityType is that of the entities of this package.
const EntityType = "block"

// NewKey names an entity that nobody has.
func NewKey() outbox.Key { return outbox.Key{Type: EntityType, ID: outbox.UUID(uuid.New())} }

// Entity returns the n-th of the entities that every stream of a program can know.
func Entity(n int) outbox.Key {
	var id uuid.UUID
	copy(id[:], "weftlab:")
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return outbox.Key{Type: EntityType, ID: outbox.UUID(id)}
}

// Entities returns the first n entities.
func Entities(n int) []outbox.Key {
	keys := make([]outbox.Key, n)
	for i := range keys {
		keys[i] = Entity(i)
	}
	return keys
}

// EveryThird selects one of three [Entities].
func EveryThird(k outbox.Key) bool {
	id, _ := k.ID.UUID()
	return id[15]%3 == 0
}

// Loop is an open loop of operations.
type Loop struct {
	Ops         int     // 0: until the context ends
	Rate        float64 // operations per second; 0 is as fast as possible
	Concurrency int     // operations under way at most
	// Skip leaves out operations that are late by more than this; 0: they are made up for as
	// fast as the connections allow.
	Skip time.Duration
}

// Run calls do for each operation when it is due. The end of ctx ends the loop, which is no
// error; the first error of do ends it, too.
func (l Loop) Run(ctx context.Context, do func(ctx context.Context, n int, due time.Time) error) error {
	workers, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	began := time.Now()
	for range l.Concurrency {
		workers.Go(func() error {
			for {
				n := int(next.Add(1)) - 1
				if l.Ops > 0 && n >= l.Ops {
					return nil
				}
				due := time.Now()
				if l.Rate > 0 {
					due = began.Add(time.Duration(float64(n) / l.Rate * float64(time.Second)))
					if wait := time.Until(due); wait > 0 {
						_ = rig.Sleep(ctx, wait)
					}
				}
				if ctx.Err() != nil {
					return nil
				}
				if l.Skip > 0 && time.Since(due) > l.Skip {
					continue
				}
				if err := do(ctx, n, due); err != nil {
					return err
				}
			}
		})
	}
	return workers.Wait()
}

// The shop of examples/shop, with the outbox that weft makes for it.
const (
	ShopOutbox  = "product_outbox_events"
	ShopProduct = "product" // type of its entities
)

// Shop is everyday traffic in the shop of examples/shop: products and their variants are
// inserted, changed, moved, also between tenants, and deleted by several writers that meet at the same products, and
// triggers write the events. Servers that are away do not end it.
type Shop struct {
	Pool    *pgxpool.Pool
	Writers int
	Rate    float64 // events per second
	Seed    uint64

	Products, Hot int // ids from 1; every other change is of the first so many
	Ledger
}

// MakeShop fills the empty tables of the shop with what its products need.
const MakeShop = `insert into shop.tenant (name) select 'tenant ' || i from generate_series(1, 5) i`

// Each statement changes the products of $1, as $2, a random number, says. Rows are locked in
// the order of ids, as far as a statement can.
const (
	putProducts = `
insert into shop.product (id, tenant_id, name, description, price, tags, details)
select i, 1 + ($2 + i) % 5, left(md5($2::text), 3) || ' lamp ' || $2, case when $2 % 3 > 0 then 'a "lamp" <&> ' || $2 end, $2 % 100000 / 100.0,
       (array['new','oak','"50 %"'])[1:$2 % 4], case when $2 % 2 = 0 then jsonb_build_object('width', $2, 'of', jsonb_build_array(null, 0.10, true)) else '{}' end
from unnest($1::bigint[]) i
on conflict (id) do update set name = excluded.name, description = excluded.description, price = excluded.price, tags = excluded.tags,
  details = excluded.details, deleted_at = null`
	moveProducts   = `update shop.product set tenant_id = 1 + (tenant_id + $2) % 5 where id = any ($1)`
	priceProducts  = `update shop.product set price = price + 0.01 * (1 + $2 % 7) where id = any ($1)`
	hideProducts   = `update shop.product set deleted_at = clock_timestamp() where id = any ($1) and deleted_at is null and $2 >= 0`
	deleteProducts = `delete from shop.product where id = any ($1) and $2 >= 0`
	addVariants    = `
insert into shop.variant (product_id, sku, color, price, stock)
select p.id, p.id || '-' || $2, (array['red','green'])[$2 % 3], case when $2 % 2 = 0 then $2 % 1000 / 10.0 end, $2 % 100
from (select id from shop.product where id = any ($1) order by id for key share) p, generate_series(1, 1 + $2 % 3)`
	changeVariants = `update shop.variant set stock = stock + 1 + $2 % 5 where product_id = any ($1)`
	moveVariants   = `
update shop.variant set product_id = t.id
from (select id from shop.product where id = ($1::bigint[])[1 + $2 % cardinality($1)] for key share) t
where product_id = any ($1) and product_id <> t.id and variant.id % 3 = $2 % 3`
	deleteVariants = `delete from shop.variant where product_id = any ($1) and id % 3 = $2 % 3`

	// What this transaction has written: nobody has worked it off yet.
	writtenEvents = `
select id, entity_id, op, event_version from ` + ShopOutbox + `
where entity_id in (select t.id || ':' || i from shop.tenant t, unnest($1::bigint[]) i) and status in ('pending', 'processing') and xmin = pg_current_xact_id()::xid`

	// A place that its product has left is to be empty.
	renewProduct = `
select weft_enqueue('` + ShopOutbox + `', null, $1, 'delete') where not exists (select from shop.product p where p.tenant_id || ':' || p.id = $1)
union all
select weft_enqueue('` + ShopOutbox + `', null, p.tenant_id || ':' || p.id, 'upsert') from shop.product p where p.id = split_part($1, ':', 2)::bigint`
)

// ShopDocuments is the query for the documents that the index must have: place, version, fields.
const ShopDocuments = `
select p.tenant_id || ':' || p.id, e.version, jsonb_build_object(
  'tenant_id', p.tenant_id, 'name', p.name, 'description', p.description, 'price', p.price, 'tags', p.tags, 'details', p.details,
  'created_at', p.created_at, 'stock', coalesce(sum(v.stock), 0),
  'variants', coalesce(jsonb_agg(jsonb_build_object('sku', v.sku, 'color', v.color, 'price', case when v.price is null then p.price else v.price end,
    'stock', v.stock) order by v.id) filter (where v.id is not null), '[]'),
  'suggest', jsonb_build_object('input', jsonb_build_array(p.name) || to_jsonb(regexp_split_to_array(p.name, ' ')), 'weight', coalesce(sum(v.stock), 0)))
from shop.product p left join product_outbox_versions e on e.entity_id = p.id left join shop.variant v on v.product_id = p.id
where p.deleted_at is null group by p.id, e.version`

const (
	fillProducts = 100
	bulkProducts = 40
	perShopping  = 3.5 // events of an operation, on average
)

// Run makes the products and changes them until ctx ends, which is no error.
func (s *Shop) Run(ctx context.Context) error {
	for from := 1; from <= s.Products; from += fillProducts {
		ids := make([]int64, min(fillProducts, s.Products-from+1))
		for i := range ids {
			ids[i] = int64(from + i)
		}
		if err := s.write(ctx, rand.New(rand.NewPCG(s.Seed, uint64(from))), ids, putProducts, addVariants); err != nil {
			return fmt.Errorf("make products: %w", err)
		}
	}
	loop := Loop{Rate: s.Rate / perShopping, Concurrency: s.Writers, Skip: skipAfter}
	return rig.Wrap("changes of the shop", loop.everyday(ctx, s.Seed, s.operation))
}

// operation changes one to three products in one transaction, or the variants of many.
func (s *Shop) operation(ctx context.Context, random *rand.Rand) error {
	var ids []int64
	for range 1 + random.IntN(3) {
		ids = append(ids, s.pick(random))
	}
	switch n := random.IntN(40); {
	case n < 8:
		return s.write(ctx, random, ids, putProducts)
	case n < 12:
		return s.write(ctx, random, ids, putProducts, addVariants, changeVariants)
	case n < 14:
		return s.write(ctx, random, ids, priceProducts)
	case n < 16:
		return s.write(ctx, random, ids, moveProducts)
	case n < 20:
		return s.write(ctx, random, ids, changeVariants)
	case n < 24:
		return s.write(ctx, random, ids, addVariants)
	case n < 28:
		return s.write(ctx, random, append(ids, s.pick(random)), moveVariants)
	case n < 31:
		return s.write(ctx, random, ids, deleteVariants, priceProducts)
	case n < 33:
		return s.write(ctx, random, ids[:1], hideProducts)
	case n < 34:
		return s.write(ctx, random, ids, changeVariants, moveProducts)
	case n < 37:
		return s.write(ctx, random, ids[:1], changeVariants, deleteProducts)
	case n < 38:
		for i := range int64(bulkProducts) {
			ids = append(ids, 1+(ids[0]+i)%int64(s.Products))
		}
		return s.write(ctx, random, ids, changeVariants)
	default:
		return s.write(ctx, random, ids, deleteProducts, putProducts, addVariants)
	}
}

func (s *Shop) pick(random *rand.Rand) int64 {
	if random.IntN(2) == 0 {
		return 1 + random.Int64N(int64(s.Hot))
	}
	return 1 + random.Int64N(int64(s.Products))
}

// write changes products in one transaction, and notes the events that triggers have written.
func (s *Shop) write(ctx context.Context, random *rand.Rand, ids []int64, statements ...string) error {
	slices.Sort(ids)
	ids = slices.Compact(ids)
	_, err := s.transact(ctx, s.Pool, 0, func(ctx context.Context, tx pgx.Tx) ([]outbox.NewEvent, error) {
		var batch pgx.Batch
		for _, sql := range statements {
			batch.Queue(sql, ids, random.Int64N(1_000_000))
		}
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return nil, err
		}
		rows, _ := tx.Query(ctx, writtenEvents, ids)
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e outbox.NewEvent, err error) {
			e.Key.Type = ShopProduct
			err = row.Scan(&e.ID, &e.Key.ID, &e.Op, &e.Version)
			return e, err
		})
	})
	return err
}

// Renew writes one more event for each product, as [Application.Renew] does.
func (s *Shop) Renew(ctx context.Context, keys ...outbox.Key) error {
	for _, k := range keys {
		if _, err := s.Pool.Exec(ctx, renewProduct, k.ID.String()); err != nil {
			return fmt.Errorf("write product %s again: %w", k.ID, err)
		}
	}
	return nil
}
