-- What the built-in scenarios keep: payments with their states, and totals that only the fence of a commit keeps right.

create schema crash;

create table crash.payments (
    id text primary key,
    minor bigint not null check (minor > 0),
    state text not null default 'new'
        check (state in ('new', 'paying', 'paid', 'rejected', 'crediting', 'credited', 'returning', 'returned')),
    number text,
    told boolean not null default false
);

-- No key and no state to compare with, on purpose: adding twice must be seen.
create table crash.totals (
    name text primary key,
    count bigint not null default 0
);

grant usage on schema crash to payonce_service;
grant select, insert, update on crash.payments, crash.totals to payonce_service;
