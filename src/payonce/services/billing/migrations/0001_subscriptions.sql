-- Accounts, plans, subscriptions, invoices and usage. Amounts are whole minor units of their currency. Whatever falls due
-- is a row judged by the customer's time: the store's clock, or the test clock that the customer is on.

create schema subscriptions;

-- A clock that people move, for customers who are there to try things out. It stands at now_at and goes towards
-- target_at, from one thing that falls due to the next.
create table subscriptions.test_clocks (
    id text collate "C" primary key check (length(id) between 1 and 100),
    name text not null check (length(name) between 1 and 200),
    now_at timestamptz not null,
    target_at timestamptz not null,
    -- Who made it: an account, or the holder of an API key.
    made_by text collate "C" not null,
    -- How often a message to move it was put; part of the message's key.
    puts integer not null default 0 check (puts >= 0),
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    constraint never_set_back check (target_at >= now_at)
);

create function subscriptions.time_of(clock text) returns timestamptz
    language sql stable
as $$
    select case when clock is null then payonce.due_now()
        else (select now_at from subscriptions.test_clocks where id = clock) end
$$;

create table subscriptions.accounts (
    id text collate "C" primary key check (length(id) between 1 and 100),
    -- In small letters: two spellings are one person.
    email text collate "C" not null unique check (email = lower(email) and length(email) between 3 and 254),
    password_hash text not null,
    name text not null default '' check (length(name) <= 200),
    role text collate "C" not null default 'customer' check (role in ('customer', 'operator')),
    time_zone text collate "C" not null default 'UTC' check (length(time_zone) between 1 and 100),
    locale text collate "C" not null default 'en' check (length(locale) between 2 and 20),
    test_clock_id text collate "C" references subscriptions.test_clocks (id),
    -- Grows when all tokens given out so far are to count no longer, as with a new password.
    token_version integer not null default 0 check (token_version >= 0),
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now()
);

create index accounts_newest on subscriptions.accounts (created_at, id);
create index accounts_by_clock on subscriptions.accounts (test_clock_id) where test_clock_id is not null;

-- Each can be used once. A used one that comes again ends its whole family: somebody else has it.
create table subscriptions.refresh_tokens (
    digest bytea primary key check (length(digest) = 32),
    account_id text collate "C" not null references subscriptions.accounts (id),
    family text collate "C" not null,
    expires_at timestamptz not null,
    used_at timestamptz,
    revoked_at timestamptz,
    created_at timestamptz not null default payonce.due_now()
);

create index refresh_tokens_of on subscriptions.refresh_tokens (account_id);
create index refresh_tokens_family on subscriptions.refresh_tokens (family);
create index refresh_tokens_expiry on subscriptions.refresh_tokens (expires_at);

-- One row per version. What was sold stays what it was: only its retirement is written later.
create table subscriptions.plans (
    id text collate "C" primary key check (length(id) between 1 and 100),
    code text collate "C" not null check (code ~ '^[a-z0-9][a-z0-9_-]{0,59}$'),
    version integer not null check (version > 0),
    name text not null check (length(name) between 1 and 200),
    price_minor bigint not null check (price_minor >= 0),
    currency text collate "C" not null check (currency ~ '^[A-Z]{3}$'),
    exponent smallint not null check (exponent between 0 and 4),
    interval_unit text collate "C" not null check (interval_unit in ('day', 'week', 'month', 'year')),
    interval_count smallint not null check (interval_count between 1 and 366),
    -- A trial: how long it lasts, and the code of the plan that follows. Its price is charged and given back.
    trial_days smallint check (trial_days between 1 and 366),
    renews_to text collate "C",
    -- Limits by feature; null is no limit, and a feature that is not named is not included.
    features jsonb not null default '{}' check (jsonb_typeof(features) = 'object'),
    -- What becomes of a subscription whose dunning has ended without payment.
    after_dunning text collate "C" not null default 'unpaid' check (after_dunning in ('unpaid', 'canceled')),
    retired_at timestamptz,
    created_at timestamptz not null default payonce.due_now(),
    unique (code, version),
    constraint trials_become_something check ((trial_days is null) = (renews_to is null))
);

create unique index plans_current on subscriptions.plans (code) where retired_at is null;

create function subscriptions.refuse_change_of_plan() returns trigger
    language plpgsql
as $$
begin
    if to_jsonb(new) - 'retired_at' <> to_jsonb(old) - 'retired_at' or old.retired_at is not null then
        raise exception 'plan % was sold as it is: add a version instead', old.id using errcode = 'check_violation';
    end if;
    return new;
end
$$;

create trigger plans_stay_as_sold before update on subscriptions.plans
    for each row execute function subscriptions.refuse_change_of_plan();

