"""Events, resets, changes of plan and new windows that meet in any order: no event is counted beyond the limit, and
totals are what was counted."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, Final

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from payonce.kit.money import Amount
from payonce.services.billing.subscriptions.domain.calendar import Interval, Unit
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.handlers import plan_changes, usage_sync
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import Subscription
from payonce.services.billing.subscriptions.store import plans, usage
from payonce.services.billing.subscriptions.store.plans import Offer
from payonce.services.billing.subscriptions.store.usage import CountedUsage, UsageRefused
from payonce.testing import OpenStage
from payonce.testing.servers import ScratchServer
from payonce.testing.stage import open_stage
from tests.ablations import patched
from tests.services.billing.billing_stage import AED, House, open_house
from tests.services.billing.usage.test_usage_ablations import altered
from tests.services.billing.usage.usage_stage import CALLS

LIMIT: Final = 100
MONTH, YEAR = Interval(Unit.MONTH), Interval(Unit.YEAR)
PLANS: Final = {"monthly": (MONTH, None), "yearly-by-month": (YEAR, MONTH), "yearly": (YEAR, None)}

Without = Callable[[OpenStage], AbstractContextManager[OpenStage]]
"""A safeguard is taken out of the module, or of the store's function."""
Step = Callable[[House, Subscription, str], Awaitable[Any]]


def uses(delta: int) -> Step:
    """The event comes twice at once, as from a caller that lost the answer."""

    async def use(house: House, subscription: Subscription, event: str) -> CountedUsage:
        both = await asyncio.gather(
            *(usage.use(house.s.read, subscription.account_id, CALLS, delta, event) for _ in range(2)),
            return_exceptions=True,
        )
        counted = [each for each in both if isinstance(each, CountedUsage)]
        for each in both:
            if isinstance(each, BaseException) and not (counted and isinstance(each, UsageRefused)):
                raise each
        # One that is refused may be counted when it comes again: something was given back, or a window began.
        assert [each.repeated for each in counted].count(False) == 1
        return counted[0]

    return use


def change_to(plan: str) -> Step:
    async def change(house: House, subscription: Subscription, event: str) -> None:
        async with house.s.begin() as tx:
            await plan_changes.request_plan(tx, None, subscription.id, plan, ChangeTiming.NOW)

    return change


async def reset(house: House, subscription: Subscription, event: str) -> dict[str, int]:
    async with house.s.begin() as tx:
        return await usage.reset(tx, subscription.account_id, None, "ann", event)


async def roll(house: House, subscription: Subscription, event: str) -> None:
    async with house.s.begin() as tx:
        await usage_sync.roll(tx, 3)


async def next_window(house: House, subscription: Subscription, event: str) -> None:
    """Begins, and with the last of a period the next period is asked for."""
    found = await usage.current_usage(house.s.read, subscription.account_id)
    assert found is not None
    assert found.period_end is not None
    await house.s.clock.freeze(max(found.period_end, await house.s.clock.now()))
    await house.look()


async def a_week(house: House, subscription: Subscription, event: str) -> None:
    await house.s.clock.freeze(await house.s.clock.now() + timedelta(days=7))
    await house.drain()


async def work(house: House, subscription: Subscription, event: str) -> None:
    await house.drain()


AT_ONCE: Final[dict[str, Step]] = {
    "use 1": uses(1),
    "use 30": uses(30),
    "use 100": uses(100),
    "give back 10": uses(-10),
    "reset": reset,
    "roll": roll,
    **{f"to {plan}": change_to(plan) for plan in PLANS},
}
WORK: Final[dict[str, Step]] = {"work": work, "a week": a_week, "next window": next_window}
STEPS: Final = {**AT_ONCE, **WORK}
GROUPS: Final = st.lists(
    st.builds(
        lambda names, working: [*names, *working],
        st.lists(st.sampled_from(sorted(AT_ONCE)), min_size=1, max_size=4),
        st.sampled_from([[], *([name] for name in WORK)]),
    ),
    min_size=4,
    max_size=8,
)


