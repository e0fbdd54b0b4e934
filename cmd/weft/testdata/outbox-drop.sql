begin;
set local lock_timeout = '500ms'; -- others queue behind a lock that this waits for: rather run it again

-- Takes back what weft outbox create has made of product_outbox_events.

-- The triggers first: this waits for the writers that are at work, and shuts new ones out.
drop trigger product_outbox_delete on shop.product;
drop trigger product_outbox_insert on shop.product;
drop trigger product_outbox_truncate on shop.product;
drop trigger product_outbox_update on shop.product;
drop trigger product_outbox_delete on shop.variant;
drop trigger product_outbox_insert on shop.variant;
drop trigger product_outbox_truncate on shop.variant;
drop trigger product_outbox_update on shop.variant;
-- Nothing that is still to be carried, and no finished event that is kept on purpose, is thrown away.
lock table "public"."product_outbox_events" in access exclusive mode;
do $weft$
begin
	if exists (select from "public"."product_outbox_events" where status <> 'done') then
		raise exception using errcode = 'object_in_use', message = 'has events that are not done';
	end if;
	if to_regclass('"public"."product_outbox_history"') is not null then
		if exists (select from "public"."product_outbox_history") then
			raise exception using errcode = 'object_in_use', message = 'has finished events in product_outbox_history';
		end if;
	end if;
end $weft$;

-- What shows its events in flight.
drop view if exists "public"."weft_inflight";
create view "public"."weft_inflight" as 
select e.id::text as event_id, o.entity_type, o.entity_id::text as entity_id, l.owner, l.epoch, l.batch, l.leased_at, l.lease_until, l.table_name
from "public".weft_lease l
cross join lateral unnest(l.uuids) as e(id)
join "public".search_outbox_events o on o.id = e.id
where l.table_name = 'search_outbox_events' union all 
select e.id::text as event_id, o.entity_type, o.entity_id::text as entity_id, l.owner, l.epoch, l.batch, l.leased_at, l.lease_until, l.table_name
from "public".weft_lease l
cross join lateral unnest(l.uuids) as e(id)
join "public".chronicle_outbox_events o on o.id = e.id
where l.table_name = 'chronicle_outbox_events';

drop view if exists "public"."product_outbox_events_live";
drop function public.product_outbox_changed_1();
drop function public.product_outbox_changed_2();
drop function public.product_outbox_refuse_truncate();
drop function public.product_outbox_touch(p_ids bigint[]);
-- The sequence goes with the versions.
drop table if exists "public"."product_outbox_history", "public"."product_outbox_events", "public"."product_outbox_versions";
delete from "public".weft_lease where table_name = 'product_outbox_events';
delete from "public".weft_verify v using "public".weft_progress p where p.table_name = 'product_outbox_events' and v.projection = p.projection;
delete from "public".weft_progress where table_name = 'product_outbox_events';
delete from "public"."weft_outbox" where table_name = 'product_outbox_events';

commit;