create table subscriptions.subscriptions (
    id text collate "C" primary key check (length(id) between 1 and 100),
    account_id text collate "C" not null references subscriptions.accounts (id),
    plan_id text collate "C" not null references subscriptions.plans (id),
    state text collate "C" not null check (state in (
        'incomplete', 'incomplete_expired', 'trialing', 'active', 'past_due', 'unpaid', 'paused', 'canceled')),
    -- As the account had them when it began: a move of house does not move the day of payment.
    time_zone text collate "C" not null,
    test_clock_id text collate "C" references subscriptions.test_clocks (id),
    -- Period anchor_period begins at the anchor, and the n-th after it n intervals later. Null until the first payment;
    -- another one when a plan of another interval is taken up, a trial ends, or a pause was longer than its period.
    anchor_at timestamptz,
    anchor_period integer not null default 0 check (anchor_period >= 0),
    period integer not null default 0 check (period >= 0),
    period_start timestamptz,
    period_end timestamptz,
    trial_ends_at timestamptz,
    -- Taken up at the end of the period.
    next_plan_id text collate "C" references subscriptions.plans (id),
    cancel_at_period_end boolean not null default false,
    paused_at timestamptz,
    ended_at timestamptz,
    -- What the clock does next, and when, in the customer's time.
    due_at timestamptz,
    due_for text collate "C" check (due_for in ('expire', 'trial_end', 'renew', 'dun')),
    -- The moment whose message was put; until that has worked, the same moment is not put again.
    put_for timestamptz,
    reason text,
    -- Grows with every change: nothing is written from a stale read.
    revision integer not null default 0 check (revision >= 0),
    trace_id text collate "C",
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    constraint due_says_what check ((due_at is null) = (due_for is null)),
    constraint ended_in_the_end check ((state in ('incomplete_expired', 'canceled')) = (ended_at is not null)),
    constraint nothing_due_after_the_end check (
        state not in ('incomplete_expired', 'canceled', 'unpaid', 'paused') or due_at is null),
    constraint always_something_due check (
        state not in ('incomplete', 'trialing', 'active') or due_at is not null),
    constraint periods_go_forward check (period_end > period_start),
    constraint running_has_a_period check (
        state not in ('active', 'past_due', 'trialing') or (period_start is not null and period_end is not null)),
    constraint paused_since check ((state = 'paused') = (paused_at is not null))
);

create unique index subscriptions_one_at_a_time on subscriptions.subscriptions (account_id)
    where state not in ('incomplete_expired', 'canceled');
create index subscriptions_due on subscriptions.subscriptions (due_at)
    where due_at is not null and test_clock_id is null and put_for is distinct from due_at;
create index subscriptions_due_by_clock on subscriptions.subscriptions (test_clock_id, due_at)
    where due_at is not null and test_clock_id is not null;
create index subscriptions_by_clock on subscriptions.subscriptions (test_clock_id) where test_clock_id is not null;
create index subscriptions_by_account on subscriptions.subscriptions (account_id, created_at);
create index subscriptions_by_state on subscriptions.subscriptions (state, created_at);

-- A subscription's story, in the customer's time.
create table subscriptions.subscription_events (
    id bigint generated always as identity primary key,
    subscription_id text collate "C" not null references subscriptions.subscriptions (id),
    kind text collate "C" not null check (length(kind) between 1 and 60),
    from_state text collate "C",
    to_state text collate "C",
    detail jsonb not null default '{}',
    at timestamptz not null,
    trace_id text collate "C",
    created_at timestamptz not null default payonce.due_now()
);

create index subscription_events_of on subscriptions.subscription_events (subscription_id, id);
-- Who came and who went; a renewal of what is active is neither.
create index subscription_events_moves on subscriptions.subscription_events (at) where from_state is distinct from to_state;

-- Numbers without gaps: the row is locked until whoever took the number has committed. Customers on test clocks have
-- series of their own.
create table subscriptions.number_series (
    series text collate "C" not null,
    year smallint not null,
    last integer not null default 0 check (last >= 0),
    primary key (series, year)
);

