-- Customers that a merchant's back end creates: with an id of the merchant's own, and without a password until they set one.

alter table subscriptions.accounts
    -- Null: nobody can log in.
    alter column password_hash drop not null,
    -- The merchant's own id for the customer, as it came: small and capital letters differ.
    add column external_id text collate "C" check (length(external_id) between 1 and 200),
    -- Grows with every edit: nothing is written from a stale read.
    add column revision integer not null default 0 check (revision >= 0);

create unique index accounts_by_external_id on subscriptions.accounts (external_id) where external_id is not null;

-- What a customer was called before each edit: invoices stay as they were issued.
create table subscriptions.customer_edits (
    account_id text collate "C" not null references subscriptions.accounts (id),
    revision integer not null check (revision >= 0),
    email text collate "C" not null,
    name text not null,
    locale text collate "C" not null,
    replaced_at timestamptz not null default payonce.due_now(),
    primary key (account_id, revision)
);

-- At most one for each account, by which its customer sets a password without knowing one. A row leaves when it is used.
create table subscriptions.password_tokens (
    account_id text collate "C" primary key references subscriptions.accounts (id),
    digest bytea not null unique check (length(digest) = 32),
    -- The account's when this was made: a password or a role that was changed since makes it worthless.
    token_version integer not null check (token_version >= 0),
    expires_at timestamptz not null,
    made_by text not null check (length(made_by) between 1 and 200),
    created_at timestamptz not null default payonce.due_now()
);

grant select, insert on subscriptions.customer_edits to payonce_service;
grant select, insert, update, delete on subscriptions.password_tokens to payonce_service;
