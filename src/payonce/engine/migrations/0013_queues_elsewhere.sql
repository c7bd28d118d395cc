-- Messages of a queue that lives elsewhere: who works on them, and one view of every message, wherever it waits.

-- Which backend a queue was last declared for.
alter table payonce.queues add column backend text collate "C" not null default 'postgres';

alter table payonce.outbox
    -- The claim that works with effects on a delivered message, and until when nobody else may.
    add column holder bigint,
    add column held_until timestamptz,
    -- From here a policy counts a message's age.
    add column first_attempt_at timestamptz,
    add constraint held_entries_have_an_end check ((holder is null) = (held_until is null));

create index outbox_trace on payonce.outbox (trace_id) where trace_id is not null;
create index outbox_correlation on payonce.outbox (correlation_id) where correlation_id is not null;

create view payonce.live_messages as
select id, queue, state, ready_at, created_at, claimed_at, worker, attempts, crashes, action, correlation_id,
       idempotency_key, trace_id, last_error
from payonce.messages
union all
select o.id, o.queue, case when o.state = 'parked' then 'parked' when o.held_until > payonce.lease_now() then 'leased'
                           else 'ready' end,
       case when o.state = 'parked' then o.try_at else o.ready_at end, o.created_at,
       coalesce(o.first_attempt_at, o.created_at), null,
       o.attempts, o.crashes, o.action, o.correlation_id, o.idempotency_key, o.trace_id, o.last_error
from payonce.relays r join payonce.outbox o on o.relay = r.name;

grant select on payonce.live_messages to payonce_service;
