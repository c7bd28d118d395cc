-- Usage, counted in one call. A counter needs no job to begin anew: it says which period it counts, and whoever counts in
-- a later one begins at zero.

-- What was given up by a reset stays used: only the customer's allowance is whole again.
alter table subscriptions.usage_counters
    add column forgiven bigint not null default 0 check (forgiven >= 0);

alter table subscriptions.usage_events
    -- Of the delta, what changed the counter: nothing is given back below zero.
    add column counted bigint not null,
    -- The plan's limit then: a repetition gets the first answer, whatever the plan is now.
    add column limit_then bigint,
    add constraint counted_within_delta check (counted = delta or (delta < 0 and counted between delta and 0));

-- By subscription, so that what is not rolled yet can be added to a total that is shown.
drop index subscriptions.usage_events_to_roll;
create index usage_events_to_roll on subscriptions.usage_events (subscription_id, feature, period_start) where not rolled;
-- The rows lie in the order of their time: a summary of blocks finds the old ones.
create index usage_events_age on subscriptions.usage_events using brin (created_at);

create type subscriptions.usage_answer as (
    outcome text,
    counted bigint,
    used bigint,
    allowed bigint,
    period_start timestamptz,
    period_end timestamptz,
    state text
);

-- Counts `delta` for the account's subscription, once per event. Outcomes: counted, repeated (the first answer again),
-- reused (the event was another one), no_subscription, not_entitled, unknown_feature, not_included, over_limit. Only
-- `counted` has written anything. Each statement in here sees what was committed before it.
create function subscriptions.use(account text, feature_asked text, delta_asked bigint, event text)
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
    loop
        select s.id, s.state, s.period_start, s.period_end, s.cancel_at_period_end, p.features -> feature_asked as allowed,
            subscriptions.time_of(s.test_clock_id) as at
        into mine
        from subscriptions.subscriptions s join subscriptions.plans p on p.id = s.plan_id
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
            or (mine.cancel_at_period_end and mine.period_end <= mine.at)
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
        -- A counter of a later period: the subscription was renewed after it was read here, and is read again.
        if not found or counter.period_start <= mine.period_start then
            answer.outcome := 'over_limit';
            answer.used := case when counter.period_start = mine.period_start then counter.used else 0 end;
            return answer;
        end if;
    end loop;
end
$$;

-- Many events that have nothing to do with each other, in one commit, answered in the order in which they are given.
-- Every caller takes the events' locks first and then the counters, each kind in one order: nobody waits in a circle.
create function subscriptions.use_many(accounts text[], features text[], deltas bigint[], events text[])
    returns setof subscriptions.usage_answer
    language plpgsql
    set enable_seqscan = off
as $$
declare
    answers subscriptions.usage_answer[];
    place integer;
begin
    perform pg_advisory_xact_lock(k.key) from (
        select distinct hashtextextended(a.event, hashtextextended(a.account, 0)) as key
        from unnest(accounts, events) as a (account, event) order by key) k;
    for place in
        select a.place from unnest(accounts, features) with ordinality as a (account, feature, place)
        order by a.account collate "C", a.feature collate "C", a.place
    loop
        answers[place] := subscriptions.use(accounts[place], features[place], deltas[place], events[place]);
    end loop;
    return query select (a).* from unnest(answers) a;
end
$$;
