-- Credit is an account with entries: each grant, use, payout, expiry and adjustment is a row with its reason. The balance in
-- subscriptions.credits is the sum of the entries; whoever changes it locks its row first.

alter table subscriptions.credits
    -- Grows with every entry: a person who decides about the balance decides about the one that they saw.
    add column revision integer not null default 0 check (revision >= 0);

-- A payout gives credit back as money: through payments to the card of an earlier charge, or by hand (bank, cash).
create table subscriptions.credit_payouts (
    id text collate "C" primary key check (length(id) between 1 and 100),
    account_id text collate "C" not null references subscriptions.accounts (id),
    currency text collate "C" not null check (currency ~ '^[A-Z]{3}$'),
    exponent smallint not null check (exponent between 0 and 4),
    amount_minor bigint not null check (amount_minor > 0),
    way text collate "C" not null check (way in ('card', 'by_hand')),
    -- The charge that the money goes back through, and the invoice that it paid.
    invoice_id text collate "C" references subscriptions.invoices (id),
    transaction_id text collate "C",
    state text collate "C" not null check (state in ('pending', 'succeeded', 'failed')),
    -- The refund at payments.
    refund_id text collate "C" unique,
    failure text,
    reason text not null check (length(reason) between 1 and 500),
    asked_by text not null check (length(asked_by) between 1 and 400),
    at timestamptz not null,
    trace_id text collate "C",
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    ended_at timestamptz,
    constraint a_card_has_a_charge check ((way = 'card') = (transaction_id is not null and invoice_id is not null)),
    constraint by_hand_is_over check (way = 'card' or state = 'succeeded'),
    constraint ended_payout_says_when check ((state = 'pending') = (ended_at is null)),
    constraint failed_payout_says_why check ((state = 'failed') = (failure is not null)),
    constraint to_a_card_by_a_refund check (way = 'by_hand' or state <> 'succeeded' or refund_id is not null)
);

create index credit_payouts_of on subscriptions.credit_payouts (account_id, created_at, id);
create index credit_payouts_of_invoice on subscriptions.credit_payouts (invoice_id) where invoice_id is not null;
create index credit_payouts_pending on subscriptions.credit_payouts (created_at) where state = 'pending';

-- Append-only: the service role may read and insert, and nothing else.
create table subscriptions.credit_entries (
    id bigint generated always as identity primary key,
    account_id text collate "C" not null references subscriptions.accounts (id),
    currency text collate "C" not null check (currency ~ '^[A-Z]{3}$'),
    exponent smallint not null check (exponent between 0 and 4),
    kind text collate "C" not null check (kind in ('opening', 'granted', 'used', 'paid_out', 'expired', 'adjusted')),
    -- Above zero the customer has more. A use is taken back when its invoice is, a payout when it fails.
    minor bigint not null check (minor <> 0),
    balance_minor bigint not null check (balance_minor >= 0),
    -- What happened, once: a repetition has the same key.
    entry_key text collate "C" not null unique check (length(entry_key) between 1 and 200),
    invoice_id text collate "C",
    payout_id text collate "C" references subscriptions.credit_payouts (id),
    reason text not null check (length(reason) between 1 and 500),
    actor text not null check (length(actor) between 1 and 400),
    -- In the customer's time.
    at timestamptz not null,
    trace_id text collate "C",
    created_at timestamptz not null default payonce.due_now(),
    constraint grants_and_expiry_have_a_sign check (
        case when kind in ('opening', 'granted') then minor > 0 when kind = 'expired' then minor < 0 else true end),
    constraint payouts_are_named check ((kind = 'paid_out') = (payout_id is not null)),
    constraint invoices_are_named check ((kind in ('granted', 'used')) = (invoice_id is not null))
);

create index credit_entries_of on subscriptions.credit_entries (account_id, currency, id);
create index credit_entries_of_invoice on subscriptions.credit_entries (invoice_id) where invoice_id is not null;
create index credit_entries_of_payout on subscriptions.credit_entries (payout_id) where payout_id is not null;

grant select, insert on subscriptions.credit_entries to payonce_service;
grant select, insert, update on subscriptions.credit_payouts to payonce_service;

-- What customers have now. The ledger knows it already, so it gets no posting.
insert into subscriptions.credit_entries
    (account_id, currency, exponent, kind, minor, balance_minor, entry_key, reason, actor, at)
select c.account_id, c.currency, c.exponent, 'opening', c.minor, c.minor, 'opening:' || c.account_id || ':' || c.currency,
    'credit from before entries were kept', 'upgrade', subscriptions.time_of(a.test_clock_id)
from subscriptions.credits c join subscriptions.accounts a on a.id = c.account_id where c.minor > 0
order by c.account_id, c.currency;

update subscriptions.credits set revision = 1 where minor > 0;

-- At payments: a refund that pays out credit is no refund of what the charge was for. A change of plan that comes later
-- gives back as much as if there had been none, and the credit that it pays out is no longer kept from refunds.
alter table payments.refunds
    add column from_credit boolean not null default false,
    add constraint credit_is_paid_out_by_the_gateway check (not (from_credit and outside));

alter table payments.transactions
    -- Of what was refunded or is being refunded, what paid out credit.
    add column paid_out_minor bigint not null default 0,
    add constraint paid_out_within_refunds check (paid_out_minor between 0 and refunded_minor + refunding_minor);

create or replace function payments.going_back(charges text[]) returns table (transaction_id text, minor bigint)
language sql volatile as $$
    select t.id, t.refunded_minor + t.refunding_minor - t.paid_out_minor from payments.transactions t
    where t.id = any (charges) order by t.id for update
$$;

create or replace function payments.hold_credit(change text, charge text, wanted bigint) returns bigint
language sql volatile as $$
    with held as (
        insert into payments.credits_held (change_id, transaction_id, minor)
        select change, t.id, least(wanted, t.amount_minor - t.credited_minor)
        from payments.transactions t where t.id = charge
        on conflict do nothing returning transaction_id, minor
    )
    update payments.transactions t
    set credited_minor = t.credited_minor + h.minor, updated_at = payonce.due_now()
    from held h where t.id = h.transaction_id
    returning greatest(
        t.refunded_minor + t.refunding_minor - t.paid_out_minor + t.credited_minor - t.amount_minor, 0)
$$;
