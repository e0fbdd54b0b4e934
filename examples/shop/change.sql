-- A cheap lamp gets the variants of another one: both change.
update shop.product set price = 1.50 where id = 3;
update shop.variant set product_id = 3 where product_id = 19947;

-- One is no longer sold, one never was, and of one there is plenty.
update shop.product set deleted_at = now() where id = 11451;
delete from shop.product where id = 2955;
update shop.variant set stock = 5000 where product_id = 20;
