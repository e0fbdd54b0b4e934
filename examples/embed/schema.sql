-- After it: weft migrate up, and weft outbox create --table shop.product --apply
create schema shop;
create table shop.product (id bigint primary key, name text not null, price numeric(10,2));
