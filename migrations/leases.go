package migrations

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// leaseTables makes the fence, the leases and what their statements call. One transaction:
// a bump between the copy of weft_leader and its trigger would be lost.
//
// The fence is a row of its own because heartbeats rewrite the leader's: under a long
// snapshot that is one more version a second for every fenced statement to step over. A
// trigger moves it, with its owner's rights, so that the leader of an older build, whose
// role knows nothing of the table, moves it, too. The trigger names its columns: a
// heartbeat does not fire it.
const leaseTables = `
create table if not exists {schema}.weft_fence (
	group_name varchar(120) primary key,
	epoch      bigint       not null,
	instance   varchar(120) not null,
	-- With all of the term in a unique key the bump conflicts with FOR KEY SHARE.
	unique (group_name, epoch, instance)
) with (fillfactor = 50);

create or replace function {schema}.weft_move_fence() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
	insert into {schema}.weft_fence (group_name, epoch, instance) values (new.group_name, new.epoch, new.instance)
	on conflict (group_name) do update set epoch = excluded.epoch, instance = excluded.instance;
	return null;
end $$;
revoke all on function {schema}.weft_move_fence() from public;

create or replace trigger weft_move_fence after insert or update of epoch, instance on {schema}.weft_leader
	for each row execute function {schema}.weft_move_fence();

insert into {schema}.weft_fence (group_name, epoch, instance)
select group_name, epoch, instance from {schema}.weft_leader
on conflict (group_name) do update set epoch = excluded.epoch, instance = excluded.instance;

create table if not exists {schema}.weft_lease (
	batch       uuid         primary key,
	table_name  varchar(63)  not null,
	group_name  varchar(120) not null,
	owner       varchar(120) not null,
	epoch       bigint       not null,
	leased_at   timestamptz  not null,
	lease_until timestamptz  not null,
	uuids       uuid[],   -- the events, where their ids are uuids
	numbers     bigint[]  -- and where they are numbers
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off, toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000,
	toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off);
-- Random ids do not compress.
alter table {schema}.weft_lease alter column uuids set storage external, alter column numbers set storage external;

-- Fails the transaction with a code unless ok.
create or replace function {schema}.weft_require(ok boolean, code text) returns boolean
language plpgsql immutable as $$
begin
	if ok is not true then
		raise exception using errcode = code, message = case code
			when 'WF001' then 'a newer epoch has taken over'
			when 'WF002' then 'the batch has no lease'
			when 'WF003' then 'a row was changed, or its change was swallowed'
			when 'WF004' then 'the outbox table has columns that its history lacks, or that this instance has not read yet'
			else 'required' end;
	end if;
	return true;
end $$;
`

const dropLeaseTables = `
drop view if exists {schema}.weft_inflight;
drop table if exists {schema}.weft_lease;
drop function if exists {schema}.weft_require(boolean, text);
drop trigger if exists weft_move_fence on {schema}.weft_leader;
drop function if exists {schema}.weft_move_fence();
drop table if exists {schema}.weft_fence;
`

// noTruncate keeps vacuum from cutting free pages off an outbox table: that takes a lock
// which producers queue behind.
const noTruncate = "vacuum_truncate"

func (m *migrator) upLeases(ctx context.Context) error {
	if err := m.script(ctx, "weft_leader", leaseTables); err != nil {
		return fmt.Errorf("lease tables: %w", err)
	}
	for i, t := range m.outboxes {
		f, err := m.inspect(ctx, t.name)
		if err != nil {
			return fmt.Errorf("inspect %s: %w", t.name, err)
		}
		if err := m.addColumns(ctx, versionLeases, i, t.name, behindColumn()); err != nil {
			return err
		}
		// Nothing is altered twice: even an ALTER that changes nothing takes a lock.
		if slices.ContainsFunc(f.reloptions, func(o string) bool { return strings.HasPrefix(o, noTruncate+"=") }) {
			continue
		}
		if err := m.ddl(ctx, t.name, "alter table "+m.qualify(t.name)+" set ("+noTruncate+" = off)"); err != nil {
			return fmt.Errorf("settings of %s: %w", t.name, err)
		}
	}
	if err := m.ensureIndexes(ctx, leaseIndexes(m.outboxes), versionLeases); err != nil {
		return err
	}
	if err := m.upHistory(ctx); err != nil {
		return err
	}
	if err := m.forgetFunction(ctx, "'replay', 'prune'"); err != nil {
		return err
	}
	_, err := m.refreshViews(ctx)
	return err
}

func (m *migrator) downLeases(ctx context.Context) error {
	// The build before this one looks for work by them; weft doctor lets them be dropped.
	if err := m.ensureIndexes(ctx, outboxIndexes(m.outboxes), versionLeases); err != nil {
		return err
	}
	for _, t := range m.outboxes {
		if err := m.ddl(ctx, t.name, "drop view if exists "+m.qualify(liveView(t.name))); err != nil {
			return fmt.Errorf("view %s: %w", liveView(t.name), err)
		}
	}
	if err := m.downHistory(ctx); err != nil {
		return err
	}
	if err := m.script(ctx, "weft_leader", dropForget+dropLeaseTables); err != nil {
		return fmt.Errorf("lease tables: %w", err)
	}
	if err := m.dropIndexes(ctx, leaseIndexes(m.outboxes), versionLeases); err != nil {
		return err
	}
	for _, t := range m.outboxes {
		f, err := m.inspect(ctx, t.name)
		if err != nil {
			return fmt.Errorf("inspect %s: %w", t.name, err)
		}
		var alter []string
		if _, ok := f.columns["behind"]; ok && f.dealt == "" {
			alter = append(alter, "drop column behind")
		}
		if slices.Contains(f.reloptions, noTruncate+"=off") {
			alter = append(alter, "reset ("+noTruncate+")")
		}
		if len(alter) == 0 {
			continue
		}
		if err := m.ddl(ctx, t.name, "alter table "+m.qualify(t.name)+" "+strings.Join(alter, ", ")); err != nil {
			return fmt.Errorf("column of %s: %w", t.name, err)
		}
	}
	return nil
}