OVER_THE_LIMIT: Final = [["use 100", "use 30", "use 1"], ["next window", "use 100", "use 30"], ["use 100"]]
MONTH_AND_YEAR: Final = [
    ["use 100"],
    ["next window"],
    ["use 30"],
    ["to yearly", "use 30", "work"],
    ["use 100", "give back 10"],
    ["to yearly-by-month", "use 1", "work"],
    ["use 30", "roll"],
    ["next window"],
    ["use 100", "use 100"],
]
"""The year has what was used in its months, and the month after it a part of that."""
RESET_AS_A_WINDOW_BEGINS: Final = [
    ["use 100", "use 30"],
    ["reset", "use 100", "next window"],
    ["reset", "use 30"],
    ["roll", "use 100", "a week"],
]
OVER: Final = "select * from subscriptions.usage_events where delta > 0 and used_after > limit_then"
"""Counted beyond the limit. What a change of plan moves from one window to another has no limit on record."""
EXAMPLES: Final = {
    "over the limit": OVER_THE_LIMIT,
    "month and year": MONTH_AND_YEAR,
    "reset": RESET_AS_A_WINDOW_BEGINS,
}


async def any_order(stage: OpenStage, groups: list[list[str]]) -> None:
    """What is in a group happens at once, each on a connection of its own."""
    numbers = count(1)
    async with open_house(stage) as house:
        for code, (interval, limits) in PLANS.items():
            async with house.s.begin() as tx:
                features = {CALLS: LIMIT}
                await plans.add_version(tx, Offer(code, code, Amount(10_000, AED), interval, features, limits))
        customer = await house.customer()
        subscription = await house.subscribe(customer, "yearly-by-month")
        counted = 0
        for group in groups:
            answers = await asyncio.gather(
                *(STEPS[name](house, subscription, f"e-{next(numbers)}") for name in group), return_exceptions=True
            )
            wrong = [
                each
                for each in answers
                if isinstance(each, BaseException) and not isinstance(each, Conflict | UsageRefused)
            ]
            assert wrong == []
            counted += sum(each.counted for each in answers if isinstance(each, CountedUsage))
            await house.look()
            await house.run()
            assert await house.broken() == {}
            found = await usage.current_usage(house.s.read, customer.id)
            assert found is not None
            feature = found.of(CALLS)
            assert feature is not None
            # More may be used than the limit after a change to a longer window, which has all that was used in it.
            assert feature.used >= 0
            assert await house.s.owner.fetch(OVER) == []
            totals = await usage.totals(house.s.read, customer.id, CALLS)
            assert sum(each.total for each in totals) == counted
        assert await house.parked() == []


def race(postgres: ScratchServer, examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @example(groups=OVER_THE_LIMIT)
    @example(groups=MONTH_AND_YEAR)
    @example(groups=RESET_AS_A_WINDOW_BEGINS)
    @given(groups=GROUPS)
    def run(groups: list[list[str]]) -> None:
        with postgres.lent() as scratch:
            asyncio.run(any_order(lambda: open_stage(scratch), groups))

    run()


def test_whatever_meets_a_window_its_limit_is_kept(postgres: ScratchServer) -> None:
    race(postgres, 4)


@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_whatever_meets_a_window_its_limit_is_kept_in_many_orders(postgres: ScratchServer) -> None:
    race(postgres, 300)


def in_the_function(text: str, instead: str) -> Without:
    @contextmanager
    def without(stage: OpenStage) -> Iterator[OpenStage]:
        yield altered(stage, text, instead)

    return without


def in_the_module(target: object, name: str, instead: object) -> Without:
    @contextmanager
    def without(stage: OpenStage) -> Iterator[OpenStage]:
        with patched(target, name, instead)():
            yield stage

    return without


async def nothing(*_: object) -> None:
    return None


WITHOUT: Final[dict[str, tuple[Without, str]]] = {
    "the limit": (
        in_the_function(
            "or case when c.period_start = excluded.period_start then c.used else 0 end + answer.counted\n"
            "                <= answer.allowed",
            "or true",
        ),
        "over the limit",
    ),
    "the beginning at zero": (
        in_the_function(
            "used = case when c.period_start = excluded.period_start then c.used else 0 end", "used = c.used"
        ),
        "over the limit",
    ),
    "the use that goes along": (in_the_module(usage, "carry_over", nothing), "month and year"),
}


@pytest.mark.parametrize("name", WITHOUT)
async def test_without_it_an_order_is_found_that_breaks_a_promise(stage: OpenStage, name: str) -> None:
    without, order = WITHOUT[name]
    with without(stage) as opened, pytest.raises((AssertionError, asyncpg.IntegrityConstraintViolationError)):
        await any_order(opened, EXAMPLES[order])
