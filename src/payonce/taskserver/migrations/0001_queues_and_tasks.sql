-- Queues, tasks and what must be remembered of them after they are gone.

create schema cloudtasks;

create table cloudtasks.queues (
    -- New with every creation, so that what is left of a deleted queue never comes back under its name.
    id bigint generated always as identity primary key,
    name text collate "C" not null,
    state text collate "C" not null default 'RUNNING' check (state in ('RUNNING', 'PAUSED')),
    rate double precision not null check (rate > 0 and rate <= 500),
    burst integer not null check (burst > 0),
    concurrency integer not null check (concurrency between 1 and 5000),
    max_attempts integer not null check (max_attempts = -1 or max_attempts > 0),
    max_retry_duration_s double precision not null check (max_retry_duration_s >= 0),
    min_backoff_s double precision not null check (min_backoff_s >= 0),
    max_backoff_s double precision not null check (max_backoff_s >= min_backoff_s),
    max_doublings integer not null check (max_doublings >= 0),
    logging_ratio double precision check (logging_ratio between 0 and 1),
    created_at timestamptz not null default payonce.due_now(),
    purged_at timestamptz,
    deleted_at timestamptz,
    -- GCRA's theoretical arrival time: the moment by which every dispatch so far is paid for.
    arrival_at timestamptz not null default 'epoch',
    -- The share of the rate that holds since paced_at; it doubles with every recovery time that passes.
    pace double precision not null default 1 check (pace > 0 and pace <= 1),
    paced_at timestamptz not null default 'epoch'
) with (
    -- Hot rows: their new versions find room on their page, and no index is touched.
    fillfactor = 50
);

create unique index queues_name on cloudtasks.queues (name) where deleted_at is null;
create index queues_deleted on cloudtasks.queues (name, deleted_at) where deleted_at is not null;

create table cloudtasks.tasks (
    queue_id bigint not null,
    id text collate "C" not null,
    -- The caller chose the id: it is remembered after the task is gone. Ids of ours are never made twice.
    named boolean not null,
    -- google.cloud.tasks.v2.HttpRequest and RetryConfig, as they came.
    request bytea not null,
    retry bytea,
    deadline_ms integer not null check (deadline_ms between 15000 and 1800000),
    created_at timestamptz not null,
    schedule_at timestamptz not null,
    -- Grows with every dispatch: an answer to an older one changes nothing.
    token bigint not null default 0,
    lease_until timestamptz,
    -- RunTask: the next dispatch minds neither pause nor limits.
    forced boolean not null default false,
    dispatches integer not null default 0,
    responses integer not null default 0,
    -- Responses other than 5xx.
    executions integer not null default 0,
    first_dispatched_at timestamptz,
    last_scheduled_at timestamptz,
    last_dispatched_at timestamptz,
    last_answered_at timestamptz,
    -- Of the last attempt that ended: the HTTP status if there was an answer, google.rpc.Code and words.
    last_status integer,
    last_code integer,
    last_reason text,
    primary key (queue_id, id)
) with (
    -- All churn, as the engine's queue is.
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.0,
    autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);

create index tasks_waiting on cloudtasks.tasks (queue_id, schedule_at) where lease_until is null;
create index tasks_leased on cloudtasks.tasks (queue_id, lease_until) where lease_until is not null;
create index tasks_forced on cloudtasks.tasks (queue_id) where forced;

-- Names of tasks that are gone, until they may be used again.
create table cloudtasks.tombstones (
    queue_id bigint not null,
    id text collate "C" not null,
    until timestamptz not null,
    primary key (queue_id, id)
);

-- Rows come in the order of their times: a summary per block range is all that pruning needs.
create index tombstones_age on cloudtasks.tombstones using brin (until) with (pages_per_range = 32);

-- Long-running operations, all of them done.
create table cloudtasks.operations (
    name text collate "C" primary key,
    -- Of the request: the same id with another request is a mistake.
    digest bytea not null,
    -- google.longrunning.Operation; null only inside the transaction that does the work.
    operation bytea,
    created_at timestamptz not null default payonce.due_now()
);

create index operations_age on cloudtasks.operations (created_at);

-- The public halves of the keys that sign OIDC tokens; the private ones stay in the servers' memory.
create table cloudtasks.signing_keys (
    kid text collate "C" primary key,
    public_key text not null,
    created_at timestamptz not null default payonce.due_now()
);

