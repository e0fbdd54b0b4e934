-- What weft run needs, as weft migrate grant weft gives it; made by go test ./migrations.
-- By the owner of the tables, after each weft migrate up.

grant usage on schema public to weft;
grant select, update (updated_at, status, owner, lease_until, processing_started_at, attempts, next_retry_at, processed_at, error_reason, error, replay_count, last_replayed_at, last_replayed_by, last_replayed_reason, epoch, reclaims, behind, discarded_at, discarded_by, discarded_reason) on public.search_outbox_events to weft;
grant select on public.search_outbox_history to weft;
grant select, update (updated_at, status, owner, lease_until, processing_started_at, attempts, next_retry_at, processed_at, error_reason, error, replay_count, last_replayed_at, last_replayed_by, last_replayed_reason, epoch, reclaims, behind, discarded_at, discarded_by, discarded_reason) on public.chronicle_outbox_events to weft;
grant select on public.chronicle_outbox_history to weft;
grant select on public.search_index to weft;
grant select on public.chronicle_events to weft;
grant select on public.environment_sentinel to weft;
grant select on public.weft_schema_version to weft;
grant select, insert, update (count, detail) on public.weft_audit to weft;
grant select, update (group_name) on public.weft_fence to weft;
grant select, insert, update on public.weft_leader to weft;
grant select, insert, update on public.weft_term to weft;
grant select, insert, update on public.weft_progress to weft;
grant select, insert, update on public.weft_verify to weft;
grant select, insert, update on public.weft_rebuild to weft;
grant select, insert, delete on public.weft_pause to weft;
grant select, insert, delete on public.weft_quarantine to weft;
grant select, insert, update, delete on public.weft_instance to weft;
grant select, insert, update, delete on public.weft_lease to weft;
grant select, insert, update, delete on public.weft_redo to weft;
grant select, insert, update, delete on public.weft_throttle to weft;
grant select, insert, update, delete on public.chronicle_entries to weft;
grant select on public.weft_inflight to weft;
grant select on public.search_outbox_events_live to weft;
grant select on public.chronicle_outbox_events_live to weft;
grant select on public.weft_outbox to weft;
grant execute on function public.weft_require(boolean, text) to weft;
grant execute on function public.weft_forget(interval, interval, integer) to weft;
grant execute on function public.weft_history(text) to weft;
grant execute on function public.weft_history_partitions(text) to weft;

-- Besides, where outbox.finished is archive:
--
-- grant delete on public.search_outbox_events to weft;
-- grant select, insert on public.search_outbox_history to weft;
-- grant delete on public.chronicle_outbox_events to weft;
-- grant select, insert on public.chronicle_outbox_history to weft;
-- grant execute on function public.weft_history_attach(text, date) to weft;
-- grant execute on function public.weft_history_index(text, text) to weft;

-- Besides, where outbox.finished is delete:
--
-- grant delete on public.search_outbox_events to weft;
-- grant delete on public.chronicle_outbox_events to weft;

-- Besides, where outbox.retention is set, finished events are kept or deleted:
--
-- grant delete on public.search_outbox_events to weft;
-- grant delete on public.chronicle_outbox_events to weft;
-- grant execute on function public.weft_history_drop(text, text) to weft;

-- Besides, where outbox.retention is set, finished events are archived:
--
-- grant delete on public.search_outbox_events to weft;
-- grant select, insert on public.search_outbox_history to weft;
-- grant delete on public.chronicle_outbox_events to weft;
-- grant select, insert on public.chronicle_outbox_history to weft;
-- grant execute on function public.weft_history_attach(text, date) to weft;
-- grant execute on function public.weft_history_index(text, text) to weft;
-- grant execute on function public.weft_history_drop(text, text) to weft;
