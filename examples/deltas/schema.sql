-- After weft migrate up. It ends with weft migrate up again, which gives the outbox table the
-- columns, indexes and views that it lacks.
create schema bank;
create table bank.account (id uuid primary key, version bigint not null default 0);
create table bank.movement (
	account uuid references bank.account,
	version bigint, -- of the account after this movement; also of the event
	amount  numeric(20,2) not null,
	primary key (account, version)
);
create table bank.balance (
	account uuid primary key,
	amount  numeric(20,2) not null constraint not_overdrawn check (amount >= 0),
	version bigint not null -- of the last movement that counts
);
create table movement_outbox_events (
	id            uuid primary key default gen_random_uuid(),
	entity_type   varchar(50) not null,
	entity_id     uuid not null,
	op            varchar(20) not null,
	event_version bigint not null
);
insert into weft_outbox (table_name, entity_type, source, key_column)
values ('movement_outbox_events', 'account', 'bank.movement', 'account');
