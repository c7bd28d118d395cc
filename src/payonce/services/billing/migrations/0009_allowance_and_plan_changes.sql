-- Limits that begin anew apart from billing, the plan that a trial leads to, and changes of plan with a visible end.

-- How often a plan's limits begin anew. Null: with every billing period, as of all plans before this.
alter table subscriptions.plans
    add column allowance_unit text collate "C" check (allowance_unit in ('day', 'week', 'month', 'year')),
    add column allowance_count smallint check (allowance_count between 1 and 1096),
    add constraint allowance_is_an_interval check ((allowance_unit is null) = (allowance_count is null));

-- The annual plan that came with this schema was sold with limits a month, like the monthly plan that it is named after.
-- Later versions with the same limits meant the same. Plans that others made keep what they said: limits a period.
alter table subscriptions.plans disable trigger plans_stay_as_sold;
update subscriptions.plans p set allowance_unit = 'month', allowance_count = 1
from subscriptions.plans first
where first.id = 'annual-pro-v1' and p.code = first.code and p.features = first.features and p.interval_unit = 'year'
  and p.trial_days is null;
alter table subscriptions.plans enable trigger plans_stay_as_sold;

alter table subscriptions.subscriptions
    -- When the allowance windows of the running period begin; null when the period is the only one.
    add column allowance_starts timestamptz[],
    -- Of a trial: the version of the plan that follows, as it was for sale when the trial began.
    add column converts_to_plan_id text collate "C" references subscriptions.plans (id);

-- Running periods, on the customer's calendar. From the next period on the service reckons them itself.
update subscriptions.subscriptions s
set allowance_starts = array(
    select s.period_start
    union
    select w.start_at from generate_series(1, 1200) n,
        lateral (select ((s.anchor_at at time zone s.time_zone) + make_interval(months => n * p.allowance_count))
            at time zone s.time_zone as start_at) w
    where w.start_at > s.period_start and w.start_at < s.period_end
    order by 1)
from subscriptions.plans p
where p.id = s.plan_id and p.allowance_unit = 'month' and s.period_start is not null and s.anchor_at is not null
  and s.state not in ('incomplete_expired', 'canceled');

-- Trials that run, or wait for their first payment: at the version that was for sale as they began.
update subscriptions.subscriptions s set converts_to_plan_id = (
    select f.id from subscriptions.plans f
    where f.code = p.renews_to and f.trial_days is null and f.created_at <= s.created_at
      and (f.retired_at is null or f.retired_at > s.created_at)
    order by f.version desc limit 1)
from subscriptions.plans p
where p.id = s.plan_id and p.renews_to is not null and s.state not in ('incomplete_expired', 'canceled');

create function subscriptions.window_start(starts timestamptz[], period_start timestamptz, at timestamptz)
    returns timestamptz language sql immutable parallel safe
as $$ select coalesce((select max(w) from unnest(starts) w where w <= at), period_start) $$;

create function subscriptions.window_end(starts timestamptz[], period_end timestamptz, at timestamptz)
    returns timestamptz language sql immutable parallel safe
as $$ select coalesce((select min(w) from unnest(starts) w where w > at), period_end) $$;

-- As before, but counted by allowance windows instead of billing periods.
create or replace function subscriptions.use(account text, feature_asked text, delta_asked bigint, event text)
    returns subscriptions.usage_answer
    language plpgsql
    -- A session keeps its plan: one that was made while the tables were empty would read all of them for ever.
    set enable_seqscan = off
as $$
declare
    known subscriptions.usage_events;
    mine record;
    counter record;
    answer subscriptions.usage_answer;
    -- Somebody counted in a window that begins later than this statement did: it has begun.
    begun_by timestamptz := '-infinity';
