-- As before. A call of each window function costs as much as the rest of the query: they cannot be inlined.
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
            clock.at, coalesce(began.at, s.period_start) as period_start, coalesce(next.at, s.period_end) as period_end
        into mine
        from subscriptions.subscriptions s join subscriptions.plans p on p.id = s.plan_id
        cross join lateral (select subscriptions.time_of(s.test_clock_id) as at) clock
        cross join lateral (select max(w) as at from unnest(s.allowance_starts) w
            where w <= greatest(clock.at, begun_by)) began
        cross join lateral (select min(w) as at from unnest(s.allowance_starts) w
            where w > greatest(clock.at, begun_by)) next
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
