-- +goose Up
-- One row per group, rewritten by every heartbeat: half-empty pages keep those updates on their page.
create table weft_leader (
    group_name         varchar(120) primary key,
    epoch              bigint       not null,
    instance           varchar(120) not null,
    lock_backend_pid   integer,
    lock_backend_start timestamptz,
    acquired_at        timestamptz  not null,
    renewed_at         timestamptz  not null,
    released_at        timestamptz,
    -- With epoch in a unique key a bump conflicts with FOR KEY SHARE, and a heartbeat does not.
    unique (group_name, epoch)
) with (fillfactor = 50);

create table weft_term (
    group_name  varchar(120),
    epoch       bigint,
    instance    varchar(120) not null,
    acquired_at timestamptz  not null,
    ended_at    timestamptz,
    end_reason  varchar(80),
    primary key (group_name, epoch)
);

create table weft_instance (
    group_name varchar(120),
    instance   varchar(120),
    role       varchar(20)  not null,
    version    text         not null,
    host       text         not null,
    pid        integer      not null,
    http_addr  text,
    started_at timestamptz  not null,
    seen_at    timestamptz  not null,
    primary key (group_name, instance)
);

create table weft_audit (
    id         bigint       generated always as identity primary key,
    at         timestamptz  not null default now(),
    actor      varchar(120) not null,
    action     varchar(40)  not null,
    why        text         not null,
    projection varchar(80),
    from_owner varchar(120),
    from_epoch bigint,
    by_epoch   bigint,
    count      integer      not null default 0,
    detail     jsonb
);

-- One row per outbox table, written about once a second by the leader that works on it: the newest settle,
-- so that nobody has to look for it among the finished rows.
create table weft_progress (
    table_name     varchar(63) primary key,
    group_name     varchar(120) not null,
    projection     varchar(80)  not null,
    epoch          bigint       not null,
    last_settle_at timestamptz  not null
) with (fillfactor = 50);

-- +goose Down
drop table weft_progress;
drop table weft_audit;
drop table weft_instance;
drop table weft_term;
drop table weft_leader;
