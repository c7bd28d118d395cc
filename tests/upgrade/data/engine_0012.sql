-- What migration 0012 added: statements, what did not match, and quarantine.

insert into payonce.statement_sources (vendor, mirror, kinds, lag_s, covered_since, covered_until, registered_at)
values ('bank', 'bank/account', '{bank.pay}', 60, '2026-01-01T00:00Z', '2026-01-01T11:00Z', '2026-01-01T00:00Z');

insert into payonce.reconcile_runs (
    id, vendor, since, until, reached, state, lines, found, adopted, unmatched, missing, settled, begun_by, begun_at,
    finished_at)
values
    ('00000000-0000-7000-8000-0000000000a1', 'bank', '2026-01-01T00:00Z', '2026-01-01T11:00Z', '2026-01-01T11:00Z',
     'finished', 2, 0, 0, 1, 0, 0, 'ann', '2026-01-01T11:00Z', '2026-01-01T11:01Z'),
    ('00000000-0000-7000-8000-0000000000a2', 'bank', '2026-01-01T10:00Z', '2026-01-01T12:00Z', '2026-01-01T10:00Z',
     'running', 0, 0, 0, 0, 0, 0, 'schedule', '2026-01-01T12:00Z', null);

insert into payonce.statement_lines (
    vendor, kind, vendor_ref, reference, asset, exponent, amount_minor, at, outcome, effect_id, run_id, first_seen_at)
values
    ('bank', 'bank.pay', 'n-1', 'payout-1:1', 'EUR', 2, -123456789012345678901234567890, '2026-01-01T00:00:01Z',
     '{"number": "n-1"}', '00000000-0000-7000-8000-0000000000e1', '00000000-0000-7000-8000-0000000000a1',
     '2026-01-01T11:00Z'),
    ('bank', 'bank.fee', 'n-2', null, 'EUR', 2, -7, '2026-01-01T01:00Z', null, null,
     '00000000-0000-7000-8000-0000000000a1', '2026-01-01T11:00Z');

insert into payonce.unmatched (
    id, vendor, mirror, direction, kind, vendor_ref, reference, effect_id, asset, exponent, amount_minor, at,
    first_seen_at, state, explained_by, explanation, account, closed_by, closed_at, note)
values
    ('00000000-0000-7000-8000-0000000000b1', 'bank', 'bank/account', 'theirs', 'bank.fee', 'n-2', null, null, 'EUR', 2,
     -7, '2026-01-01T01:00Z', '2026-01-01T11:00Z', 'open', 'ann', 'the yearly fee', null, null, null, null),
    ('00000000-0000-7000-8000-0000000000b2', 'bank', 'bank/account', 'ours', 'bank.pay', null, 'payout-2:1',
     '00000000-0000-7000-8000-0000000000e2', 'EUR', 2, 5, '2026-01-01T00:01Z', '2026-01-01T11:00Z', 'written_off', null,
     null, 'losses/bank', 'ann', '2026-01-01T11:30Z', 'the bank has no trace of it');

update payonce.served_identity set identity = 'system 1, timeline 00000001, database 5', seen_at = '2026-01-01T12:00Z';

insert into payonce.quarantines (reason, lost_since, began_at, revision, released_at, released_by, accepted)
values
    ('restored from a backup', '2025-12-31T00:00Z', '2026-01-01T00:00Z', 2, '2026-01-01T02:00Z', 'ann', 'nothing was sent'),
    ('the disk was set back', '2025-12-31T00:00Z', '2026-01-01T03:00Z', 1, null, null, null);
