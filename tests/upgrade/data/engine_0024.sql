-- What migration 0024 added: what an effect is compared by when it is asked for again.

insert into payonce.effects (
    id, kind, key, generation, version, safety, state, request, outcome, revision, attempt, first_attempt_at, sent_until,
    message_id, trace_id, created_at, updated_at, identity)
values
    ('00000000-0000-7000-8000-000000000e24', 'bank.pay', 'payout-24', 1, 1, 'keyed', 'performed', '{"minor_units": 24}',
     '{"number": "n-24"}', 2, 1, '2026-01-03T00:00Z', '2026-01-03T00:00:20Z', '00000000-0000-7000-8000-000000000f24',
     't-24', '2026-01-03T00:00Z', '2026-01-03T00:00:01Z', '{"order": "24"}');