create table subscriptions.invoices (
    id text collate "C" primary key check (length(id) between 1 and 100),
    number text collate "C" not null unique,
    account_id text collate "C" not null references subscriptions.accounts (id),
    subscription_id text collate "C" not null references subscriptions.subscriptions (id),
    action text collate "C" not null check (action in ('initial', 'trial', 'renewal', 'upgrade', 'downgrade')),
    plan_id text collate "C" not null references subscriptions.plans (id),
    -- Of the subscription; null for a change of plan within one.
    period integer check (period >= 0),
    period_start timestamptz not null,
    period_end timestamptz not null,
    currency text collate "C" not null check (currency ~ '^[A-Z]{3}$'),
    exponent smallint not null check (exponent between 0 and 4),
    -- The lines together, and what of it is to be charged: credit covers the rest, and what is below zero becomes credit.
    total_minor bigint not null,
    credit_minor bigint not null default 0 check (credit_minor >= 0),
    due_minor bigint not null check (due_minor >= 0),
    state text collate "C" not null default 'open' check (state in ('open', 'paid', 'void', 'uncollectible')),
    -- Grows with every new try to charge it; with the id it is the charge's key.
    generation integer not null default 0 check (generation >= 0),
    -- A charge was asked for and has not been answered.
    charging boolean not null default false,
    failures integer not null default 0 check (failures >= 0),
    first_failed_at timestamptz,
    decline_code text collate "C",
    -- The card itself is wrong: it is tried again with another one only.
    declined_hard boolean not null default false,
    -- Another card came while the last one was being charged: should that fail, it is tried with the new one at once.
    try_at_once boolean not null default false,
    transaction_id text collate "C",
    paid_at timestamptz,
    -- A trial's price is given back: it was asked for, and is not back yet.
    refunding boolean not null default false,
    refunded_minor bigint not null default 0 check (refunded_minor >= 0),
    -- When revenue is counted next; null when all of it is.
    earn_at timestamptz,
    issued_at timestamptz not null,
    trace_id text collate "C",
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    constraint due_is_what_credit_leaves check (due_minor = greatest(total_minor, 0) - credit_minor),
    constraint paid_says_when check ((state = 'paid') = (paid_at is not null)),
    constraint not_charged_after_the_end check (state = 'open' or not charging),
    constraint back_at_most_what_was_paid check (refunded_minor <= due_minor),
    constraint periods_have_length check (period_end > period_start)
);

-- Every period once.
create unique index invoices_one_per_period on subscriptions.invoices (subscription_id, period)
    where period is not null and state <> 'void';
create unique index invoices_one_change_at_a_time on subscriptions.invoices (subscription_id)
    where period is null and state = 'open';
create index invoices_newest on subscriptions.invoices (issued_at, id);
create index invoices_by_account on subscriptions.invoices (account_id, issued_at, id);
create index invoices_by_subscription on subscriptions.invoices (subscription_id, issued_at);
create index invoices_open on subscriptions.invoices (subscription_id, issued_at) where state = 'open';
create index invoices_to_earn on subscriptions.invoices (earn_at) where earn_at is not null;
create index invoices_refunding on subscriptions.invoices (subscription_id) where refunding;
create index invoices_transactions on subscriptions.invoices (transaction_id) where transaction_id is not null;

create table subscriptions.invoice_lines (
    invoice_id text collate "C" not null references subscriptions.invoices (id),
    line smallint not null check (line > 0),
    kind text collate "C" not null check (kind in ('period', 'unused', 'remaining')),
    text text not null check (length(text) between 1 and 500),
    plan_id text collate "C" not null references subscriptions.plans (id),
    amount_minor bigint not null,
    service_start timestamptz not null,
    service_end timestamptz not null,
    -- Of the amount, what was counted as revenue so far.
    earned_minor bigint not null default 0,
    -- From here on it is not in force: what was left of it was given back as the plan was left, earned at once as the
    -- subscription ended, or written off.
    closed_at timestamptz,
    primary key (invoice_id, line),
    constraint service_has_length check (service_end > service_start),
    constraint earned_within check (
        (amount_minor >= 0 and earned_minor between 0 and amount_minor)
        or (amount_minor < 0 and earned_minor between amount_minor and 0))
);

create table subscriptions.credit_notes (
    id text collate "C" primary key,
    number text collate "C" not null unique,
    invoice_id text collate "C" not null references subscriptions.invoices (id),
    -- The refund at payments that it answers; null when an invoice is taken back that was never paid.
    refund_id text collate "C" unique,
    amount_minor bigint not null check (amount_minor > 0),
    reason text not null check (length(reason) between 1 and 500),
    issued_at timestamptz not null,
    created_at timestamptz not null default payonce.due_now()
);

create index credit_notes_of on subscriptions.credit_notes (invoice_id);

-- What a customer is owed and uses up with the next invoices.
create table subscriptions.credits (
    account_id text collate "C" not null references subscriptions.accounts (id),
    currency text collate "C" not null,
    exponent smallint not null,
    minor bigint not null check (minor >= 0),
    updated_at timestamptz not null default payonce.due_now(),
    primary key (account_id, currency)
);

