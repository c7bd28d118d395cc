-- The actions that any release has declared for a queue. A worker that does not know an action looks here: one that
-- another release has declared is left to that release, and one that no release has declared is parked.

alter table payonce.queues add column actions text[] not null default '{}';

-- Redrives and purges of more messages than one transaction changes: carried out in batches, each of which commits with
-- the progress that it made.

create table payonce.queue_operations (
    id bigint generated always as identity primary key,
    kind text not null check (kind in ('redrive', 'purge')),
    queue text not null,
    message_state text not null check (message_state in ('ready', 'alone', 'parked')),
    which json not null,
    asked_by text not null,
    why text not null,
    total bigint not null check (total >= 0),
    changed bigint not null default 0 check (changed >= 0),
    kept bigint not null default 0 check (kept >= 0),
    status text not null default 'running' check (status in ('running', 'done', 'failed', 'stopped')),
    error text,
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    check (kind = 'purge' or message_state = 'parked')
);

create index queue_operations_running on payonce.queue_operations (id) where status = 'running';
create index queue_operations_by_queue on payonce.queue_operations (queue, id);

grant select, insert, update on payonce.queue_operations to payonce_service;