begin
    -- Whoever brings the same event waits here for the first one's end, and then finds it.
    perform pg_advisory_xact_lock(hashtextextended(event, hashtextextended(account, 0)));
    select * into known from subscriptions.usage_events e where e.account_id = account and e.event_id = event;
    if found then
        answer.outcome := case when known.feature = feature_asked and known.delta = delta_asked
            then 'repeated' else 'reused' end;
        answer.counted := known.counted;
        answer.used := known.used_after;
        answer.allowed := known.limit_then;
        answer.period_start := known.period_start;
        return answer;
    end if;
    for attempt in 1..100 loop
        select s.id, s.state, s.cancel_at_period_end, s.period_end as ends_at, p.features -> feature_asked as allowed,
            clock.at,
            subscriptions.window_start(s.allowance_starts, s.period_start, greatest(clock.at, begun_by)) as period_start,
            subscriptions.window_end(s.allowance_starts, s.period_end, greatest(clock.at, begun_by)) as period_end
        into mine
        from subscriptions.subscriptions s join subscriptions.plans p on p.id = s.plan_id
        cross join lateral (select subscriptions.time_of(s.test_clock_id) as at) clock
        where s.account_id = account and s.state not in ('incomplete_expired', 'canceled');
        if not found then
            answer.outcome := 'no_subscription';
            return answer;
        end if;
        answer.state := mine.state;
        answer.period_start := mine.period_start;
        answer.period_end := mine.period_end;
        -- One that ends with its period has ended then, also before anything has come by to write so.
        if mine.state not in ('trialing', 'active', 'past_due')
            or (mine.cancel_at_period_end and mine.ends_at <= mine.at)
        then
            answer.outcome := 'not_entitled';
            return answer;
        end if;
        if mine.allowed is null then
            answer.outcome := case when exists (select from subscriptions.plans p where p.features ? feature_asked)
                then 'not_included' else 'unknown_feature' end;
            return answer;
        end if;
        answer.allowed := (mine.allowed #>> '{}')::bigint;
        answer.counted := delta_asked;
        if delta_asked < 0 then
            select c.used into counter from subscriptions.usage_counters c
            where c.subscription_id = mine.id and c.feature = feature_asked and c.period_start = mine.period_start
            for update;
            answer.counted := greatest(delta_asked, -coalesce(counter.used, 0));
        end if;
        insert into subscriptions.usage_counters as c (subscription_id, feature, period_start, used)
        select mine.id, feature_asked, mine.period_start, greatest(answer.counted, 0)
        where answer.counted <= 0 or answer.allowed is null or answer.counted <= answer.allowed
        on conflict (subscription_id, feature) do update set
            used = case when c.period_start = excluded.period_start then c.used else 0 end + answer.counted,
            forgiven = case when c.period_start = excluded.period_start then c.forgiven else 0 end,
            period_start = excluded.period_start,
            updated_at = payonce.due_now()
        where c.period_start <= excluded.period_start and (answer.counted <= 0 or answer.allowed is null
            or case when c.period_start = excluded.period_start then c.used else 0 end + answer.counted
                <= answer.allowed)
        returning c.used into answer.used;
        if found then
            insert into subscriptions.usage_events (account_id, event_id, subscription_id, feature, delta, counted,
                used_after, limit_then, period_start, at)
            values (account, event, mine.id, feature_asked, delta_asked, answer.counted,
                answer.used, answer.allowed, mine.period_start, mine.at);
            answer.outcome := 'counted';
            return answer;
        end if;
        select c.used, c.period_start into counter from subscriptions.usage_counters c
        where c.subscription_id = mine.id and c.feature = feature_asked;
        -- A counter of a later window: the subscription was renewed, or the window began, after it was read here.
        if not found or counter.period_start <= mine.period_start then
            answer.outcome := 'over_limit';
            answer.used := case when counter.period_start = mine.period_start then counter.used else 0 end;
            return answer;
        end if;
        begun_by := counter.period_start;
    end loop;
    raise exception 'the counter of % for subscription % is ahead of its windows', feature_asked, mine.id;
end
$$;

-- Subscriptions that are moved from one version of a plan to another, as an operator ordered.
create table subscriptions.plan_migrations (
    id text collate "C" primary key check (length(id) between 1 and 100),
    from_plan_id text collate "C" not null references subscriptions.plans (id),
    to_plan_id text collate "C" not null references subscriptions.plans (id),
    state text collate "C" not null default 'running' check (state in ('running', 'done', 'canceling', 'canceled')),
    note text not null check (length(note) between 1 and 2000),
    requested_by text not null check (length(requested_by) between 1 and 200),
    -- How far it has come: every subscription up to this id was looked at.
    looked_to text collate "C" not null default '',
    scheduled integer not null default 0 check (scheduled >= 0),
    withdrawn integer not null default 0 check (withdrawn between 0 and scheduled),
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    constraint somewhere_else check (from_plan_id <> to_plan_id)
);

create unique index plan_migrations_one_at_a_time on subscriptions.plan_migrations (from_plan_id)
    where state in ('running', 'canceling');
create index plan_migrations_newest on subscriptions.plan_migrations (created_at, id);

-- Every change of plan that was accepted, and how it ended. One that does not wait for the period's end has the id of its
-- invoice.
create table subscriptions.plan_changes (
    id text collate "C" primary key check (length(id) between 1 and 100),
    subscription_id text collate "C" not null references subscriptions.subscriptions (id),
    from_plan_id text collate "C" not null references subscriptions.plans (id),
    to_plan_id text collate "C" not null references subscriptions.plans (id),
    -- Or as soon as its difference is paid.
    at_period_end boolean not null,
    state text collate "C" not null default 'pending' check (state in ('pending', 'applied', 'failed', 'canceled')),
    reason text check (length(reason) between 1 and 1000),
    migration_id text collate "C" references subscriptions.plan_migrations (id),
    -- In the customer's time.
    requested_at timestamptz not null,
    ended_at timestamptz,
    trace_id text collate "C",
    created_at timestamptz not null default payonce.due_now(),
    updated_at timestamptz not null default payonce.due_now(),
    constraint ended_says_when check ((state = 'pending') = (ended_at is null)),
    constraint not_applied_says_why check ((state in ('failed', 'canceled')) = (reason is not null))
);

create unique index plan_changes_one_pending on subscriptions.plan_changes (subscription_id, at_period_end)
    where state = 'pending';
create index plan_changes_of on subscriptions.plan_changes (subscription_id, created_at, id);
create index plan_changes_of_migration on subscriptions.plan_changes (migration_id, subscription_id)
    where migration_id is not null and state = 'pending';
create index plan_changes_pending on subscriptions.plan_changes (updated_at)
    where state = 'pending' and not at_period_end;

-- What was accepted before this has its end on record, too. Changes that still wait on their queue are put on record by
-- whoever works on them.
insert into subscriptions.plan_changes (id, subscription_id, from_plan_id, to_plan_id, at_period_end, requested_at,
    trace_id)
select i.id, s.id, s.plan_id, i.plan_id, false, i.issued_at, i.trace_id
from subscriptions.invoices i join subscriptions.subscriptions s on s.id = i.subscription_id
where i.period is null and i.state = 'open';
insert into subscriptions.plan_changes (id, subscription_id, from_plan_id, to_plan_id, at_period_end, requested_at,
    trace_id)
select gen_random_uuid()::text, s.id, s.plan_id, s.next_plan_id, true, subscriptions.time_of(s.test_clock_id), s.trace_id
from subscriptions.subscriptions s
where s.next_plan_id is not null and s.state not in ('incomplete_expired', 'canceled');

grant select, insert, update on subscriptions.plan_migrations, subscriptions.plan_changes to payonce_service;
