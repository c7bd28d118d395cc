-- One row per change asked for, and a note of every change made.

create schema tally;

create table tally.rows (
    id bigint primary key,
    value bigint not null default 0 check (value >= 0),
    changed_by uuid
);

-- No unique constraint on purpose: a change made twice must be seen, not hidden by an error.
create table tally.changes (
    id bigint generated always as identity primary key,
    row_id bigint not null references tally.rows (id),
    message_id uuid not null,
    changed_at timestamptz not null
);

create index changes_row on tally.changes (row_id);

grant usage on schema tally to payonce_service;
grant select, insert, update on tally.rows to payonce_service;
grant select, insert on tally.changes to payonce_service;