// leaseIndexes serve lists, leases and what is put off. Those of version 3 that this build
// does not read stay for older builds: see [FindCostly].
func leaseIndexes(tables []table) []index {
	var all []index
	for _, t := range tables {
		prefix := "weft_" + strings.TrimSuffix(t.name, "_events")
		all = append(all,
			index{prefix + "_list", t.name, "(event_version, id) where status = 'pending' and next_retry_at is null"},
			index{prefix + "_retry", t.name, "(next_retry_at, event_version) where status = 'pending' and next_retry_at is not null and behind is null"},
			index{prefix + "_entity", t.name, "(entity_id, event_version) where status in ('pending', 'processing')"},
			index{prefix + "_behind", t.name, "(entity_id) where status = 'pending' and behind is not null"},
		)
	}
	return all
}

// forOlderBuilds reports whether only builds before leases read an index.
func forOlderBuilds(ix index) bool {
	return strings.HasSuffix(ix.name, "_ready") || strings.HasSuffix(ix.name, "_due")
}

// currentIndexes are those that this build reads.
func currentIndexes(tables []table) []index {
	return slices.DeleteFunc(slices.Concat(outboxIndexes(tables), leaseIndexes(tables), failedIndexes(tables)), forOlderBuilds)
}

// forget bounds the size of weft_term and weft_audit. Its owner's rights stand in for a
// right to delete, by which an instance could wipe out what was done in its name: rows that
// are younger than a day, and the newest 1,000 terms of a group, stay whatever is asked. A
// group's epochs go on from its newest term, which is among those.
const forget = `
create or replace function {schema}.weft_forget(p_keep interval, p_keep_failures interval, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
declare
	terms   integer;
	entries integer;
begin
	if p_keep is null or p_keep_failures is null or p_keep < interval '1 day' or p_keep_failures < p_keep or coalesce(p_limit, 0) < 1 then
		raise exception using errcode = 'invalid_parameter_value', message = 'want at least a day, at least as long for failures, and a limit';
	end if;
	with aged as (
		select group_name, epoch, ended_at, end_reason, row_number() over (partition by group_name order by epoch desc) as place
		from {schema}.weft_term
	), old as (
		select group_name, epoch from aged
		where place > 1000
		  and ended_at < now() - case when end_reason in ('stopped', 'resigned', 'work_returned') then p_keep else p_keep_failures end
		limit p_limit
	)
	delete from {schema}.weft_term t using old where t.group_name = old.group_name and t.epoch = old.epoch;
	get diagnostics terms = row_count;
	delete from {schema}.weft_audit where id in (
		select id from {schema}.weft_audit
		where at < now() - case when action in ({kept}) or action = 'reclaim' and why like '%ended in failed'
			then p_keep_failures else p_keep end
		order by id limit p_limit);
	get diagnostics entries = row_count;
	return greatest(terms, entries);
end $$;
revoke all on function {schema}.weft_forget(interval, interval, integer) from public;
`

// forgetFunction makes weft_forget, which keeps entries of these actions as long as failures.
func (m *migrator) forgetFunction(ctx context.Context, kept string) error {
	if err := m.script(ctx, "weft_audit", strings.Replace(forget, "{kept}", kept, 1)); err != nil {
		return fmt.Errorf("function weft_forget: %w", err)
	}
	return nil
}

const dropForget = `
drop function if exists {schema}.weft_forget(interval, interval, integer);
`

// script runs several statements as one transaction, which may wait for a lock on table.
// {schema} stands for the schema, {name} for its name as a text.
func (m *migrator) script(ctx context.Context, table, sql string) error {
	name := "'" + strings.ReplaceAll(m.schema, "'", "''") + "'"
	return m.ddl(ctx, table, strings.NewReplacer("{schema}", pgx.Identifier{m.schema}.Sanitize(), "{name}", name).Replace(sql))
}

// refresh gives the outbox tables of the application what they lack, and brings what follows
// the columns of an outbox table up to them: the views and the history tables. In a shard that an
// earlier build has moved it replaces weft_settled. It returns whether there was anything to do.
func (m *migrator) refresh(ctx context.Context) (bool, error) {
	adopted, err := m.refreshOutboxes(ctx)
	if err != nil {
		return adopted, err
	}
	history, err := m.refreshHistories(ctx)
	if err != nil {
		return adopted || history, err
	}
	views, err := m.refreshViews(ctx)
	if err != nil {
		return adopted || history || views, err
	}
	settled, err := m.refreshSettled(ctx)
	return adopted || history || views || settled, err
}
