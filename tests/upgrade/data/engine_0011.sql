-- What migration 0011 added: freezes, velocity limits, thresholds and approvals.

insert into payonce.freezes (everything, vendor, asset, reason, frozen_by, frozen_at, until, lifted_by, lifted_at, lifted_why)
values
    (false, 'bank', 'EUR', 'pays twice', 'ada', '2026-01-01T00:00Z', '2026-01-01T02:00Z', null, null, null),
    (true, null, null, 'look first', 'ada', '2026-01-01T03:00Z', null, 'bob', '2026-01-01T03:10Z', 'mended');

insert into payonce.velocity_limits (asset, exponent, vendor, window_s, most_minor, set_by, set_at)
values
    ('EUR', 2, null, 3600, 1000000, 'ada', '2026-01-01T00:00Z'),
    ('ETH', 18, 'changenow', 86400, 123456789012345678901234567890, 'ada', '2026-01-01T00:00Z');

insert into payonce.approval_thresholds (asset, exponent, above_minor, set_by, set_at)
values ('EUR', 2, 100000, 'ada', '2026-01-01T00:00Z');

insert into payonce.approvals (
    action, subject, argument, text, amounts, why, asked_by, asked_at, expires_at, state, decided_by, decided_at,
    decided_why, result)
values
    ('answer review', '00000000-0000-7000-8000-0000000000e4', '{"effect_id": "00000000-0000-7000-8000-0000000000e4"}',
     'answer did_not for portal.order extract-4:1 (2000.00 EUR)', '[["EUR", 2, "200000"]]', 'not in their list', 'ada',
     '2026-01-01T01:00Z', '2026-01-02T01:00Z', 'waiting', null, null, null, null),
    ('redrive', 'pay 0123456789abcdef', '{"queue": "pay"}', 'redrive 2 parked messages of pay (2000.00 EUR)',
     '[["EUR", 2, "200000"]]', 'the vendor is back', 'ada', '2026-01-01T01:00Z', '2026-01-02T01:00Z', 'granted', 'bob',
     '2026-01-01T01:05Z', 'agreed', '{"queue": "pay", "redriven": 2}');