-- Adds tasks. Answers a row per queue that exists (id null) and a row per task that was added.
create function cloudtasks.put(
    queue_names text[], task_ids text[], task_named boolean[], task_requests bytea[], task_retries bytea[],
    task_deadlines_ms integer[], task_wanted timestamptz[]
)
    returns table (queue_name text, id text, at timestamptz)
    language plpgsql volatile
as $$
#variable_conflict use_column
declare
    moment timestamptz := payonce.due_now();
    made_queues bigint[];
    made_ids text[];
    taken_ids text[];
begin
    with fresh as (
        insert into cloudtasks.tasks (queue_id, id, named, request, retry, deadline_ms, created_at, schedule_at)
        select q.id, asked.id, asked.named, asked.request, asked.retry, asked.deadline_ms, moment,
               greatest(asked.wanted, moment)
        from unnest(queue_names, task_ids, task_named, task_requests, task_retries, task_deadlines_ms, task_wanted)
                 as asked (queue_name, id, named, request, retry, deadline_ms, wanted)
        join cloudtasks.queues q on q.name = asked.queue_name and q.deleted_at is null
        where asked.wanted is null or asked.wanted <= moment + interval '30 days'
        on conflict do nothing
        returning queue_id, id
    )
    select array_agg(fresh.queue_id), array_agg(fresh.id) into made_queues, made_ids from fresh;
    -- Only now: a task that ended while the insert waited for it has left its tombstone.
    with taken as (
        delete from cloudtasks.tasks t
        using unnest(made_queues, made_ids) as made (queue_id, id), cloudtasks.tombstones d
        where d.queue_id = made.queue_id and d.id = made.id and d.until > moment
          and t.queue_id = made.queue_id and t.id = made.id
        returning t.queue_id, t.id
    )
    select array_agg(taken.queue_id || '/' || taken.id) into taken_ids from taken;
    return query
        select q.name, null::text, moment
        from (select distinct asked.name from unnest(queue_names) as asked (name)) asked
        join cloudtasks.queues q on q.name = asked.name and q.deleted_at is null;
    return query
        select q.name, made.id, moment
        from unnest(made_queues, made_ids) as made (queue_id, id) join cloudtasks.queues q on q.id = made.queue_id
        where taken_ids is null or made.queue_id || '/' || made.id <> all (taken_ids);
end
$$;

-- Claims what is due and may be sent of one queue. The last row is no task (id null): it says how long to rest, null
-- for "until something changes". Two claims of one queue follow each other, so that its limits hold for all processes.
-- A thorough claim also takes what the dead have left behind, and what RunTask asks for.
create function cloudtasks.claim(
    of_queue bigint, wanted integer, lease_s double precision, recovery_s double precision, thorough boolean
)
    returns table (
        queue_id bigint, id text, named boolean, request bytea, retry bytea, deadline_ms integer, schedule_at timestamptz, token bigint,
        forced boolean, dispatches integer, executions integer, age_s double precision, last_status integer,
        last_reason text, rest_s double precision
    )
    language plpgsql volatile
as $$
#variable_conflict use_column
declare
    q cloudtasks.queues;
    moment timestamptz := payonce.due_now();
    allowed integer := wanted;
    live integer;
    speed_share double precision;
    bucket double precision;
    debt_s double precision;
    spent integer;
    rests_s double precision;
