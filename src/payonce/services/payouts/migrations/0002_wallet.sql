-- The host wallet: which nonce carries which payment, every set of bytes that was signed for it, and what it may pay
-- without being asked. A nonce and its bytes are written once; only where a payment stands is ever changed.

create table payouts.wallets (
    address text collate "C" primary key check (length(address) between 1 and 200),
    chain_id bigint not null check (chain_id > 0),
    -- Locked by whoever takes it, to the end of the transaction that also keeps the signed bytes.
    next_nonce bigint not null check (next_nonce >= 0),
    -- The last nonce about which people were told that something is wrong with it.
    told_nonce bigint check (told_nonce >= 0),
    created_at timestamptz not null default payonce.due_now()
);

create table payouts.wallet_payments (
    -- The swap that it pays for; one that was paid is never paid again.
    swap_id text collate "C" primary key references payouts.swaps (id),
    wallet text collate "C" not null references payouts.wallets (address),
    nonce bigint not null check (nonce >= 0),
    to_address text collate "C" not null,
    asset text collate "C" not null,
    exponent smallint not null,
    amount_minor numeric(78) not null check (amount_minor > 0),
    -- signed: on record, sent or about to be. lost: its nonce was used by a transaction that is not ours.
    state text collate "C" not null default 'signed' check (state in ('signed', 'final', 'reverted', 'lost')),
    fee_minor numeric(78) check (fee_minor >= 0),
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    unique (wallet, nonce),
    constraint what_is_in_a_block_has_cost check ((fee_minor is not null) = (state in ('final', 'reverted')))
);

create index wallet_payments_day on payouts.wallet_payments (asset, exponent, created_at);
create index wallet_payments_open on payouts.wallet_payments (wallet, nonce) where state = 'signed';

-- One row for each set of bytes, before they are sent. All of a payment have its nonce, so the chain takes one of them.
create table payouts.wallet_attempts (
    hash text collate "C" primary key,
    wallet text collate "C" not null,
    nonce bigint not null,
    attempt smallint not null check (attempt > 0),
    raw text collate "C" not null,
    max_fee numeric(78) not null check (max_fee > 0),
    priority_fee numeric(78) not null check (priority_fee >= 0),
    gas_limit bigint not null check (gas_limit > 0),
    created_at timestamptz not null default payonce.due_now(),
    unique (wallet, nonce, attempt),
    foreign key (wallet, nonce) references payouts.wallet_payments (wallet, nonce)
);

-- The assets that the wallet pays at all, and how much without being asked; null is without bound.
create table payouts.wallet_limits (
    asset text collate "C" not null,
    exponent smallint not null,
    per_payment_minor numeric(78) check (per_payment_minor >= 0),
    per_day_minor numeric(78) check (per_day_minor >= 0),
    -- Below it the balance is an alert.
    low_balance_minor numeric(78) not null default 0 check (low_balance_minor >= 0),
    set_by text not null,
    set_at timestamptz not null default payonce.due_now(),
    primary key (asset, exponent)
);

insert into payouts.wallet_limits (asset, exponent, set_by) values ('ETH', 18, 'payonce');

-- What people agreed to be paid above a limit: for a part of a payout, whichever round of it is paid in the end.
create table payouts.wallet_clearances (
    unique_id char(16) collate "C" not null references payouts.payouts (unique_id),
    part smallint not null check (part > 0),
    amount_minor numeric(78) not null check (amount_minor > 0),
    cleared_by text not null,
    cleared_at timestamptz not null default payonce.due_now(),
    primary key (unique_id, part, amount_minor)
);

-- What came back of a deposit, by the chain's word. The key is the promise that no transaction is counted twice.
create table payouts.refunds (
    hash text collate "C" primary key check (hash = lower(hash) and length(hash) between 1 and 100),
    swap_id text collate "C" not null references payouts.swaps (id),
    amount_minor numeric(78) not null check (amount_minor > 0),
    -- How much of it is of the deposit: all of it, unless more came than was missing.
    counted_minor numeric(78) not null check (counted_minor between 0 and amount_minor),
    created_at timestamptz not null default payonce.due_now()
);

create index refunds_swaps on payouts.refunds (swap_id);

grant select, insert on payouts.wallets, payouts.wallet_payments, payouts.wallet_attempts, payouts.wallet_limits,
    payouts.wallet_clearances, payouts.refunds to payonce_service;
grant update (next_nonce, told_nonce) on payouts.wallets to payonce_service;
grant update (state, fee_minor, updated_at) on payouts.wallet_payments to payonce_service;
grant update (per_payment_minor, per_day_minor, low_balance_minor, set_by, set_at) on payouts.wallet_limits
    to payonce_service;
