"""The SQL of queues. Each statement is one round trip; comments name the promise that a line keeps.

Settlements lock in id order, so that batches with common messages cannot deadlock. The caller sorts them by id and then
by token, of which a later one is greater.

Rows are found one by one in a lateral subquery, and changed by an array of their ids: a join that was planned while the
table was empty would scan all messages for each of them.
"""

from typing import Final

from payonce.engine.messages.job_log import insert_runs

_CLAIMED_COLUMNS: Final = """m.id, m.token, m.queue, m.action, m.correlation_id, m.idempotency_key, m.trace_id,
        m.created_at, m.attempts, m.max_attempts, m.lane, m.payload, m.extra, m.crashes, m.claimed_at,
        m.first_attempt_at"""

_PLACE: Final = "[width_bucket(m.id, $1::uuid[])]"
"""A message's position in the sorted ids; the last one if it occurs twice, which is its latest claim."""

_LOG_SUCCESSES: Final = insert_runs(
    "gone where $3",
    "gone",
    status="'success'",
    attempts="gone.attempts + 1",
    worker="gone.worker",
    started_at="gone.claimed_at",
)

# Settles $1 (ids) with $2 (tokens); $3 says whether successes are logged. By constraint lease_until is set exactly in
# state "leased"; testing it keeps the planner off the index of leased rows, which is full of dead entries under load.
_SETTLE: Final = f"""
    gone as (
        delete from payonce.messages m
        where m.id = any($1::uuid[]) and m.token = ($2::bigint[]){_PLACE} and m.lease_until is not null
        returning m.id, m.queue, m.correlation_id, m.idempotency_key, m.trace_id, m.attempts, m.action, m.worker,
                  m.claimed_at
    ), logged as (
        {_LOG_SUCCESSES}
    )"""

_ALLOWANCE: Final = "allowance as materialized (select allowed, rest_s from payonce.allowance($8, $5))"

# Advances a rate's arrival time by the number of dispatches (GCRA).
_SPEND: Final = """
    spent as (
        update payonce.limits
        set arrival_at = greatest(arrival_at, payonce.due_now()) + make_interval(secs => claimed.count / rate)
        from (select count(*) from claimed) claimed
        where name = $8 and rate is not null and claimed.count > 0
    )"""

# Claims up to $5 messages of queue $4 for $6 seconds for worker $7, as far as limit $8 allows.
# The last row is no message: it lists the settled ids.
# A locked row cannot move, so its ctid finds it again without the index, which saves a tenth of the statement's cost,
# measured.
_CLAIM: Final = f"""
    claimed as (
        update payonce.messages m
        set state = 'leased', token = m.token + 1, worker = $7,
            lease_until = payonce.lease_now() + make_interval(secs => $6::float8),
            claimed_at = payonce.due_now(), first_attempt_at = coalesce(m.first_attempt_at, payonce.due_now())
        from waiting where m.ctid = waiting.ctid
        returning {_CLAIMED_COLUMNS}
    ), {_SPEND}
    select {_CLAIMED_COLUMNS},
           null::uuid[] as settled, null::boolean as paused, null::float8 as rest_s, null as lane_cursor
    from claimed m
    union all
    select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
           (select coalesce(array_agg(id), '{{}}') from gone),
           exists (select from payonce.queues where name = $4 and paused), (select rest_s from allowance)"""


def _claim_by_time(state: str) -> str:
    return f"""
    with {_SETTLE}, {_ALLOWANCE}, waiting as (
        select ctid from payonce.messages
        where queue = $4 and state = '{state}' and ready_at <= payonce.due_now()
          and not exists (select from payonce.queues where name = $4 and paused)
        order by ready_at, id limit (select allowed from allowance) for update skip locked
    ), {_CLAIM}, null"""


SETTLE_AND_CLAIM: Final = _claim_by_time("ready")
CLAIM_ALONE: Final = _claim_by_time("alone")

