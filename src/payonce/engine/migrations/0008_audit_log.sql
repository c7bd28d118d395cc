-- Who did what to the system, and what it noticed about itself. Written in the transaction that it tells of.

create table payonce.audit_log (
    id bigint generated always as identity primary key,
    -- Rows of transactions below a snapshot's xmin are final: what is sealed is decided by this, never by id or time.
    xact xid8 not null default pg_current_xact_id(),
    severity text collate "C" not null check (severity in ('INFO', 'WARNING', 'ERROR')),
    location text collate "C" not null,
    reference text collate "C" not null,
    text text not null,
    actor text collate "C" not null,
    created_at timestamptz not null default payonce.due_now()
);

create index audit_log_reference on payonce.audit_log (reference);

create trigger audit_log_append_only before update or delete or truncate on payonce.audit_log
    for each statement execute function payonce.refuse_rewriting();

grant select, insert on payonce.audit_log to payonce_service;
