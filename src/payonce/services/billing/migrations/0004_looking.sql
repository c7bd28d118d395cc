-- What people look for: how months that are over went, and what was given up; at payments one subscription's charges,
-- charges by day, and what was told, the newest first. Each index is one more write for whoever inserts; none is on a column
-- that changes later, but for the few invoices that are given up.

create index transactions_newest on payments.transactions (created_at);
create index transactions_of_subscription on payments.transactions (subscription_id, created_at)
    where subscription_id is not null;
create index notifications_newest on payments.notifications (created_at, event_id);
create index notifications_of_account on payments.notifications (account_id);

-- Few, and looked for among many that were paid.
create index invoices_given_up on subscriptions.invoices (issued_at, id) where state in ('void', 'uncollectible');

-- Months that are over, by UTC, of customers who are on no test clock.
create table subscriptions.kept_months (
    currency text collate "C" not null check (currency ~ '^[A-Z]{3}$'),
    exponent smallint not null check (exponent between 0 and 4),
    begin_at timestamptz not null,
    -- At its end: what one month brings, of how many subscriptions; and who came and went within it.
    recurring_minor bigint not null check (recurring_minor >= 0),
    running bigint not null check (running >= 0),
    won bigint not null check (won >= 0),
    lost bigint not null check (lost >= 0),
    kept_at timestamptz not null default payonce.due_now(),
    primary key (currency, exponent, begin_at)
);

grant select, insert, update on subscriptions.kept_months to payonce_service;