begin
    select * into q from cloudtasks.queues where id = of_queue and deleted_at is null for no key update;
    if not found then
        return;
    end if;
    if thorough then
        -- Whoever held these is dead: its token is too old from here on.
        update cloudtasks.tasks t set lease_until = null, token = t.token + 1, last_status = null, last_code = 14,
            last_reason = 'the dispatcher was lost'
        where t.queue_id = of_queue and t.lease_until <= payonce.lease_now();
        return query
            update cloudtasks.tasks t
            set token = t.token + 1, lease_until = payonce.lease_now() + make_interval(secs => lease_s),
                forced = false, dispatches = t.dispatches + 1,
                first_dispatched_at = coalesce(t.first_dispatched_at, moment), last_scheduled_at = t.schedule_at,
                last_dispatched_at = moment, last_answered_at = null
            where t.ctid = any (array(
                select w.ctid from cloudtasks.tasks w where w.queue_id = of_queue and w.forced
                limit wanted for no key update skip locked))
            returning of_queue, t.id, t.named, t.request, t.retry, t.deadline_ms, t.schedule_at, t.token, true, t.dispatches,
                t.executions, extract(epoch from moment - t.first_dispatched_at)::double precision, t.last_status,
                t.last_reason, null::double precision;
        get diagnostics spent = row_count;
        allowed := allowed - spent;
    end if;

    if q.state = 'RUNNING' then
        select count(*) into live from (
            select from cloudtasks.tasks t where t.queue_id = of_queue and t.lease_until is not null limit q.concurrency
        ) leased;
        if live >= q.concurrency then
            -- A slot that becomes free in another process is not announced.
            rests_s := 0.05;
        end if;
        allowed := least(allowed, q.concurrency - live);
        speed_share := case when moment > q.paced_at + make_interval(secs => recovery_s * 10) then 1.0
            else least(1.0, q.pace * 2 ^ floor(extract(epoch from moment - q.paced_at) / recovery_s)) end;
        bucket := greatest(1.0, floor(q.burst * speed_share));
        debt_s := extract(epoch from greatest(q.arrival_at - moment, interval '0'));
        -- A hair of tolerance: 0.1 s of debt at 10/s is one dispatch, not 1.0000000001.
        allowed := greatest(0, least(allowed, floor(bucket - debt_s * q.rate * speed_share + 1e-6)::integer));
        return query
            update cloudtasks.tasks t
            set token = t.token + 1, lease_until = payonce.lease_now() + make_interval(secs => lease_s),
                dispatches = t.dispatches + 1, first_dispatched_at = coalesce(t.first_dispatched_at, moment),
                last_scheduled_at = t.schedule_at, last_dispatched_at = moment, last_answered_at = null
            where t.ctid = any (array(
                select w.ctid from cloudtasks.tasks w
                where w.queue_id = of_queue and w.lease_until is null and w.schedule_at <= moment
                order by w.schedule_at limit allowed for no key update skip locked))
            returning of_queue, t.id, t.named, t.request, t.retry, t.deadline_ms, t.schedule_at, t.token, false, t.dispatches,
                t.executions, extract(epoch from moment - t.first_dispatched_at)::double precision, t.last_status,
                t.last_reason, null::double precision;
        get diagnostics spent = row_count;
        if spent > 0 then
            update cloudtasks.queues
            set arrival_at = greatest(arrival_at, moment) + make_interval(secs => spent / (q.rate * speed_share))
            where id = of_queue;
            debt_s := debt_s + spent / (q.rate * speed_share);
        end if;
        if bucket - debt_s * q.rate * speed_share + 1e-6 < 1 then
            rests_s := greatest(rests_s, debt_s - (bucket - 1) / (q.rate * speed_share));
        end if;
        rests_s := coalesce(rests_s, case when spent > 0 and spent = allowed then 0 end, (
            select extract(epoch from greatest(w.schedule_at - moment, interval '0')) from cloudtasks.tasks w
            where w.queue_id = of_queue and w.lease_until is null order by w.schedule_at limit 1));
    end if;
    return query select of_queue, null::text, null::boolean, null::bytea, null::bytea, null::integer, null::timestamptz,
        null::bigint, null::boolean, null::integer, null::integer, null::double precision, null::integer, null::text,
        rests_s;
end
$$;

-- The same of several queues, in the order in which everybody locks them.
create function cloudtasks.claim_many(
    of_queues bigint[], wanted integer, lease_s double precision, recovery_s double precision, thorough boolean[]
)
    returns table (
        queue_id bigint, id text, named boolean, request bytea, retry bytea, deadline_ms integer,
        schedule_at timestamptz, token bigint, forced boolean, dispatches integer, executions integer,
        age_s double precision, last_status integer, last_reason text, rest_s double precision
    )
    language plpgsql volatile
as $$
begin
    for place in 1 .. cardinality(of_queues) loop
        return query select * from cloudtasks.claim(of_queues[place], wanted, lease_s, recovery_s, thorough[place]);
    end loop;
end
$$;

grant usage on schema cloudtasks to payonce_service;
grant select, insert, update, delete on all tables in schema cloudtasks to payonce_service;
