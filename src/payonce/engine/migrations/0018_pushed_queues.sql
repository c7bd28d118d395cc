-- Messages that a task service brings: under which name it has them, who works on them, and the queues' measured numbers.

alter table payonce.outbox
    -- Grows whenever the message is to be brought anew; the other side tells one delivery from the next by it.
    add column delivery integer not null default 0 check (delivery >= 0),
    -- The name that the other side has it under.
    add column delivered_as text,
    -- The process that holds it, and since when.
    add column worker text,
    add column begun_at timestamptz,
    -- Processes that died on it since a run of it ended in order. Those of relays are counted in `crashes`.
    add column run_crashes integer not null default 0 check (run_crashes >= 0),
    -- Recorded before a suspected message runs with nothing beside it; dying then is its own fault.
    add column running_alone boolean not null default false;

create index outbox_pushed on payonce.outbox (queue, ready_at, id) where relay = 'cloudtasks';

alter table payonce.queues
    -- Set by an operator from what was measured; they stand in place of the policy's numbers.
    add column tuned_rate double precision check (tuned_rate > 0),
    add column tuned_concurrency integer check (tuned_concurrency > 0);

create or replace view payonce.live_messages as
select id, queue, state, ready_at, created_at, claimed_at, worker, attempts, crashes, action, correlation_id,
       idempotency_key, trace_id, last_error
from payonce.messages
union all
select o.id, o.queue, case when o.state = 'parked' then 'parked' when o.held_until > payonce.lease_now() then 'leased'
                           else 'ready' end,
       case when o.state = 'parked' then o.try_at else o.ready_at end, o.created_at,
       coalesce(o.begun_at, o.first_attempt_at, o.created_at), o.worker,
       o.attempts, o.crashes + o.run_crashes, o.action, o.correlation_id, o.idempotency_key, o.trace_id, o.last_error
from payonce.relays r join payonce.outbox o on o.relay = r.name;