# Visits at most as many lanes as it may claim messages, after lane $9, by index jumps, with equal shares.
# The last row also has the lane after which the next walk begins: null if this one reached the end.
SETTLE_AND_CLAIM_LANES: Final = f"""
    with recursive {_SETTLE}, {_ALLOWANCE}, lanes as (
        (select lane, 1 as position from payonce.messages
         where queue = $4 and state = 'ready' and lane >= coalesce($9, '') and ($9::text is null or lane > $9)
         order by lane limit 1)
        union all
        select following.lane, lanes.position + 1 from lanes cross join lateral (
            select lane from payonce.messages
            where queue = $4 and state = 'ready' and lane > lanes.lane order by lane limit 1
        ) following where lanes.position < (select allowed from allowance)
    ), waiting as (
        select taken.ctid from lanes cross join lateral (
            select m.ctid from payonce.messages m
            where m.queue = $4 and m.state = 'ready' and m.lane = lanes.lane and m.ready_at <= payonce.due_now()
              and not exists (select from payonce.queues where name = $4 and paused)
            order by m.ready_at, m.id
            limit ceil((select allowed from allowance)::float8 / (select count(*) from lanes)) for update skip locked
        ) taken limit (select allowed from allowance)
    ), {_CLAIM},
        (select case when allowed = 0 then $9 when (select count(*) from lanes) < allowed then null
                else (select max(lane) from lanes) end from allowance)"""

# Here and below, claimed messages are found by id and have a lease. With a condition on the state, a plan made on an
# empty table would use the index of claimed messages and scan it.

_LOG_OTHERS: Final = insert_runs(
    "ended where ended.ending <> 'released'",
    "ended",
    status="ended.ending",
    attempts="ended.attempts",
    last_error="ended.reason",
    next_retry_at="case ended.ending when 'retry' then ended.ready_at end",
    worker="ended.worker",
    started_at="ended.claimed_at",
)

# $3 endings, $4 reasons, $5 delays. An orderly end clears the crash suspicion; a release is no run. The time between a
# release and the next due time does not age a message: a freeze may last longer than its policy retries, and the next
# failure must not be its last.
_ENDING, _REASON, _DELAY_S = f"($3::text[]){_PLACE}", f"($4::text[]){_PLACE}", f"($5::float8[]){_PLACE}"
SETTLE_OTHERS: Final = f"""
    with mine as (
        select m.id, s.ending from unnest($1::uuid[], $2::bigint[], $3::text[]) as s (id, token, ending)
        cross join lateral (
            select m.id from payonce.messages m
            where m.id = s.id and m.token = s.token and m.lease_until is not null for update
        ) m
        where s.ending <> 'success'
    ), back as (
        update payonce.messages m
        set state = case when {_ENDING} = 'parked' then 'parked'
                         when {_ENDING} = 'released' and m.crashes >= 2 then 'alone' else 'ready' end,
            ready_at = payonce.due_now() + make_interval(secs => {_DELAY_S}),
            attempts = m.attempts + case {_ENDING} when 'released' then 0 else 1 end,
            lease_until = null, running_alone = false, last_error = {_REASON},
            crashes = case {_ENDING} when 'released' then m.crashes else 0 end,
            first_attempt_at = case when {_ENDING} <> 'released' then m.first_attempt_at
                when m.attempts > 0 or m.crashes > 0
                then m.first_attempt_at + (payonce.due_now() - m.claimed_at) + make_interval(secs => {_DELAY_S}) end
        where m.id = any(array(select id from mine where ending <> 'failed'))
        returning m.id, m.queue, m.correlation_id, m.idempotency_key, m.trace_id, m.attempts, m.action, m.worker,
                  m.claimed_at, m.ready_at, {_ENDING} as ending, {_REASON} as reason
    ), gone as (
        delete from payonce.messages m where m.id = any(array(select id from mine where ending = 'failed'))
        returning m.id, m.queue, m.correlation_id, m.idempotency_key, m.trace_id, m.attempts + 1 as attempts,
                  m.action, m.worker, m.claimed_at, null::timestamptz as ready_at, {_ENDING} as ending,
                  {_REASON} as reason
    ), ended as (
        select * from back union all select * from gone
    ), logged as (
        {_LOG_OTHERS}
    )
    select id from ended"""

_LOG_WITHIN: Final = insert_runs(
    "gone where $5 or $3 <> 'success'",
    "gone",
    status="$3",
    attempts="gone.attempts + 1",
    last_error="$4",
    worker="gone.worker",
    started_at="gone.claimed_at",
)

