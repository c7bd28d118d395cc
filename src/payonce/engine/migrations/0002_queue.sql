-- Messages, the queues they wait in, the limits queues share, and the keys that make a put happen once.

create table payonce.limits (
    name text collate "C" primary key,
    concurrency integer check (concurrency > 0),
    rate double precision check (rate > 0),
    burst integer not null default 1 check (burst > 0),
    -- GCRA's theoretical arrival time: the moment by which everything dispatched so far is paid for.
    arrival_at timestamptz not null default 'epoch'
);

create table payonce.queues (
    name text collate "C" primary key,
    limit_name text collate "C" references payonce.limits (name),
    paused boolean not null default false,
    paused_reason text,
    lease_s double precision not null check (lease_s > 0),
    key_retention_s double precision not null check (key_retention_s >= 0),
    log text not null default 'all' check (log in ('all', 'failures')),
    -- As declared in code, for people to read.
    policy json not null default '{}'
);

create table payonce.messages (
    id uuid primary key,
    queue text collate "C" not null,
    state text collate "C" not null default 'ready' check (state in ('ready', 'alone', 'leased', 'parked')),
    ready_at timestamptz not null default payonce.due_now(),
    lane text collate "C",
    -- Grows with every claim and every taking away: an older one can change nothing.
    token bigint not null default 0,
    lease_until timestamptz,
    claimed_at timestamptz,
    worker text,
    -- Recorded before a suspected message runs with nothing beside it; dying then is its own fault.
    running_alone boolean not null default false,
    attempts integer not null default 0 check (attempts >= 0),
    crashes integer not null default 0 check (crashes >= 0),
    max_attempts integer check (max_attempts > 0),
    first_attempt_at timestamptz,
    created_at timestamptz not null default payonce.due_now(),
    action text not null,
    correlation_id text collate "C",
    idempotency_key text collate "C",
    -- Null when the message began its own trace: then the trace's id is the message's.
    trace_id text collate "C",
    last_error text,
    payload json not null,
    extra json,
    constraint leased_rows_have_a_lease check ((state = 'leased') = (lease_until is not null))
) with (
    -- A queue table is all churn: vacuum by count, not by share of a size that swings between 0 and millions.
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.0,
    autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);

create index messages_ready on payonce.messages (queue, ready_at, id) where state = 'ready';
create index messages_lanes on payonce.messages (queue, lane, ready_at, id) where state = 'ready' and lane is not null;
create index messages_alone on payonce.messages (queue, ready_at, id) where state = 'alone';
create index messages_leased on payonce.messages (queue, lease_until) where state = 'leased';
create index messages_parked on payonce.messages (queue, ready_at, id) where state = 'parked';
create index messages_trace on payonce.messages (trace_id) where trace_id is not null;
create index messages_correlation on payonce.messages (correlation_id) where correlation_id is not null;

create table payonce.idempotency_keys (
    queue text collate "C" not null,
    key text collate "C" not null,
    message_id uuid not null,
    -- Null while the message lives; a janitor sets it when the message is gone.
    expires_at timestamptz,
    primary key (queue, key)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_analyze_scale_factor = 0.05);

create index idempotency_keys_expiry on payonce.idempotency_keys (expires_at) where expires_at is not null;

-- How many may be claimed now under a limit, and for how long to rest when none may. Takes the limit's lock, so claims
-- under one limit follow each other. Being volatile it looks again after the lock was granted, and so sees what the
-- previous holder claimed: concurrency is counted from live leases, never from a counter that a kill could leave behind.
create function payonce.allowance(
    name_of_limit text, wanted integer, out allowed integer, out rest_s double precision
)
    language plpgsql volatile
as $$
declare
    bound payonce.limits;
    debt_s double precision;
begin
    allowed := wanted;
    select * into bound from payonce.limits where name = name_of_limit for update;
    if not found then
        return;
    end if;
    if bound.concurrency is not null then
        allowed := least(allowed, bound.concurrency - (
            select count(*) from payonce.queues q join payonce.messages m on m.queue = q.name and m.state = 'leased'
            where q.limit_name = name_of_limit));
        if allowed <= 0 then
            -- A slot that becomes free elsewhere is not announced.
            rest_s := 0.05;
        end if;
    end if;
    if bound.rate is not null then
        debt_s := extract(epoch from greatest(bound.arrival_at - payonce.due_now(), interval '0'));
        -- A hair of tolerance: 0.1 s of debt at 10/s is one dispatch, not 1.0000000001.
        if bound.burst - debt_s * bound.rate + 1e-6 < 1 then
            rest_s := greatest(rest_s, debt_s - (bound.burst - 1) / bound.rate);
        end if;
        allowed := least(allowed, floor(bound.burst - debt_s * bound.rate + 1e-6)::integer);
    end if;
    allowed := greatest(allowed, 0);
end
$$;

grant select, insert, update, delete on payonce.messages, payonce.queues, payonce.limits, payonce.idempotency_keys
    to payonce_service;
