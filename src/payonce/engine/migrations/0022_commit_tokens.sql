-- One row per transaction that wrote something: whoever lost the answer to its COMMIT looks for the row. Transaction ids
-- cannot say it, because a server that crashed or was promoted hands the same ids out again.

create table payonce.commits (
    token uuid primary key,
    written_at timestamptz not null default payonce.lease_now()
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create index commits_written_at on payonce.commits using brin (written_at) with (pages_per_range = 16);

comment on table payonce.commits is 'Tokens of committed transactions, kept for two hours.';

grant select, insert, delete on payonce.commits to payonce_service;