# The fence of a business transaction: the row is locked until the commit, or the statement raises. It precedes the
# handler's first statement, so it returns no rows.
SETTLE_WITHIN: Final = f"""
    with gone as (
        delete from payonce.messages m where m.id = $1 and m.token = $2 and m.lease_until is not null
        returning m.id, m.queue, m.correlation_id, m.idempotency_key, m.trace_id, m.attempts, m.action, m.worker,
                  m.claimed_at
    ), logged as (
        {_LOG_WITHIN}
    )
    insert into payonce.commits (token)
    select case when exists (select from gone) then $6::uuid else payonce.refuse_stale($1, $7) end"""

HOLD_WITHIN: Final = """
    update payonce.messages set lease_until = payonce.lease_now() + make_interval(secs => $3::float8)
    where id = $1 and token = $2 and lease_until > payonce.lease_now()"""

MARK_ALONE: Final = """
    update payonce.messages set running_alone = true
    where id = $1 and token = $2 and lease_until is not null
    returning true"""

# SKIP LOCKED: a row held by an open commit() needs no renewal and must not block the others. Returns the lost claims:
# gone, or under another token.
EXTEND: Final = """
    with requested as (
        select * from unnest($1::uuid[], $2::bigint[]) as requested (id, token)
    ), mine as (
        select m.id from requested cross join lateral (
            select m.id from payonce.messages m
            where m.id = requested.id and m.token = requested.token and m.lease_until is not null for update skip locked
        ) m
    ), extended as (
        update payonce.messages m set lease_until = payonce.lease_now() + make_interval(secs => $3::float8)
        where m.id = any(array(select id from mine))
    )
    select requested.id, requested.token from requested left join lateral (
        select m.id from payonce.messages m
        where m.id = requested.id and m.token = requested.token and m.lease_until is not null limit 1
    ) m on true
    where m.id is null"""

GIVE_BACK: Final = """
    with orphaned as (
        select id from payonce.messages
        where queue = $1 and state = 'leased' and worker = $2 and id <> all($3::uuid[])
        order by id for update skip locked
    )
    update payonce.messages m
    set state = case when m.crashes >= 2 then 'alone' else 'ready' end,
        token = m.token + 1, lease_until = null, running_alone = false
    where m.id = any(array(select id from orphaned))
    returning m.id"""

ALIVE: Final = "select id from payonce.messages where id = any($1)"

# Messages whose lease has ended, and those whose lease ends later than any granted now can ($3): the clock was set back
# since.
DEAD: Final = """
    select id, dead from (
        (select id, true as dead from payonce.messages
         where queue = $1 and state = 'leased' and lease_until <= payonce.lease_now()
         order by lease_until limit $2)
        union all
        (select id, false as dead from payonce.messages
         where queue = $1 and state = 'leased' and lease_until > payonce.lease_now() + $3::interval
         order by lease_until desc limit $2)
    ) seen"""

# A live worker renews it within a lease of $2 seconds, as usual.
SHORTEN: Final = """
    update payonce.messages set lease_until = payonce.lease_now() + make_interval(secs => $2::float8)
    where id = any(array(
        select id from payonce.messages
        where id = any($1) and lease_until > payonce.lease_now() + make_interval(secs => $2::float8)
        order by id for update skip locked))"""

_LOG_REAPED: Final = insert_runs(
    "reaped",
    "reaped",
    status="case reaped.state when 'parked' then 'parked' else 'retry' end",
    attempts="reaped.attempts",
    last_error="reaped.last_error",
    next_retry_at="case when reaped.state <> 'parked' then reaped.ready_at end",
    worker="reaped.worker",
    started_at="reaped.claimed_at",
)

# The token grows, so that a late worker finds its claim stale. A crash of an isolated run parks the message; beside
# others it raises suspicion.
REAP: Final = f"""
    with dead as (
        select id from payonce.messages
        where id = any($1) and lease_until <= payonce.lease_now()
        order by id for update skip locked
    ), reaped as (
        update payonce.messages m
        set state = case when m.running_alone then 'parked' when m.crashes + 1 >= 2 then 'alone' else 'ready' end,
            token = m.token + 1, crashes = m.crashes + 1, lease_until = null, running_alone = false,
            ready_at = payonce.due_now(),
            last_error = 'worker ' || coalesce(m.worker, '?') || ' died or stopped: its lease ended'
                || case when m.running_alone then ' while this message ran alone' else '' end
        where m.id = any(array(select id from dead))
        returning m.*
    ), logged as (
        {_LOG_REAPED}
    )
    select id, worker, crashes, state from reaped"""
