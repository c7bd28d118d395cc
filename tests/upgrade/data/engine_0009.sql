-- What migration 0009 added: entries of the outbox in every state, ids taken in, and vendors' budgets.

insert into payonce.relays (name, keeps, ahead_s, paused, paused_reason) values
    ('events', false, 0, false, null),
    ('redis', true, 86400, true, 'the server moves');

insert into payonce.outbox (
    relay, id, state, ready_at, try_at, token, lease_until, first_tried_at, tries, refusals, crashes, suspect, last_error,
    queue, action, correlation_id, idempotency_key, trace_id, created_at, attempts, max_attempts, lane, payload, extra)
values
    ('events', '00000000-0000-7000-8000-0000000000b1', 'waiting', '2026-01-01T00:00Z', '2026-01-01T00:00Z', 0, null,
     null, 0, 0, 0, false, null, 'escrow.settled', 'settled', 'order-1', 'k-1', 't-1', '2026-01-01T00:00Z', 0, null, null,
     '{"wei": 123456789012345678901234567890}', null),
    ('events', '00000000-0000-7000-8000-0000000000b2', 'leased', '2026-01-01T00:00Z', '2026-01-01T00:00Z', 3,
     '2026-01-01T00:00:30Z', '2026-01-01T00:00Z', 1, 0, 1, true, 'ConnectionResetError: reset', 'escrow.settled', '', null,
     null, null, '2026-01-01T00:00Z', 0, null, 'tenant-1', '{}', '{"sender": "shop"}'),
    ('events', '00000000-0000-7000-8000-0000000000b3', 'parked', '2026-01-01T00:00Z', '2026-01-01T01:00Z', 5, null,
     '2026-01-01T00:00Z', 5, 5, 0, false, 'refused 5 times: unknown topic', 'escrow.closed', '', null, null, 't-3',
     '2026-01-01T00:00Z', 0, null, null, '{}', null),
    ('redis', '00000000-0000-7000-8000-0000000000b4', 'delivered', '2026-01-01T06:00Z', '2026-01-01T00:00Z', 1, null,
     '2026-01-01T00:00Z', 0, 0, 0, false, 'vendor is down', 'q:sub:payment_initiation', 'pay', null, null, 't-4',
     '2026-01-01T00:00Z', 2, 7, null, '{}', null);

insert into payonce.inbox (consumer, id, accepted_at) values
    ('books', '00000000-0000-7000-8000-0000000000b1', '2026-01-01T00:00:01Z'),
    ('gateway', 'evt_1', '2026-01-01T00:00:02Z');

insert into payonce.budgets (name, rate_per_s, burst, arrival_at, held_until) values
    ('changenow', 5, 10, '2026-01-01T00:00:02Z', '2026-01-01T00:01Z');
