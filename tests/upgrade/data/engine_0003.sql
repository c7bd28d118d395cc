-- What a busy database held at migration 0003: a message in every state, keys in every state, a line for every ending.

insert into payonce.limits (name, concurrency, rate, burst) values ('vendor', 3, 5, 2);

insert into payonce.queues (name, limit_name, paused, paused_reason, lease_s, key_retention_s, log, policy) values
    ('pay', null, false, null, 30, 86400, 'all', '{"lanes": false}'),
    ('swap', 'vendor', false, null, 60, 172800, 'failures', '{"lanes": false}'),
    ('held', null, true, 'the vendor is down', 30, 86400, 'all', '{"lanes": false}');

insert into payonce.messages (id, queue, state, ready_at, lane, token, lease_until, claimed_at, worker, running_alone,
                              attempts, crashes, max_attempts, first_attempt_at, created_at, action, correlation_id,
                              idempotency_key, trace_id, last_error, payload, extra) values
    ('00000000-0000-7000-8000-000000000001', 'pay', 'ready', '2026-01-01T00:00Z', null, 0, null, null, null, false,
     0, 0, null, null, '2026-01-01T00:00Z', 'pay', 'order-1', 'pay:1', 't-1', null, '{"wei": 123456789012345678901234567890}', null),
    ('00000000-0000-7000-8000-000000000002', 'pay', 'ready', '2026-01-01T06:00Z', null, 3, null, '2026-01-01T00:00Z', 'w-1', false,
     2, 0, 9, '2026-01-01T00:00Z', '2026-01-01T00:00Z', 'pay', null, null, null, 'timeout', '{}', '{"sender": "shop"}'),
    ('00000000-0000-7000-8000-000000000003', 'pay', 'alone', '2026-01-01T00:00Z', null, 4, null, '2026-01-01T00:00Z', 'w-1', false,
     0, 2, null, '2026-01-01T00:00Z', '2026-01-01T00:00Z', 'pay', null, 'pay:3', null, 'worker w-1 died', '{}', null),
    ('00000000-0000-7000-8000-000000000004', 'pay', 'leased', '2026-01-01T00:00Z', null, 1, '2026-01-01T00:00:30Z', '2026-01-01T00:00Z', 'w-1', false,
     0, 0, null, '2026-01-01T00:00Z', '2026-01-01T00:00Z', 'pay', null, 'pay:4', null, null, '{}', null),
    ('00000000-0000-7000-8000-000000000005', 'pay', 'parked', '2026-01-01T00:00Z', null, 7, null, '2026-01-01T00:00Z', 'w-1', false,
     6, 0, null, '2025-12-01T00:00Z', '2025-12-01T00:00Z', 'pay', 'order-5', 'pay:5', null, 'gave up after 6 of 6 attempts', '{}', null),
    ('00000000-0000-7000-8000-000000000006', 'swap', 'ready', '2026-01-01T00:00Z', 'tenant-1', 0, null, null, null, false,
     0, 0, null, null, '2026-01-01T00:00Z', '', null, null, null, null, '{"ö": "\u0000"}', null),
    ('00000000-0000-7000-8000-000000000007', 'held', 'ready', '2026-01-01T00:00Z', null, 0, null, null, null, false,
     0, 0, null, null, '2026-01-01T00:00Z', '', null, null, null, null, '{}', null);

insert into payonce.idempotency_keys (queue, key, message_id, expires_at) values
    ('pay', 'pay:1', '00000000-0000-7000-8000-000000000001', null),
    ('pay', 'pay:3', '00000000-0000-7000-8000-000000000003', null),
    ('pay', 'pay:4', '00000000-0000-7000-8000-000000000004', null),
    ('pay', 'pay:5', '00000000-0000-7000-8000-000000000005', null),
    ('pay', 'pay:settled', '00000000-0000-7000-8000-0000000000f1', '2026-01-03T00:00Z'),
    ('pay', 'pay:over', '00000000-0000-7000-8000-0000000000f2', '2025-12-31T00:00Z');

insert into payonce.job_logs (queue, message_id, correlation_id, idempotency_key, trace_id, status, attempts, last_error,
                              next_retry_at, action, worker, started_at, created_at, updated_at) values
    ('pay', '00000000-0000-7000-8000-0000000000f1', 'order-0', 'pay:settled', 't-0', 'success', 1, null,
     null, 'pay', 'w-1', '2026-01-01T00:00Z', '2026-01-01T00:00Z', '2026-01-01T00:00Z'),
    ('pay', '00000000-0000-7000-8000-000000000002', null, null, null, 'retry', 2, 'timeout',
     '2026-01-01T06:00Z', 'pay', 'w-1', '2026-01-01T00:00Z', '2026-01-01T00:00Z', '2026-01-01T00:00Z'),
    ('pay', '00000000-0000-7000-8000-000000000005', 'order-5', 'pay:5', null, 'parked', 6, 'gave up after 6 of 6 attempts',
     null, 'pay', 'w-1', '2026-01-01T00:00Z', '2026-01-01T00:00Z', '2026-01-01T00:00Z'),
    ('swap', '00000000-0000-7000-8000-0000000000f3', null, null, null, 'failed', 1, 'rejected',
     null, '', 'w-2', '2026-01-01T00:00Z', '2026-01-01T00:00Z', '2026-01-01T00:00Z');
