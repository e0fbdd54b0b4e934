package leader

// heldSQL is true when the calling backend holds the lock of key $2. The key is spread
// over two unsigned halves in pg_locks; objsubid 1 is the space of bigint keys.
const heldSQL = `exists (
    select from pg_locks l
     where l.locktype = 'advisory' and l.granted and l.pid = pg_backend_pid() and l.objsubid = 1
       and l.database = (select oid from pg_database where datname = current_database())
       and (l.classid::bigint << 32) | l.objid::bigint = $2::bigint)`

// tryLockSQL tries $2 times, $3 seconds apart, and returns a row when the lock is won.
// The loop runs in the server, because twenty wake-ups of a process per second cost more
// than 1% of a core. The statement holds a snapshot, so it must be short.
const tryLockSQL = `
select from generate_series(1, $2::integer) as i
 where case when pg_try_advisory_lock($1::bigint) then true
            when i < $2::integer then pg_sleep($3::float8)::text is null
            else false end
 limit 1`

// bumpSQL starts a term: $1 group, $2 key, $3 instance, $4 start of this backend. One
// statement, because the takeover waits for it. It changes nothing
// unless the lock is held. weft_term keeps epochs growing when the row was removed.
const bumpSQL = `
with bumped as (
    insert into weft_leader as w
           (group_name, epoch, instance, lock_backend_pid, lock_backend_start, acquired_at, renewed_at, released_at)
    select $1::varchar, 1 + coalesce((select max(epoch) from weft_term where group_name = $1::varchar), 0),
           $3::varchar, pg_backend_pid(), $4::timestamptz, clock_timestamp(), clock_timestamp(), null
     where ` + heldSQL + `
    on conflict (group_name) do update
       set epoch = greatest(w.epoch + 1, excluded.epoch), instance = excluded.instance,
           lock_backend_pid = excluded.lock_backend_pid, lock_backend_start = excluded.lock_backend_start,
           acquired_at = clock_timestamp(), renewed_at = clock_timestamp(), released_at = null
    returning w.epoch, w.acquired_at
), closed as (
    update weft_term set ended_at = clock_timestamp(), end_reason = 'replaced'
     where group_name = $1::varchar and ended_at is null and epoch < (select epoch from bumped)
), opened as (
    insert into weft_term (group_name, epoch, instance, acquired_at)
    select $1::varchar, epoch, $3::varchar, acquired_at from bumped
)
select epoch from bumped`

// beatSQL renews the row of the term $3 and proves the lock. No column of a unique key
// changes, so it does not conflict with FOR KEY SHARE. It returns a request to hand over.
const beatSQL = `
with held as materialized (
    select ` + heldSQL + ` as ok
), renewed as (
    update weft_leader set renewed_at = clock_timestamp()
     where group_name = $1 and epoch = $3 and lock_backend_pid = pg_backend_pid()
       and (select ok from held)
    returning resign_epoch = epoch as asked, resign_by, resign_why, resign_asked_at
)
select h.ok, coalesce(r.done, false), coalesce(r.asked, false), coalesce(r.resign_by, ''), coalesce(r.resign_why, ''),
       coalesce(r.resign_asked_at, 'epoch')
  from held h left join (select true as done, * from renewed) r on true`

// releaseSQL marks the regular end of the term $2 of group $1, for the reason $3, $4 seconds ago.
const releaseSQL = `
with released as (
    update weft_leader set released_at = clock_timestamp()
     where group_name = $1 and epoch = $2 and lock_backend_pid = pg_backend_pid()
)` + endTermSQL

const endTermSQL = `
update weft_term set ended_at = greatest(acquired_at, clock_timestamp() - make_interval(secs => $4)), end_reason = $3
 where group_name = $1 and epoch = $2 and ended_at is null`

// stateSQL describes the election of group $1 with key $2; one row, always. The request
// to hand over is read by name, so that status works on the schema of the build before.
const stateSQL = `
select w.epoch, w.instance, w.acquired_at, w.renewed_at, w.released_at,
       extract(epoch from clock_timestamp() - w.renewed_at)::float8,
       l.pid, a.application_name, a.usename::text, a.backend_start,
       coalesce(l.pid = w.lock_backend_pid
                and (a.backend_start is null or a.backend_start = w.lock_backend_start), false),
       r.resign_by, r.resign_why, r.resign_asked_at,
       extract(epoch from clock_timestamp() - a.backend_start)::float8,
       array(select i.instance from weft_instance i where i.group_name = $1 and l.pid is distinct from w.lock_backend_pid)
  from (select) one
  left join weft_leader w on w.group_name = $1
  left join pg_locks l
         on l.locktype = 'advisory' and l.granted and l.objsubid = 1
        and l.database = (select oid from pg_database where datname = current_database())
        and (l.classid::bigint << 32) | l.objid::bigint = $2::bigint
  left join pg_stat_activity a on a.pid = l.pid
  left join jsonb_to_record(coalesce(to_jsonb(w), '{}'))
         as r (resign_epoch bigint, resign_by text, resign_why text, resign_asked_at timestamptz)
         on r.resign_epoch = w.epoch
 order by l.pid
 limit 1`
