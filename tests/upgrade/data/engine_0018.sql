-- What migration 0018 added: messages that a task service brings, and a queue with measured numbers.

insert into payonce.queues (name, lease_s, key_retention_s, backend, tuned_rate, tuned_concurrency)
values ('pushed', 30, 86400, 'cloudtasks', 24, 29);

insert into payonce.relays (name, keeps, ahead_s) values ('cloudtasks', true, 2500000) on conflict (name) do nothing;

insert into payonce.outbox (relay, id, state, ready_at, try_at, token, queue, action, created_at, payload, attempts,
                            holder, held_until, first_attempt_at, delivery, delivered_as, worker, begun_at, run_crashes)
values
    ('cloudtasks', '00000000-0000-7000-8000-000000000181', 'delivered', '2026-01-01T00:00Z', '2026-01-01T00:00Z', 3,
     'pushed', 'pay', '2026-01-01T00:00Z', '{"wei": 123456789012345678901234567890}', 1, 77, '2026-01-01T00:01Z',
     '2026-01-01T00:00Z', 2, 'projects/p/locations/l/queues/pushed/tasks/t-2', 'worker-1', '2026-01-01T00:00:30Z', 1),
    ('cloudtasks', '00000000-0000-7000-8000-000000000182', 'parked', '2026-01-01T00:00Z', '2026-01-01T00:00Z', 4,
     'pushed', 'pay', '2026-01-01T00:00Z', '{}', 6, null, null, '2026-01-01T00:00Z', 0, null, null, null, 0);
