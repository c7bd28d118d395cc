-- What migration 0017 added: how queues did, minute by minute.

insert into payonce.queue_minutes (minute, queue, success, retry, failed, parked, waiting, delayed, leased, lying, oldest_s)
values
    ('2026-01-01T00:00Z', 'work', 12, 3, 1, 1, 5, 2, 1, 1, 0.5),
    ('2026-01-01T00:01Z', 'work', 9000000000, 0, 0, 0, null, null, null, null, null);