-- Money that was taken and fits no invoice, or not its amount: it goes back; what is of no invoice at all a person sees.
create table subscriptions.unapplied_payments (
    transaction_id text collate "C" primary key check (length(transaction_id) between 1 and 200),
    event_id text collate "C" not null,
    subscription_id text collate "C",
    invoice_id text collate "C",
    currency text collate "C" not null check (currency ~ '^[A-Z]{3}$'),
    exponent smallint not null check (exponent between 0 and 4),
    amount_minor bigint not null check (amount_minor > 0),
    returned_minor bigint not null default 0,
    refund_asked boolean not null,
    reason text not null check (length(reason) between 1 and 500),
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    constraint back_at_most_what_came check (returned_minor between 0 and amount_minor)
);

-- Usage: the counter says what is left in this period, the events tell repetitions, the totals are what is shown later.
create table subscriptions.usage_counters (
    subscription_id text collate "C" not null references subscriptions.subscriptions (id),
    feature text collate "C" not null check (length(feature) between 1 and 100),
    period_start timestamptz not null,
    used bigint not null default 0 check (used >= 0),
    updated_at timestamptz not null default payonce.due_now(),
    primary key (subscription_id, feature)
);

create table subscriptions.usage_events (
    account_id text collate "C" not null,
    event_id text collate "C" not null check (length(event_id) between 1 and 200),
    subscription_id text collate "C" not null,
    feature text collate "C" not null,
    delta bigint not null check (delta <> 0),
    -- As the counter stood after it: the answer, also to a repetition.
    used_after bigint not null,
    period_start timestamptz not null,
    at timestamptz not null,
    rolled boolean not null default false,
    created_at timestamptz not null default payonce.due_now(),
    primary key (account_id, event_id)
);

create index usage_events_to_roll on subscriptions.usage_events (created_at) where not rolled;
create index usage_events_of on subscriptions.usage_events (subscription_id, feature, at);

create table subscriptions.usage_totals (
    subscription_id text collate "C" not null references subscriptions.subscriptions (id),
    feature text collate "C" not null,
    period_start timestamptz not null,
    total bigint not null,
    events bigint not null check (events >= 0),
    updated_at timestamptz not null default payonce.due_now(),
    primary key (subscription_id, feature, period_start)
);

-- What payments told us, under the name and with the columns that its readers know.
create table subscriptions.payment_webhook_requests (
    id integer generated always as identity primary key,
    event_id text collate "C" not null unique check (length(event_id) between 1 and 200),
    payload jsonb not null,
    processed boolean not null default false,
    processed_at timestamptz,
    error_message text,
    retry_count integer not null default 0 check (retry_count >= 0),
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    constraint processed_says_when check (processed = (processed_at is not null))
);

create function subscriptions.touch() returns trigger
    language plpgsql
as $$
begin
    new.updated_at := payonce.due_now();
    return new;
end
$$;

create trigger payment_webhook_requests_touched before update on subscriptions.payment_webhook_requests
    for each row execute function subscriptions.touch();

-- The job log of these queues alone.
create view subscriptions.job_logs as
    select id, queue, message_id, correlation_id, idempotency_key, trace_id, status, attempts, last_error,
        next_retry_at, action, worker, started_at, created_at, updated_at
    from payonce.job_logs where queue like 'q:sub:%';

insert into subscriptions.plans
    (id, code, version, name, price_minor, currency, exponent, interval_unit, interval_count, trial_days, renews_to, features)
values
    ('basic-v1', 'basic', 1, 'Basic', 2900, 'AED', 2, 'month', 1, null, null, '{"api_calls": 1000, "projects": 3}'),
    ('pro-v1', 'pro', 1, 'Pro', 9900, 'AED', 2, 'month', 1, null, null, '{"api_calls": 10000, "projects": 20}'),
    ('enterprise-v1', 'enterprise', 1, 'Enterprise', 29900, 'AED', 2, 'month', 1, null, null,
        '{"api_calls": null, "projects": null}'),
    ('annual-pro-v1', 'annual-pro', 1, 'Annual Pro', 99900, 'AED', 2, 'year', 1, null, null,
        '{"api_calls": 10000, "projects": 20}'),
    ('trial-v1', 'trial', 1, 'Trial', 100, 'AED', 2, 'day', 14, 14, 'basic', '{"api_calls": 100, "projects": 1}');

grant usage on schema subscriptions to payonce_service;
grant select, insert, update on
    subscriptions.test_clocks, subscriptions.accounts, subscriptions.plans, subscriptions.subscriptions,
    subscriptions.number_series, subscriptions.invoices, subscriptions.invoice_lines, subscriptions.credits,
    subscriptions.unapplied_payments,
    subscriptions.usage_counters, subscriptions.usage_totals, subscriptions.payment_webhook_requests
    to payonce_service;
grant select, insert on subscriptions.subscription_events, subscriptions.credit_notes to payonce_service;
grant select, insert, update, delete on subscriptions.refresh_tokens, subscriptions.usage_events to payonce_service;
grant select on subscriptions.job_logs to payonce_service;
