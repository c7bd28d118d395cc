-- What migration 0007 added: what an effect moves, and for whom.

insert into payonce.effects (
    id, kind, key, generation, version, safety, state, scope, request, outcome, vendor_ref, revision, attempt,
    first_attempt_at, sent_until, message_id, trace_id, created_at, updated_at, service, tenant, asset,
    exponent, amount_minor)
values
    ('00000000-0000-7000-8000-0000000000e7', 'bank.pay', 'payout-7', 1, 1, 'keyed', 'performed', 'payout 7',
     '{"minor_units": 123456789012345678901234567890}', '{"number": "n-7"}', 'n-7', 2, 1, '2026-01-02T00:00Z',
     '2026-01-02T00:00:20Z', '00000000-0000-7000-8000-0000000000f7', 't-7', '2026-01-02T00:00Z',
     '2026-01-02T00:00:01Z', 'payouts', 'tenant-a', 'ETH', 18, 123456789012345678901234567890),
    ('00000000-0000-7000-8000-0000000000e8', 'portal.look', 'extract-8', 1, 1, 'harmless', 'unknown', null,
     '{"parcel": "7/2"}', null, null, 2, 1, '2026-01-02T00:00Z', '2026-01-02T00:00:20Z',
     '00000000-0000-7000-8000-0000000000f8', 't-8', '2026-01-02T00:00Z', '2026-01-02T00:00:02Z', '', null,
     null, null, null);

insert into payonce.effects (
    id, kind, key, generation, version, safety, state, request, reason, revision, attempt, first_attempt_at, sent_until,
    superseded, message_id, trace_id, created_at, updated_at, horizon_s, ruled_out, burnt, intent_due)
values
    ('00000000-0000-7000-8000-0000000000e9', 'bank.wire', 'payout-9', 1, 1, 'findable', 'abandoned', '{"minor_units": 9}',
     'its reference was burnt', 4, 1, '2026-01-02T00:00Z', '2026-01-02T00:00:20Z', true,
     '00000000-0000-7000-8000-0000000000f9', 't-9', '2026-01-02T00:00Z', '2026-01-02T00:02Z', 60, false, true, true),
    ('00000000-0000-7000-8000-0000000000ea', 'bank.wire', 'payout-10', 1, 1, 'findable', 'unknown', '{"minor_units": 10}',
     null, 4, 1, '2026-01-02T00:00Z', '2026-01-02T00:00:20Z', false, '00000000-0000-7000-8000-0000000000fa', 't-10',
     '2026-01-02T00:00Z', '2026-01-02T00:02Z', 60, true, false, false);
