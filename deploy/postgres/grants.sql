-- What weft run needs, as weft migrate grant weft gives it; made by go test ./migrations.
-- By the owner of the tables, after each weft migrate up.

grant usage on schema public to weft;
grant select, update (updated_at, status, owner, lease_until, processing_started_at, attempts, next_retry_at, processed_at, error_reason, error, replay_count, last_replayed_at, last_replayed_by, last_replayed_reason, epoch, reclaims) on public.search_outbox_events to weft;
grant select, update (updated_at, status, owner, lease_until, processing_started_at, attempts, next_retry_at, processed_at, error_reason, error, replay_count, last_replayed_at, last_replayed_by, last_replayed_reason, epoch, reclaims) on public.chronicle_outbox_events to weft;
grant select on public.search_index to weft;
grant select on public.chronicle_events to weft;
grant select on public.environment_sentinel to weft;
grant select on public.weft_schema_version to weft;
grant select, insert, update (count, detail) on public.weft_audit to weft;
grant select, insert, update on public.weft_leader to weft;
grant select, insert, update on public.weft_term to weft;
grant select, insert, update on public.weft_progress to weft;
grant select, insert, update, delete on public.weft_instance to weft;
grant select, insert, update, delete on public.chronicle_entries to weft;
