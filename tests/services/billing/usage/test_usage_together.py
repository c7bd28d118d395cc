"""Events that come at the same time share a call to the store, and nothing else."""

import asyncio
from typing import Any

import asyncpg
import pytest

from payonce.services.billing.subscriptions.api import usage_batch
from payonce.services.billing.subscriptions.api.usage_batch import BATCH_MAX, UsageBatcher
from payonce.services.billing.subscriptions.store.usage import CountedUsage, UsageRefusal, UsageRefused
from payonce.testing import OpenStage, Stage, eventually
from tests.locks import waiting_for_locks, waits_for_a_lock
from tests.services.billing.usage.usage_stage import CALLS, PROJECTS, broken, counter, subscribe


class Listening:
    """What goes to the store, on its way."""

    def __init__(self, s: Stage) -> None:
        self._s = s
        self.calls: list[int] = []

    async def fetch(self, sql: str, /, *arguments: Any) -> list[Any]:
        self.calls.append(len(arguments[0]))
        return await self._s.read.fetch(sql, *arguments)

    async def fetchrow(self, sql: str, /, *arguments: Any) -> Any:
        return await self._s.read.fetchrow(sql, *arguments)

    async def fetchval(self, sql: str, /, *arguments: Any) -> Any:
        return await self._s.read.fetchval(sql, *arguments)


async def test_each_gets_its_own_answer_in_whatever_company(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        await subscribe(s, "berta", state="paused")
        together = UsageBatcher(s.read)
        asked = [
            ("anna", PROJECTS, 2, "p-1"),
            ("anna", CALLS, 5, "c-1"),
            ("nobody", CALLS, 1, "n-1"),
            ("berta", CALLS, 1, "b-1"),
            ("anna", PROJECTS, 2, "p-2"),
            ("anna", CALLS, 5, "c-1"),
            ("anna", "teleports", 1, "t-1"),
            ("anna", CALLS, -2, "c-2"),
            ("anna", PROJECTS, 1, "c-1"),
        ]
        ends = await asyncio.gather(*(together.use(*event) for event in asked), return_exceptions=True)
        told = [
            (end.event_id, end.used, end.repeated) if isinstance(end, CountedUsage) else getattr(end, "why", end)
            for end in ends
        ]
        assert told == [
            ("p-1", 2, False),
            ("c-1", 5, False),
            UsageRefusal.NO_SUBSCRIPTION,
            UsageRefusal.NOT_ENTITLED,
            UsageRefusal.OVER_LIMIT,
            ("c-1", 5, True),
            UsageRefusal.UNKNOWN_FEATURE,
            ("c-2", 3, False),
            UsageRefusal.REUSED,
        ]
        assert await broken(s) == {}


async def test_what_waits_goes_together_and_what_comes_alone_at_once(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s, plan="enterprise-v1")
        store = Listening(s)
        together = UsageBatcher(store)
        await together.use("anna", CALLS, 1, "alone")
        assert store.calls == [1]
        count = 3 * BATCH_MAX
        await asyncio.gather(*(together.use("anna", CALLS, 1, f"e-{number}") for number in range(count)))
        assert sum(store.calls) == 1 + count
        assert max(store.calls) == BATCH_MAX
        assert len(store.calls) == 1 + 3
        assert await counter(s) == 1 + count


async def test_two_calls_with_the_same_events_do_not_wait_in_a_circle(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        one, two = UsageBatcher(s.read), UsageBatcher(s.read)
        async with s.owner.transaction():
            # The first call waits for an event between two others of the same counter; the second brings the last one.
            await s.owner.execute(
                "select pg_advisory_xact_lock(hashtextextended('between', hashtextextended('anna', 0)))"
            )
            first = [asyncio.create_task(one.use("anna", CALLS, 1, event)) for event in ("before", "between", "after")]
            await eventually(lambda: waits_for_a_lock(s))
            second = asyncio.create_task(two.use("anna", CALLS, 1, "after"))

            async def is_under_way() -> bool:
                return second.done() or await waiting_for_locks(s) >= 2

            await eventually(is_under_way)
        ends = await asyncio.gather(*first, second)
        assert [end.event_id for end in ends] == ["before", "between", "after", "after"]
        assert await counter(s) == 3


async def test_an_event_that_the_store_cannot_take_does_not_harm_the_others(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        together = UsageBatcher(s.read)
        asked = [("anna", CALLS, 1, "e-1"), ("anna", CALLS, 0, "nothing"), ("anna", CALLS, 1, "e-2")]
        first, wrong, last = await asyncio.gather(*(together.use(*event) for event in asked), return_exceptions=True)
        assert isinstance(wrong, asyncpg.CheckViolationError)
        assert [end.used for end in (first, last) if isinstance(end, CountedUsage)] == [1, 2]


async def test_a_store_that_is_away_is_told_to_all_who_wait(stage: OpenStage) -> None:
    class Away(Listening):
        async def fetch(self, sql: str, /, *arguments: Any) -> list[Any]:
            self.calls.append(len(arguments[0]))
            raise ConnectionRefusedError("nobody there")

    async with stage() as s:
        store = Away(s)
        together = UsageBatcher(store)
        ends = await asyncio.gather(
            *(together.use("anna", CALLS, 1, f"e-{number}") for number in range(5)), return_exceptions=True
        )
        assert [type(end) for end in ends] == [ConnectionRefusedError] * 5
        assert store.calls == [5]


async def test_whoever_went_away_meanwhile_was_counted_all_the_same(stage: OpenStage) -> None:
    async with stage() as s:
        await subscribe(s)
        together = UsageBatcher(s.read)
        async with s.owner.transaction():
            await s.owner.execute("lock table subscriptions.usage_counters in exclusive mode")
            going = asyncio.create_task(together.use("anna", CALLS, 1, "e-1"))
            staying = asyncio.create_task(together.use("anna", CALLS, 1, "e-2"))
            await eventually(lambda: waits_for_a_lock(s))
            going.cancel()
        assert (await staying).used == 2
        assert going.cancelled()
        assert (await together.use("anna", CALLS, 1, "e-1")).repeated


async def test_over_the_limit_is_refused_in_company_too(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_batch, "BATCH_MAX", 7)
    async with stage() as s:
        await subscribe(s)
        processes = [UsageBatcher(s.read) for _ in range(3)]
        asked = (processes[number % 3].use("anna", PROJECTS, 1, f"e-{number}") for number in range(30))
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert sorted(end.used for end in ends if isinstance(end, CountedUsage)) == [1, 2, 3]
        assert sum(isinstance(end, UsageRefused) and end.why is UsageRefusal.OVER_LIMIT for end in ends) == 27
        assert await counter(s, PROJECTS) == 3
