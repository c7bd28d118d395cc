-- Cards as the gateway's tokens, transactions, refunds, and what subscriptions are told of them. Accounts, subscriptions
-- and invoices are another service's: here they are names.

create schema payments;

-- A token of the gateway and what people recognise it by; a card number is never here.
create table payments.payment_methods (
    id text collate "C" primary key check (length(id) between 1 and 100),
    account_id text collate "C" not null check (length(account_id) between 1 and 100),
    token text collate "C" not null check (length(token) between 1 and 200),
    brand text collate "C" not null check (length(brand) between 1 and 40),
    last4 text collate "C" not null check (last4 ~ '^[0-9]{4}$'),
    exp_month smallint not null check (exp_month between 1 and 12),
    exp_year smallint not null check (exp_year between 2000 and 9999),
    is_default boolean not null default false,
    removed_at timestamptz,
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    constraint removed_is_no_default check (removed_at is null or not is_default)
);

create unique index payment_methods_default on payments.payment_methods (account_id) where is_default;
create unique index payment_methods_token on payments.payment_methods (token) where removed_at is null;
create index payment_methods_of on payments.payment_methods (account_id, created_at);

create table payments.transactions (
    id text collate "C" primary key check (length(id) between 1 and 100),
    -- What it is a charge for, and which try: the gateway's idempotency key, so that a further try is a new charge.
    charge_key text collate "C" not null unique check (length(charge_key) between 1 and 200),
    account_id text collate "C" not null check (length(account_id) between 1 and 100),
    subscription_id text collate "C",
    invoice_id text collate "C",
    generation integer not null default 1 check (generation > 0),
    action text collate "C" not null check (action in ('initial', 'trial', 'renewal', 'upgrade', 'downgrade', 'payment')),
    -- Chosen when it is charged.
    payment_method_id text collate "C" references payments.payment_methods (id),
    currency text collate "C" not null check (currency ~ '^[A-Z]{3}$'),
    exponent smallint not null check (exponent between 0 and 4),
    amount_minor bigint not null check (amount_minor > 0),
    state text collate "C" not null default 'pending' check (state in (
        'pending', 'succeeded', 'failed', 'refunded', 'partially_refunded')),
    gateway_id text collate "C" unique,
    decline_code text collate "C",
    -- A new card is needed: trying this one again is of no use.
    hard boolean not null default false,
    reason text,
    -- Given back, and promised to be given back: never more than was taken.
    refunded_minor bigint not null default 0 check (refunded_minor >= 0),
    refunding_minor bigint not null default 0 check (refunding_minor >= 0),
    -- What of it came back as credit when the plan changed, as subscriptions told: a refund that does not say how much
    -- is of what is left beyond that.
    credited_minor bigint not null default 0,
    metadata jsonb not null default '{}' check (jsonb_typeof(metadata) = 'object'),
    trace_id text collate "C",
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    ended_at timestamptz,
    constraint back_at_most_what_was_taken check (refunded_minor + refunding_minor <= amount_minor),
    constraint credited_at_most_what_was_taken check (credited_minor between 0 and amount_minor),
    constraint given_back_only_what_was_taken check (
        state in ('succeeded', 'refunded', 'partially_refunded') or refunded_minor + refunding_minor = 0),
    constraint taken_says_where check (
        (state in ('succeeded', 'refunded', 'partially_refunded')) = (gateway_id is not null and decline_code is null)),
    constraint failed_says_why check (state <> 'failed' or reason is not null),
    constraint refunds_are_told_by_the_state check (
        (state = 'refunded') = (refunded_minor = amount_minor)
        and (state = 'partially_refunded') = (refunded_minor > 0 and refunded_minor < amount_minor)),
    constraint ended_says_when check ((state = 'pending') = (ended_at is null))
);

create index transactions_of on payments.transactions (account_id, created_at, id);
create index transactions_of_invoice on payments.transactions (invoice_id) where invoice_id is not null;
create index transactions_pending on payments.transactions (created_at) where state = 'pending';

create table payments.refunds (
    id text collate "C" primary key check (length(id) between 1 and 100),
    refund_key text collate "C" not null unique check (length(refund_key) between 1 and 200),
    transaction_id text collate "C" not null references payments.transactions (id),
    amount_minor bigint not null check (amount_minor > 0),
    reason text not null check (length(reason) between 1 and 500),
    state text collate "C" not null default 'pending' check (state in ('pending', 'succeeded', 'failed')),
    gateway_id text collate "C" unique,
    failure text,
    trace_id text collate "C",
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    ended_at timestamptz,
    constraint given_says_where check ((state = 'succeeded') = (gateway_id is not null)),
    constraint failed_refund_says_why check ((state = 'failed') = (failure is not null)),
    constraint ended_refund_says_when check ((state = 'pending') = (ended_at is null))
);

create index refunds_of on payments.refunds (transaction_id);
create index refunds_pending on payments.refunds (created_at) where state = 'pending';

-- What subscriptions are told, in the bytes that are signed and sent, however often.
create table payments.notifications (
    event_id text collate "C" primary key check (length(event_id) between 1 and 200),
    transaction_id text collate "C" references payments.transactions (id),
    refund_id text collate "C" references payments.refunds (id),
    account_id text collate "C" not null,
    action text collate "C" not null,
    body bytea not null,
    delivered_at timestamptz,
    trace_id text collate "C",
    created_at timestamptz not null default payonce.due_now()
);

create index notifications_undelivered on payments.notifications (created_at) where delivered_at is null;
create index notifications_of on payments.notifications (transaction_id) where transaction_id is not null;

-- Every attempt to deliver one, with what was answered, cut and without secrets.
create table payments.webhook_outbound_requests (
    id bigint generated always as identity primary key,
    event_id text collate "C" not null references payments.notifications (event_id),
    way text collate "C" not null check (way in ('immediate', 'queued')),
    url text not null,
    response_code smallint,
    response_body text,
    error text,
    elapsed_ms integer not null check (elapsed_ms >= 0),
    created_at timestamptz not null default payonce.due_now()
);

create index webhook_outbound_requests_of on payments.webhook_outbound_requests (event_id, id);
create index webhook_outbound_requests_newest on payments.webhook_outbound_requests (created_at);

create view payments.job_logs as
    select id, queue, message_id, correlation_id, idempotency_key, trace_id, status, attempts, last_error,
        next_retry_at, action, worker, started_at, created_at, updated_at
    from payonce.job_logs where queue like 'q:pay:%';

grant usage on schema payments to payonce_service;
grant select, insert, update on payments.payment_methods, payments.transactions, payments.refunds, payments.notifications
    to payonce_service;
grant select, insert, delete on payments.webhook_outbound_requests to payonce_service;
grant select on payments.job_logs to payonce_service;
