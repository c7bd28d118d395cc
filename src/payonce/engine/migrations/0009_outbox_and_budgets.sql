-- What leaves for queues that live elsewhere, what came from them, and how often vendors may be called.

-- Where entries may go. Declared by the processes that relay; what an operator set (paused) stays.
create table payonce.relays (
    name text collate "C" primary key,
    -- Whether a delivered entry lives on until it is settled.
    keeps boolean not null,
    -- How long before a message falls due it may be handed over.
    ahead_s double precision not null check (ahead_s >= 0),
    paused boolean not null default false,
    paused_reason text
);

create table payonce.outbox (
    relay text collate "C" not null,
    id uuid not null,
    state text collate "C" not null default 'waiting' check (state in ('waiting', 'leased', 'delivered', 'parked')),
    -- When the message falls due where it goes; handed over with it.
    ready_at timestamptz not null,
    -- When the relay looks at it next; of a parked entry, since when it is.
    try_at timestamptz not null,
    -- Grows with every claim and every taking away: an older one can change nothing.
    token bigint not null default 0,
    lease_until timestamptz,
    -- From here the receiver's memory of it is counted.
    first_tried_at timestamptz,
    -- Deliveries in a row that came to nothing, and those of them that the other side refused.
    tries integer not null default 0 check (tries >= 0),
    refusals integer not null default 0 check (refusals >= 0),
    crashes integer not null default 0 check (crashes >= 0),
    -- It may be what broke its batch or killed its relay: delivered with nothing beside it.
    suspect boolean not null default false,
    last_error text,
    queue text collate "C" not null,
    action text not null,
    correlation_id text collate "C",
    idempotency_key text collate "C",
    trace_id text collate "C",
    created_at timestamptz not null,
    attempts integer not null default 0 check (attempts >= 0),
    max_attempts integer check (max_attempts > 0),
    lane text collate "C",
    payload json not null,
    extra json,
    -- One message may go to two places.
    primary key (relay, id),
    constraint leased_entries_have_a_lease check ((state = 'leased') = (lease_until is not null))
) with (
    -- All churn, as the queue is.
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.0,
    autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);

create index outbox_waiting on payonce.outbox (relay, suspect, try_at, id) where state = 'waiting';
create index outbox_leased on payonce.outbox (relay, lease_until) where state = 'leased';
create index outbox_delivered on payonce.outbox (relay, ready_at, id) where state = 'delivered';
create index outbox_parked on payonce.outbox (relay, try_at, id) where state = 'parked';
-- Retries move try_at: how long the oldest has been on its way is asked here.
create index outbox_undelivered on payonce.outbox (relay, ready_at) where state in ('waiting', 'leased');

-- What a consumer has taken in, written in the transaction in which it did.
create table payonce.inbox (
    consumer text collate "C" not null,
    -- Text: other senders' ids are not ours to shape.
    id text collate "C" not null,
    accepted_at timestamptz not null default payonce.due_now(),
    primary key (consumer, id)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.05);

create index inbox_age on payonce.inbox (accepted_at);

create table payonce.budgets (
    name text collate "C" primary key,
    rate_per_s double precision not null check (rate_per_s > 0),
    burst integer not null check (burst > 0),
    -- GCRA's theoretical arrival time: the moment by which every turn given so far is paid for.
    arrival_at timestamptz not null default 'epoch',
    -- The vendor said so: turns given before this was set count no longer.
    held_until timestamptz not null default 'epoch'
) with (
    -- One hot row per vendor: its new versions find room on its page, and no index is touched.
    fillfactor = 50
);

grant select, insert, update on payonce.relays, payonce.budgets to payonce_service;
grant select, insert, update, delete on payonce.outbox to payonce_service;
grant select, insert, delete on payonce.inbox to payonce_service;
