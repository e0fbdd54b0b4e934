-- Five tenants and 20,000 products with one to three variants, the same ones each time.
-- PGOPTIONS='-c shop.products=500000' makes another number of products.
insert into shop.tenant (name) select 'tenant ' || i from generate_series(1, 5) i;

with words as (
  select array['oak','steel','linen','copper','walnut','glass','leather','cork'] as material,
         array['lamp','chair','desk','shelf','mirror','stool','basket','clock','tray'] as thing
)
insert into shop.product (tenant_id, name, description, price, tags, details)
select 1 + i % 5, format('%s %s %s', w.material[1 + i % 8], w.thing[1 + i / 8 % 9], i),
       case when i % 3 > 0 then format('A %s made of %s', w.thing[1 + i / 8 % 9], w.material[1 + i % 8]) end,
       5 + i * 7919 % 40000 / 100.0, array[w.material[1 + i % 8], w.thing[1 + i / 8 % 9]],
       jsonb_build_object('width', 10 + i % 90, 'handmade', i % 7 = 0)
from words w, generate_series(1, coalesce(nullif(current_setting('shop.products', true), '')::integer, 20000)) i;

insert into shop.variant (product_id, sku, color, price, stock)
select p.id, format('%s-%s', p.id, n), (array['red','green','black'])[n], case when n > 1 then p.price + n end, p.id * (8 - n) % 997
from shop.product p, generate_series(1, 3) n where n <= 1 + p.id / 10 % 3;

analyze shop.product, shop.variant;
