-- Webhooks out: who is told of what, under which secrets, and every attempt to tell them.

create table payonce.webhook_endpoints (
    id uuid primary key,
    tenant text collate "C" not null,
    url text not null,
    -- Types, `invoice.*` for all that begin so, or `*`.
    events text[] not null check (cardinality(events) between 1 and 100),
    description text not null,
    state text collate "C" not null default 'enabled' check (state in ('enabled', 'disabled', 'removed')),
    -- Why it is not enabled.
    reason text,
    changed_at timestamptz not null default payonce.due_now(),
    -- Since the first failure behind the last success.
    failing_since timestamptz,
    created_by text collate "C" not null,
    created_at timestamptz not null default payonce.due_now(),
    constraint endpoints_say_why_they_rest check ((state = 'enabled') = (reason is null))
) with (
    -- failing_since comes and goes: its new versions find room on their page.
    fillfactor = 80
);

create index webhook_endpoints_tenant on payonce.webhook_endpoints (tenant, id) where state <> 'removed';

create table payonce.webhook_secrets (
    endpoint_id uuid not null references payonce.webhook_endpoints,
    number integer not null check (number > 0),
    -- Under a key that the database does not have, bound to its endpoint.
    sealed bytea not null,
    created_at timestamptz not null default payonce.due_now(),
    -- Null for the one that stays; earlier ones sign along until here.
    expires_at timestamptz,
    primary key (endpoint_id, number)
);

create unique index webhook_secrets_current on payonce.webhook_secrets (endpoint_id) where expires_at is null;

create table payonce.webhook_events (
    id text collate "C" primary key,
    tenant text collate "C" not null,
    type text collate "C" not null,
    -- The very bytes that every attempt sends.
    body bytea not null,
    trace_id text collate "C",
    created_at timestamptz not null default payonce.due_now()
);

create index webhook_events_age on payonce.webhook_events (created_at);

create table payonce.webhook_deliveries (
    -- Also the id of its message.
    id uuid primary key,
    event_id text collate "C" not null references payonce.webhook_events on delete cascade,
    endpoint_id uuid not null references payonce.webhook_endpoints,
    state text collate "C" not null check (state in ('pending', 'delivered', 'failed', 'skipped')),
    reason text,
    -- Attempts on record.
    attempts integer not null default 0 check (attempts >= 0),
    last_status smallint,
    replay_of uuid,
    created_at timestamptz not null default payonce.due_now(),
    ended_at timestamptz,
    constraint ended_deliveries_say_when check ((state = 'pending') = (ended_at is null))
);

-- Two deliveries of one event to one place at a time would be one too many.
create unique index webhook_deliveries_pending on payonce.webhook_deliveries (event_id, endpoint_id)
    where state = 'pending';
create index webhook_deliveries_endpoint on payonce.webhook_deliveries (endpoint_id, created_at, id);
create index webhook_deliveries_event on payonce.webhook_deliveries (event_id);
create index webhook_deliveries_age on payonce.webhook_deliveries (created_at, id);

create table payonce.webhook_attempts (
    id bigint generated always as identity primary key,
    delivery_id uuid not null references payonce.webhook_deliveries on delete cascade,
    number integer not null check (number > 0),
    at timestamptz not null,
    -- Null when there was no answer.
    status smallint,
    latency_ms integer not null check (latency_ms >= 0),
    error text,
    -- The beginning of the answer, without secrets.
    excerpt text
);

create index webhook_attempts_delivery on payonce.webhook_attempts (delivery_id, id);

grant select, insert, update (state, reason, changed_at, failing_since) on payonce.webhook_endpoints to payonce_service;
grant select, insert, update (sealed, expires_at) on payonce.webhook_secrets to payonce_service;
grant select, insert, delete on payonce.webhook_events to payonce_service;
grant select, insert, update (state, reason, attempts, last_status, ended_at) on payonce.webhook_deliveries
    to payonce_service;
grant select, insert on payonce.webhook_attempts to payonce_service;
