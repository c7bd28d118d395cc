-- What migration 0006 added: effects and their attempts.

insert into payonce.effects (
    id, kind, key, generation, version, safety, state, scope, request, outcome, vendor_ref, reason, review_cause,
    revision, attempt, first_attempt_at, sent_until, busy_until, key_valid_until, superseded, message_id, trace_id,
    created_at, updated_at)
values
    ('00000000-0000-7000-8000-0000000000e1', 'bank.pay', 'payout-1', 1, 1, 'keyed', 'performed', 'payout 1',
     '{"minor_units": 123456789012345678901234567890}', '{"number": "n-1"}', 'n-1', null, null, 2, 1,
     '2026-01-01T00:00Z', '2026-01-01T00:00:20Z', null, '2026-01-02T00:00Z', false,
     '00000000-0000-7000-8000-0000000000f1', 't-1', '2026-01-01T00:00Z', '2026-01-01T00:00:01Z'),
    ('00000000-0000-7000-8000-0000000000e2', 'bank.pay', 'payout-2', 1, 1, 'findable', 'unknown', 'payout 2',
     '{"minor_units": 5}', null, null, 'no answer within 20 s', null, 3, 2,
     '2026-01-01T00:00Z', '2026-01-01T00:01:20Z', null, null, false,
     '00000000-0000-7000-8000-000000000001', 't-2', '2026-01-01T00:00Z', '2026-01-01T00:01Z'),
    ('00000000-0000-7000-8000-0000000000e3', 'card.charge', 'invoice-3', 1, 1, 'keyed', 'refused', null,
     '{"minor_units": 7}', null, null, 'card declined', null, 3, 1,
     '2026-01-01T00:00Z', '2026-01-01T00:00:20Z', null, '2026-01-02T00:00Z', true,
     '00000000-0000-7000-8000-000000000002', 't-3', '2026-01-01T00:00Z', '2026-01-01T00:00:02Z'),
    ('00000000-0000-7000-8000-0000000000e4', 'portal.order', 'extract-4', 1, 1, 'blind', 'review', null,
     '{"parcel": "7/2"}', null, null, null, 'blind', 2, 1,
     '2026-01-01T00:00Z', '2026-01-01T00:00:20Z', null, null, false,
     '00000000-0000-7000-8000-000000000005', 't-4', '2026-01-01T00:00Z', '2026-01-01T00:05Z');

insert into payonce.effect_attempts (effect_id, attempt, event, detail, outcome, vendor_ref, message_id, token, created_at)
values
    ('00000000-0000-7000-8000-0000000000e1', 1, 'started', null, null, null,
     '00000000-0000-7000-8000-0000000000f1', 1, '2026-01-01T00:00Z'),
    ('00000000-0000-7000-8000-0000000000e1', 1, 'performed', null, '{"number": "n-1"}', 'n-1',
     '00000000-0000-7000-8000-0000000000f1', 1, '2026-01-01T00:00:01Z'),
    ('00000000-0000-7000-8000-0000000000e4', 1, 'started', null, null, null,
     '00000000-0000-7000-8000-000000000005', 3, '2026-01-01T00:00Z'),
    ('00000000-0000-7000-8000-0000000000e4', 1, 'gave_up', 'blind', null, null,
     '00000000-0000-7000-8000-000000000005', 4, '2026-01-01T00:05Z');
