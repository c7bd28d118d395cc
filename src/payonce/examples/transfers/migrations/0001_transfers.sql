-- One row per transfer: where it stands, and the banks' own names for what they did.

create schema transfers;

create table transfers.transfers (
    id text collate "C" primary key check (length(id) between 1 and 100),
    -- At Northbank.
    source text collate "C" not null,
    -- At Southbank.
    target text collate "C" not null,
    asset text collate "C" not null,
    exponent smallint not null,
    amount_minor numeric(78) not null check (amount_minor > 0),
    state text collate "C" not null default 'requested' check (state in (
        'requested', 'withdrawing', 'refused', 'withdrawn', 'paying', 'paid', 'bounced', 'refunding', 'refunded',
        'held')),
    -- Why a bank said no.
    reason text,
    withdrawal_id text collate "C" unique,
    payment_id text collate "C" unique,
    refund_id text collate "C" unique,
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    constraint withdrawn_before_paid check (
        (withdrawal_id is null) = (state in ('requested', 'withdrawing', 'refused'))),
    constraint paid_by_a_payment check ((payment_id is not null) = (state = 'paid')),
    constraint refunded_by_a_refund check ((refund_id is not null) = (state = 'refunded')),
    constraint refusals_have_a_reason check (
        reason is not null or state not in ('refused', 'bounced', 'refunding', 'refunded', 'held'))
);

create index transfers_state on transfers.transfers (state)
    where state in ('requested', 'withdrawing', 'withdrawn', 'paying', 'bounced', 'refunding', 'held');

grant usage on schema transfers to payonce_service;
grant select, insert, update on transfers.transfers to payonce_service;
