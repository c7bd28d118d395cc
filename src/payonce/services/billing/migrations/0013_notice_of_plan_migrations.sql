-- How many days before a change of price its customer is told. 0: migrations from before this, and those that a process of
-- the version before orders.
alter table subscriptions.plan_migrations
    add column notice_days smallint not null default 0 check (notice_days between 0 and 366);

-- In the customer's time. A scheduled change is applied with the first period that ends at or after it; null: with the
-- next one.
alter table subscriptions.plan_changes
    add column not_before timestamptz,
    add constraint only_scheduled_waits check (not_before is null or at_period_end);
