"""Usage is counted once, never over what the plan allows, and anew with every period."""

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest

from payonce.engine.audit import notes
from payonce.services.billing.subscriptions.model import State
from payonce.services.billing.subscriptions.store.usage import (
    CountedUsage,
    UsageRefusal,
    UsageRefused,
    current_usage,
    entitlement,
    reset,
    totals,
    use,
)
from payonce.testing import OpenStage, Stage, eventually
from tests.locks import waiting_for_locks, waits_for_a_lock
from tests.services.billing.usage.usage_stage import (
    CALLS,
    FIRST,
    PROJECTS,
    SECOND,
    broken,
    counter,
    events,
    move,
    renew,
    subscribe,
)

ALLOWED = 1_000
AT_ONCE = 40
"""More than the pool has connections."""


async def refused(
    s: Stage, feature: str = CALLS, delta: int = 1, event: str = "e-no", account: str = "anna"
) -> UsageRefusal:
    with pytest.raises(UsageRefused) as no:
        await use(s.read, account, feature, delta, event)
    return no.value.why


async def test_an_event_is_counted_and_answered_with_what_is_left(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        first = await use(s.read, "anna", CALLS, 3, "e-1")
        assert first == CountedUsage(CALLS, "e-1", 3, 3, 3, ALLOWED, FIRST, repeated=False)
        assert (await use(s.read, "anna", CALLS, 4, "e-2")).left == ALLOWED - 7
        assert await broken(s) == {}


async def test_a_repetition_gets_the_first_answer_and_counts_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        first = await use(s.read, "anna", CALLS, 3, "e-1")
        await use(s.read, "anna", CALLS, 4, "e-2")
        # Whatever became of the subscription since.
        await s.owner.execute("update subscriptions.subscriptions set plan_id = 'pro-v1'")
        await renew(s)
        await move(s, "canceled")
        again = await use(s.read, "anna", CALLS, 3, "e-1")
        assert again.repeated
        assert (again.used, again.limit, again.period_start) == (first.used, first.limit, first.period_start)
        assert await counter(s) == 7
        assert await events(s) == 2


async def test_an_event_that_was_another_one_is_refused(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        await use(s.read, "anna", CALLS, 1, "e-1")
        for feature, delta in ((PROJECTS, 1), (CALLS, 2)):
            assert await refused(s, feature, delta, "e-1") is UsageRefusal.REUSED
        assert await counter(s) == 1
        assert await counter(s, PROJECTS) is None


async def test_events_of_two_accounts_may_have_one_id(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        await subscribe(s, "berta")
        for account in ("anna", "berta"):
            assert not (await use(s.read, account, CALLS, 1, "e-1")).repeated


async def test_over_the_limit_nothing_is_written_and_the_event_may_come_again(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        await use(s.read, "anna", CALLS, ALLOWED - 1, "e-1")
        with pytest.raises(
            UsageRefused, match=f"{ALLOWED - 1} of {ALLOWED} are used, 1 are left and 2 were requested"
        ) as no:
            await use(s.read, "anna", CALLS, 2, "e-2")
        assert (no.value.status, no.value.used, no.value.limit) == (429, ALLOWED - 1, ALLOWED)
        assert await counter(s) == ALLOWED - 1
        assert await events(s) == 1
        assert (await use(s.read, "anna", CALLS, 1, "e-3")).left == 0
        await use(s.read, "anna", CALLS, -2, "e-4")
        assert (await use(s.read, "anna", CALLS, 2, "e-2")).used == ALLOWED


async def test_at_once_on_many_connections_the_limit_is_kept_exactly(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        await use(s.read, "anna", CALLS, ALLOWED - AT_ONCE // 2, "before")
        asked = (use(s.read, "anna", CALLS, 1, f"e-{number}") for number in range(AT_ONCE))
        ends = await asyncio.gather(*asked, return_exceptions=True)
        counted = [end for end in ends if isinstance(end, CountedUsage)]
        assert sorted(end.used for end in counted) == list(range(ALLOWED - AT_ONCE // 2 + 1, ALLOWED + 1))
        assert {type(end) for end in ends} == {CountedUsage, UsageRefused}
        assert await counter(s) == ALLOWED
        assert await events(s) == 1 + len(counted)
        assert await broken(s) == {}


async def test_one_event_that_comes_at_once_from_many_sides_is_counted_once(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        # The last one that is left: whoever comes second must hear the answer, not that nothing is left.
        await use(s.read, "anna", CALLS, ALLOWED - 1, "before")
        async with s.owner.transaction():
            await s.owner.execute("select from subscriptions.usage_counters for update")
            asked = [asyncio.create_task(use(s.read, "anna", CALLS, 1, "e-1")) for _ in range(AT_ONCE)]

            async def both_wait() -> bool:
                return await waiting_for_locks(s) >= 2

            await eventually(both_wait)
        ends = await asyncio.gather(*asked)
        assert [end.repeated for end in ends].count(False) == 1
        assert {end.used for end in ends} == {ALLOWED}
        assert await counter(s) == ALLOWED


async def test_one_event_id_for_two_features_at_once_counts_for_one_of_them(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s, plan="enterprise-v1")
        pairs = [(feature, f"e-{number}") for number in range(AT_ONCE // 2) for feature in (CALLS, PROJECTS)]
        asked = (use(s.read, "anna", feature, 1, event) for feature, event in pairs)
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(end, CountedUsage) for end in ends) == AT_ONCE // 2
        assert {end.why for end in ends if isinstance(end, UsageRefused)} == {UsageRefusal.REUSED}
        assert (await counter(s, CALLS) or 0) + (await counter(s, PROJECTS) or 0) == AT_ONCE // 2
        assert await broken(s) == {}


async def test_a_new_period_begins_at_zero_without_anybody_resetting_it(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        await use(s.read, "anna", CALLS, ALLOWED, "e-1")
        assert await refused(s) is UsageRefusal.OVER_LIMIT
        await renew(s)
        found = await current_usage(s.read, "anna")
        assert found is not None
        assert [each.used for each in found.features] == [0, 0]
        answer = await use(s.read, "anna", CALLS, 1, "e-2")
        assert (answer.used, answer.period_start) == (1, SECOND)
        assert await broken(s) == {}


async def test_whoever_read_the_period_before_a_renewal_does_not_set_the_counter_back(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        await use(s.read, "anna", CALLS, 5, "e-1")
        # One that began in the old period waits for the counter, while another has counted in the new one already.
        async with s.owner.transaction():
            await s.owner.execute("select from subscriptions.usage_counters for update")
            waiting = asyncio.create_task(use(s.read, "anna", CALLS, 1, "e-2"))
            await eventually(lambda: waits_for_a_lock(s))
            await renew(s)
            await s.owner.execute("update subscriptions.usage_counters set period_start = $1, used = 2", SECOND)
        late = await waiting
        assert (late.used, late.period_start) == (3, SECOND)


async def test_given_back_is_at_most_what_was_used(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        assert (await use(s.read, "anna", CALLS, -1, "e-0")).used == 0
        await use(s.read, "anna", CALLS, 5, "e-1")
        back = await use(s.read, "anna", CALLS, -8, "e-2")
        assert (back.delta, back.counted, back.used) == (-8, -5, 0)
        assert (await use(s.read, "anna", CALLS, -8, "e-2")).counted == -5
        await use(s.read, "anna", CALLS, 2, "e-3")
        await renew(s)
        # What was used in the period before is not given back to this one.
        assert (await use(s.read, "anna", CALLS, -2, "e-4")).counted == 0
        assert await broken(s) == {}


async def test_no_limit_is_null_and_zero_is_none_at_all(stage: OpenStage) -> None:
    async with stage() as s:
        await s.owner.execute(
            """
            insert into subscriptions.plans (id, code, version, name, price_minor, currency, exponent, interval_unit,
                interval_count, features)
            values ('odd-v1', 'odd', 1, 'Odd', 0, 'AED', 2, 'month', 1, '{"endless": null, "none": 0}')
            """
        )
        await subscribe(s, plan="odd-v1")
        answer = await use(s.read, "anna", "endless", 1_000_000_000, "e-1")
        assert (answer.limit, answer.left) == (None, None)
        assert await refused(s, "none") is UsageRefusal.OVER_LIMIT
        assert (await use(s.read, "anna", "none", -1, "e-2")).used == 0


async def test_what_may_be_used_by_the_subscriptions_state(stage: OpenStage) -> None:
    expected = {
        "active": None,
        "trialing": None,
        "past_due": None,
        "paused": UsageRefusal.NOT_ENTITLED,
        "unpaid": UsageRefusal.NOT_ENTITLED,
        "incomplete": UsageRefusal.NOT_ENTITLED,
        "canceled": UsageRefusal.NO_SUBSCRIPTION,
        "incomplete_expired": UsageRefusal.NO_SUBSCRIPTION,
    }
    assert set(expected) == set(State)
    async with stage() as s:
        for state, why in expected.items():
            await subscribe(s, state, state=state)
            assert (await entitlement(s.read, state, CALLS)).why_not is why
            if why is None:
                assert (await use(s.read, state, CALLS, 1, "e-1")).used == 1
            else:
                assert await refused(s, account=state) is why
                assert await counter(s, account=state) is None


async def test_one_that_ends_with_its_period_ends_by_the_customers_clock(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        await s.owner.execute("update subscriptions.subscriptions set cancel_at_period_end = true")
        await use(s.read, "anna", CALLS, 1, "e-1")
        await s.owner.execute("update subscriptions.test_clocks set now_at = $1, target_at = $1", SECOND)
        assert await refused(s) is UsageRefusal.NOT_ENTITLED
        assert (await entitlement(s.read, "anna", CALLS)).why_not is UsageRefusal.NOT_ENTITLED


async def test_a_feature_of_other_plans_is_403_and_one_of_none_404(stage: OpenStage) -> None:
    async with stage() as s:
        await s.owner.execute(
            """
            insert into subscriptions.plans (id, code, version, name, price_minor, currency, exponent, interval_unit,
                interval_count, features)
            values ('bare-v1', 'bare', 1, 'Bare', 0, 'AED', 2, 'month', 1, '{}')
            """
        )
        await subscribe(s, plan="bare-v1")
        for feature, why, status in (
            (CALLS, UsageRefusal.NOT_INCLUDED, 403),
            ("teleports", UsageRefusal.UNKNOWN_FEATURE, 404),
        ):
            with pytest.raises(UsageRefused, match=feature) as no:
                await use(s.read, "anna", feature, 1, "e-1")
            assert (no.value.why, no.value.status) == (why, status)
            assert (await entitlement(s.read, "anna", feature)).why_not is why
        assert await refused(s, account="nobody") is UsageRefusal.NO_SUBSCRIPTION
        assert (await entitlement(s.read, "nobody", CALLS)).why_not is UsageRefusal.NO_SUBSCRIPTION


async def test_an_entitlement_says_whether_one_more_would_be_counted(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        await use(s.read, "anna", PROJECTS, 2, "e-1")
        found = await entitlement(s.read, "anna", PROJECTS)
        assert (found.entitled, found.used, found.limit, found.left, found.resets_at) == (True, 2, 3, 1, SECOND)
        await use(s.read, "anna", PROJECTS, 1, "e-2")
        found = await entitlement(s.read, "anna", PROJECTS)
        assert (found.entitled, found.why_not, found.left) == (False, UsageRefusal.OVER_LIMIT, 0)


async def test_a_smaller_plan_leaves_nothing_and_takes_back_gladly(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s, plan="pro-v1")
        await use(s.read, "anna", PROJECTS, 20, "e-1")
        await s.owner.execute("update subscriptions.subscriptions set plan_id = 'basic-v1'")
        assert await refused(s, PROJECTS) is UsageRefusal.OVER_LIMIT
        assert (await entitlement(s.read, "anna", PROJECTS)).left == 0
        back = await use(s.read, "anna", PROJECTS, -1, "e-2")
        assert (back.used, back.left) == (19, 0)


async def test_events_carry_the_customers_time(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        await use(s.read, "anna", CALLS, 1, "e-1")
        assert await s.read.fetchval("select at from subscriptions.usage_events") == FIRST
        await s.owner.execute("update subscriptions.subscriptions set test_clock_id = null")
        now = await s.clock.freeze(datetime(2030, 5, 6, tzinfo=UTC))
        await use(s.read, "anna", CALLS, 1, "e-2")
        at = await s.read.fetchval("select at from subscriptions.usage_events where event_id = 'e-2'")
        assert at == now


async def test_a_reset_makes_the_allowance_whole_and_touches_nothing_else(stage: OpenStage) -> None:
    async with stage() as s:
        for account in ("anna", "berta"):
            await subscribe(s, account)
            await use(s.read, account, CALLS, ALLOWED, "e-1")
            await use(s.read, account, PROJECTS, 2, "e-2")
        before = await totals(s.read, "anna")
        async with s.begin() as tx:
            assert await reset(tx, "anna", CALLS, "olga", "our outage") == {CALLS: ALLOWED}
        assert [await counter(s, feature, who) for who in ("anna", "berta") for feature in (CALLS, PROJECTS)] == [
            0,
            2,
            ALLOWED,
            2,
        ]
        assert await totals(s.read, "anna") == before
        assert (await use(s.read, "anna", CALLS, 1, "e-3")).used == 1
        assert await broken(s) == {}
        [told] = await notes(s.read, reference="anna")
        assert (told.location, told.actor) == ("billing.usage_reset", "olga")
        assert told.text == f"{CALLS} from {ALLOWED} to 0: our outage"


async def test_a_reset_of_nothing_used_changes_and_tells_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        await use(s.read, "anna", CALLS, 1, "e-1")
        # The counter is of the period before: it counts nothing any more.
        await renew(s)
        for _ in range(2):
            async with s.begin() as tx:
                assert await reset(tx, "anna", None, "olga", "to be sure") == {}
        assert await counter(s) == 1
        assert await notes(s.read, reference="anna") == []


KINDS = ("use", "use", "use", "back", "again", "renew", "reset")


@pytest.mark.parametrize("seed", range(3))
async def test_any_order_of_events_counts_as_plain_arithmetic_does(stage: OpenStage, seed: int) -> None:
    draw = random.Random(seed)
    async with stage() as s:
        await subscribe(s)
        used, period = 0, FIRST
        last = (1, "first")
        for number in range(60):
            kind, amount = draw.choice(KINDS), draw.randint(1, 600)
            if kind == "renew":
                period += timedelta(seconds=1)
                await renew(s, period)
                used = 0
            elif kind == "reset":
                async with s.begin() as tx:
                    await reset(tx, "anna", CALLS, "olga", "why not")
                used = 0
            elif kind == "again" and last[1] != "first":
                assert (await use(s.read, "anna", CALLS, *last)).repeated
            elif kind == "use" and used + amount > ALLOWED:
                assert await refused(s, CALLS, amount, f"e-{number}") is UsageRefusal.OVER_LIMIT
            elif kind in ("use", "back"):
                last = (amount if kind == "use" else -amount, f"e-{number}")
                counted = max(last[0], -used)
                used += counted
                answer = await use(s.read, "anna", CALLS, *last)
                assert (answer.counted, answer.used) == (counted, used)
            assert await broken(s) == {}
        found = await entitlement(s.read, "anna", CALLS)
        assert (found.used, found.left) == (used, ALLOWED - used)
