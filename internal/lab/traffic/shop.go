package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samuelhu324-dev/weft/internal/lab/rig"
	"github.com/samuelhu324-dev/weft/outbox"
)

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
