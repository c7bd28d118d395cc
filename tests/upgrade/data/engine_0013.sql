-- What migration 0013 added: queues of another backend, and entries that somebody works on.

insert into payonce.queues (name, lease_s, key_retention_s, backend) values ('q:pay:refund_initiation', 30, 86400, 'redis');

insert into payonce.outbox (
    relay, id, state, ready_at, try_at, token, queue, action, created_at, attempts, payload, holder, held_until,
    first_attempt_at)
values
    ('redis', '00000000-0000-7000-8000-0000000000c1', 'delivered', '2026-01-01T00:00Z', '2026-01-01T00:00Z', 1,
     'q:pay:refund_initiation', 'refund', '2026-01-01T00:00Z', 2, '{}', 8123456789012345678, '2026-01-01T00:01Z',
     '2026-01-01T00:00Z');
