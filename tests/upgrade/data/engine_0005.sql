-- What migration 0005 added: a plain posting, one over a guarded account, and a snapshot behind the first.

insert into payonce.accounts (id, path, asset, exponent, guarded, opened_at) overriding system value values
    (1, 'payouts/clients', 'ETH', 18, false, '2026-01-01T00:00Z'),
    (2, 'payouts/host_wallet', 'ETH', 18, false, '2026-01-01T00:00Z'),
    (3, 'budgets/refunds', 'ETH', 18, true, '2026-01-01T00:00Z');
insert into payonce.guarded_balances (account_id, balance, minimum, maximum) values (3, 7, 0, null);
insert into payonce.postings (id, key, reference_kind, reference_id, trace_id, description, posted_at)
    overriding system value values
    (1, 'pay:1', 'payout', 'order-1', 't-1', 'paid', '2026-01-01T00:00Z'),
    (2, 'refund:1', 'payout', 'order-1', null, '', '2026-01-01T06:00Z');
insert into payonce.posting_lines (posting_id, account_id, xact, posted_at, number, minor) values
    (1, 1, '100', '2026-01-01T00:00Z', 1, -123456789012345678901234567890),
    (1, 2, '100', '2026-01-01T00:00Z', 2, 123456789012345678901234567890),
    (2, 2, '101', '2026-01-01T06:00Z', 1, -7),
    (2, 3, '101', '2026-01-01T06:00Z', 2, 7);
insert into payonce.balance_snapshots (account_id, horizon, balance, posted_until) values
    (1, '101', -123456789012345678901234567890, '2026-01-01T00:00Z'),
    (2, '101', 123456789012345678901234567890, '2026-01-01T00:00Z');
update payonce.ledger_horizon set horizon = '101';
select setval(pg_get_serial_sequence('payonce.accounts', 'id'), 3), setval(pg_get_serial_sequence('payonce.postings', 'id'), 2);
