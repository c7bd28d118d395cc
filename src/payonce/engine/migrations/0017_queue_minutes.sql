-- How queues did, minute by minute, for people to look back a day or two.

create table payonce.queue_minutes (
    minute timestamptz not null,
    queue text collate "C" not null,
    -- Runs that ended so, as the workers counted them.
    success bigint not null default 0 check (success >= 0),
    retry bigint not null default 0 check (retry >= 0),
    failed bigint not null default 0 check (failed >= 0),
    parked bigint not null default 0 check (parked >= 0),
    -- As last seen within the minute; null when nobody looked.
    waiting bigint,
    delayed bigint,
    leased bigint,
    lying bigint,
    oldest_s double precision,
    primary key (minute, queue)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

create index queue_minutes_queue on payonce.queue_minutes (queue, minute);

grant select, insert, update, delete on payonce.queue_minutes to payonce_service;
