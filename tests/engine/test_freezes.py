"""A freeze stops every send whose intent comes after it, even for claimed messages, and nothing else."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from payonce.engine.controls import (
    CHECKS,
    Freeze,
    SendsInFlight,
    check_freezes,
    freeze,
    freeze_rules,
    freezes,
    lift,
    wait_until_quiet,
)
from payonce.engine.controls.freeze_rules import LOOK_S
from payonce.engine.effects import Findable, Keyed, Sending
from payonce.engine.messages.model import Message, State
from payonce.engine.messages.process import Worker
from payonce.engine.messages.runs import Gate
from payonce.engine.messages.work import Work, handles
from payonce.engine.messages.worker import QueueServer
from payonce.engine.monitoring import metrics
from payonce.kit.outcomes import Held, Invalid, Unavailable
from payonce.testing import OpenStage, eventually
from tests.engine.controls_stage import PAY, PayCoins, PayEuros, Till, euros, open_till
from tests.engine.effects_stage import HORIZON_S, TIMEOUT_S, Order, Receipt
from tests.locks import apart, waiting_for_locks, waits_or_ended

KEYED = Keyed(3_600.0)
MANY = 300
"""More than can have begun by the time a freeze takes effect."""


async def frozen(till: Till, **conditions: Any) -> Freeze:
    conditions = {"by": "ada", "reason": "the vendor pays twice", **conditions}
    async with till.begin() as tx:
        return await freeze(tx, **conditions)


def sending(vendor: str = "bank") -> Sending:
    return Sending("bank.pay", vendor, "p", None, None, euros("1.00"), "payouts", None, again=False)


async def test_a_claimed_message_sends_nothing_after_the_freeze_and_goes_on_after_the_lift(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        [work] = await till.claim()
        made = await frozen(till, vendor="bank")
        with pytest.raises(Held, match=f"freeze {made.id} of vendor bank by ada: the vendor pays twice") as held:
            await till.pay(work, "p-1")
        assert held.value.after_s == LOOK_S
        assert till.vendor.calls == []
        assert await till.states() == {}, "nothing of it is on record either"
        async with till.begin() as tx:
            await lift(tx, made.id, "bob", "mended")
        await till.pay(work, "p-1")
        assert till.vendor.times() == {"p-1:1": 1}


@pytest.mark.parametrize(
    ("conditions", "stops"),
    [
        ({"vendor": "bank"}, True),
        ({"vendor": "exchange"}, False),
        ({"asset": "EUR"}, True),
        ({"asset": "TON"}, False),
        ({"tenant": "acme"}, True),
        ({"tenant": "other"}, False),
        ({"service": "payouts"}, True),
        ({"service": "billing"}, False),
        ({"vendor": "bank", "asset": "EUR", "tenant": "acme", "service": "payouts"}, True),
        ({"vendor": "bank", "asset": "TON"}, False),
        ({"vendor": "exchange", "tenant": "acme"}, False),
        ({"everything": True}, True),
    ],
    ids=str,
)
async def test_every_condition_of_a_freeze_must_match(
    stage: OpenStage, conditions: dict[str, Any], stops: bool
) -> None:
    async with open_till(stage) as till:
        await frozen(till, **conditions)
        [work] = await till.claim(lane="acme")
        [result] = await asyncio.gather(till.pay(work, "p-1"), return_exceptions=True)
        assert isinstance(result, Held) is stops
        assert len(till.vendor.calls) == (0 if stops else 1)


async def test_other_vendors_run_on_beside_a_frozen_one(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await frozen(till, vendor="bank")
        [work] = await till.claim()
        await till.pay(work, "p-1", kind=PayCoins)
        assert len(till.vendor.calls) == 1


async def test_an_intent_that_commits_after_the_freeze_has_seen_it(stage: OpenStage) -> None:
    """The freeze waits for the intent in progress, and the next intent for the freeze."""
    async with open_till(stage) as till:
        async with till.begin() as under_way:
            await check_freezes(under_way, sending())
            freezing = apart(frozen(till, vendor="bank"))
            assert await waits_or_ended(till.s, freezing)
            [work] = await till.claim()
            paying = apart(till.pay(work, "p-1"))

            async def both_wait_or_one_went_on() -> bool:
                return paying.done() or freezing.done() or await waiting_for_locks(till.s) == 2

            await eventually(both_wait_or_one_went_on)
            assert not freezing.done()
        await freezing
        with pytest.raises(Held):
            await paying
        assert till.vendor.calls == []


async def _is(answer: Any, wanted: int) -> bool:
    return bool(await answer == wanted)


async def test_no_intent_of_many_at_once_commits_after_the_freeze(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        works = await till.claim(MANY)
        paying = apart(till.pay_all(works))
        await eventually(lambda: till.vendor.calls)
        await frozen(till, everything=True)
        intents = await till.s.owner.fetchval("select count(*) from payonce.effects")
        results = await paying
        assert await till.s.owner.fetchval("select count(*) from payonce.effects") == intents
        assert len(till.vendor.calls) == intents < MANY
        assert sum(isinstance(result, Held) for result in results) == MANY - intents


async def test_a_further_try_is_frozen_too(stage: OpenStage) -> None:
    async with open_till(stage, KEYED, "not sent", "lost after") as till:
        first, second = await till.claim(2)
        for work, key in ((first, "p-1"), (second, "p-2")):
            await asyncio.gather(till.pay(work, key), return_exceptions=True)
        await frozen(till, vendor="bank")
        for work, key in ((first, "p-1"), (second, "p-2")):
            with pytest.raises(Held):
                await till.pay(work, key)
        assert len(till.vendor.calls) == 2
        assert await till.states() == {"p-1": "intended", "p-2": "unknown"}


async def test_a_freeze_never_keeps_an_outcome_from_being_recorded(stage: OpenStage) -> None:
    async with open_till(stage, KEYED, "stop before") as till:
        [work] = await till.claim()
        paying = apart(till.pay(work, "p-1"))
        await till.vendor.arrived.wait()
        await frozen(till, everything=True)
        till.vendor.resume.set()
        await paying
        assert await till.states() == {"p-1": "performed"}
        assert await till.pay(work, "p-1") == await paying, "what is on record is answered, frozen or not"


class PayWithinABudget(PayEuros):
    """Waits for the vendor's budget inside perform(), as real clients do."""

    async def perform(self, request: Order) -> Receipt:
        self.vendor.arrived.set()
        await self.vendor.resume.wait()
        return await super().perform(request)


async def test_a_freeze_tells_of_the_sends_that_had_begun_and_waits_for_their_end(stage: OpenStage) -> None:
    """An intent before the freeze may be sent after it: it is not reported quiet before that."""
    async with open_till(stage, KEYED) as till:
        works = await till.claim(2)
        paying = apart(till.pay(works[0], "p-1", 150, PayWithinABudget))
        await till.vendor.arrived.wait()
        made = await frozen(till, everything=True)
        assert (made.under_way.count, made.under_way.amounts) == (1, (euros("1.50"),))
        busy_until = await till.s.owner.fetchval("select busy_until from payonce.effects")
        assert made.under_way.until == busy_until
        assert (await till.notes())[-1][1].endswith("pays twice; " + str(made.under_way))
        waiting = asyncio.create_task(wait_until_quiet(till.read, made))
        with pytest.raises(Held):
            await till.pay(works[1], "p-2")
        assert (await wait_until_quiet(till.read, made, limit_s=0.0)).count == 1, "it is bounded, and says what is left"
        assert not waiting.done()
        till.vendor.resume.set()
        await paying
        assert not await waiting
        assert till.vendor.times() == {"p-1:1": 1}


async def test_it_is_quiet_when_the_time_outs_have_ended_though_nobody_said_so(stage: OpenStage) -> None:
    """A worker that died in its send records nothing, and sends nothing either."""
    async with open_till(stage, KEYED) as till:
        [work] = await till.claim()
        paying = apart(till.pay(work, "p-1", 100, PayWithinABudget))
        await till.vendor.arrived.wait()
        made = await frozen(till, vendor="bank")
        waiting = asyncio.create_task(wait_until_quiet(till.read, made))
        await till.s.clock.advance(TIMEOUT_S + 1)
        assert not await waiting
        paying.cancel()
        await asyncio.gather(paying, return_exceptions=True)


@pytest.mark.parametrize(
    ("conditions", "count"),
    [
        ({"vendor": "exchange"}, 0),
        ({"asset": "TON"}, 0),
        ({"tenant": "other"}, 0),
        ({"service": "billing"}, 0),
        ({"vendor": "bank", "asset": "EUR", "tenant": "acme", "service": "payouts"}, 1),
    ],
    ids=str,
)
async def test_a_freeze_tells_only_of_sends_that_it_would_have_stopped(
    stage: OpenStage, conditions: dict[str, Any], count: int
) -> None:
    async with open_till(stage, KEYED, "stop before") as till:
        [work] = await till.claim(lane="acme")
        paying = apart(till.pay(work, "p-1"))
        await till.vendor.arrived.wait()
        assert (await frozen(till, **conditions)).under_way.count == count
        till.vendor.resume.set()
        await paying
        assert (await frozen(till, everything=True)).under_way == SendsInFlight()


async def test_a_freeze_never_keeps_us_from_asking_what_happened(stage: OpenStage) -> None:
    async with open_till(stage, Findable(HORIZON_S), "lost after") as till:
        [work] = await till.claim()
        await asyncio.gather(till.pay(work, "p-1"), return_exceptions=True)
        await frozen(till, everything=True)
        await till.pay(work, "p-1")
        assert await till.states() == {"p-1": "performed"}
        assert len(till.vendor.calls) == 1


async def test_a_frozen_vendor_is_not_even_fenced(stage: OpenStage) -> None:
    async with open_till(stage, None, "lost before") as till:
        till.safety = Findable(HORIZON_S, till.vendor.forget)
        [work] = await till.claim()
        await asyncio.gather(till.pay(work, "p-1"), return_exceptions=True)
        await till.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        made = await frozen(till, vendor="bank")
        with pytest.raises(Held):
            await till.pay(work, "p-1")
        assert (till.vendor.fences, len(till.vendor.calls)) == (0, 1)
        async with till.begin() as tx:
            await lift(tx, made.id, "bob", "mended")
        await till.pay(work, "p-1")
        assert (till.vendor.fences, till.vendor.times()) == (1, {"p-1:1": 1})


async def test_a_worker_with_claimed_messages_sends_none_and_gives_none_up(stage: OpenStage) -> None:
    """Through the worker's own loop, for longer than the policy would retry."""
    go_on = asyncio.Event()
    async with open_till(stage) as till:

        @handles(PAY)
        async def pay(work: Work) -> None:
            await go_on.wait()
            await work.effect(PayEuros(till.vendor, KEYED), key=str(work.message.id))

        worker = Worker([pay], till.s.database, till.s.feed, lambda _: till.queue, checks=CHECKS)
        running = asyncio.create_task(worker.run())
        try:
            ids = await till.s.feed.put([Message(queue=PAY.queue) for _ in range(20)])
            await eventually(lambda: _is(_running(worker), 20))
            made = await frozen(till, vendor="bank")
            go_on.set()
            for _ in range(12):
                await eventually(till.s.drained)
                await till.s.clock.advance(LOOK_S + 1)
            await eventually(till.s.drained)
            assert till.vendor.calls == []
            waiting = await till.s.admin.peek(PAY.queue, State.READY, 100)
            assert sorted(each.message.id for each in waiting) == sorted(ids)
            assert {(each.message.attempts, (each.last_error or "")[:8]) for each in waiting} == {(0, "freeze 1")}
            async with till.begin() as tx:
                await lift(tx, made.id, "bob", "mended")
            await till.s.clock.advance(LOOK_S + 1)
            await eventually(lambda: len(till.vendor.calls) == 20)
        finally:
            await worker.stop(grace_s=5)
            await asyncio.wait_for(running, 60)
        assert set(till.vendor.times().values()) == {1}


async def test_the_first_trouble_after_a_long_freeze_is_not_the_last(stage: OpenStage) -> None:
    """The time for which a control holds a message does not count towards its policy."""
    async with open_till(stage, KEYED, "not sent") as till:
        gave_up = []

        async def on_give_up(work: Work) -> None:
            gave_up.append(work.message.id)

        async def pay(work: Work) -> None:
            await work.effect(PayEuros(till.vendor, KEYED), key="p-1")

        queue = await till.s.queue(replace(PAY, on_give_up=on_give_up))
        server = QueueServer(queue, {None: pay}, till.s.database, till.s.feed, Gate(), 1, "payouts", CHECKS)
        await till.s.feed.put([Message(queue=PAY.queue)])
        made = await frozen(till, everything=True)
        assert PAY.give_up_after_s is not None
        for _ in range(int(PAY.give_up_after_s / LOOK_S) + 2):
            assert await server.step()
            await till.s.clock.advance(LOOK_S + 1)
        async with till.begin() as tx:
            await lift(tx, made.id, "bob", "mended")
        assert await server.step()
        assert (gave_up, await till.states()) == ([], {"p-1": "intended"})
        [waiting] = await till.s.admin.peek(PAY.queue, State.READY, 10)
        assert waiting.message.attempts == 1
        await till.s.clock.advance(PAY.give_up_after_s / 2)
        assert await server.step()
        assert await till.states() == {"p-1": "performed"}


async def _running(worker: Worker) -> int:
    return worker.running


async def test_a_freeze_ends_by_itself(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        now = await till.s.clock.freeze()
        made = await frozen(till, vendor="bank", until=now + timedelta(seconds=30))
        [work] = await till.claim()
        with pytest.raises(Held) as held:
            await till.pay(work, "p-1")
        assert held.value.after_s == 30
        assert await freezes(till.read) == [made]
        await till.s.clock.advance(30)
        assert await freezes(till.read) == []
        assert [each.in_force for each in await freezes(till.read, ended=True)] == [False]
        await till.pay(work, "p-1")


async def test_freezing_and_lifting_are_audited_with_who_and_why(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        made = await frozen(till, asset="EUR", service="payouts")
        async with till.begin() as tx:
            lifted = await lift(tx, made.id, "bob", "mended")
        assert (lifted.lifted_by, lifted.lifted_why) == ("bob", "mended")
        assert await till.notes() == [
            ("ada", "froze asset EUR, service payouts: the vendor pays twice"),
            ("bob", "lifted the freeze of asset EUR, service payouts: mended"),
        ]
        with pytest.raises(Invalid, match="was lifted by bob"):
            async with till.begin() as tx:
                await lift(tx, made.id, "eve", "again")
        with pytest.raises(Invalid, match="no freeze 99"):
            async with till.begin() as tx:
                await lift(tx, 99, "eve", "again")


@pytest.mark.parametrize(
    ("given", "piece"),
    [
        ({}, "name what to freeze"),
        ({"everything": True, "vendor": "bank"}, "name what to freeze"),
        ({"vendor": " "}, "vendor is ' '"),
        ({"vendor": "bank", "reason": ""}, "the reason is empty"),
        ({"vendor": "bank", "by": ""}, "by is ''"),
        ({"vendor": "bank", "for_s": -1.0}, "which is in the past"),
        ({"vendor": "x" * 201}, "1 to 200 characters"),
    ],
    ids=str,
)
async def test_a_freeze_that_would_stop_nothing_is_refused(stage: OpenStage, given: dict[str, Any], piece: str) -> None:
    async with open_till(stage) as till:
        with pytest.raises(Invalid, match=piece):
            await frozen(till, **given)
        assert await till.notes() == []


async def test_what_was_frozen_cannot_be_rewritten(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await frozen(till, vendor="bank")
        for statement in ("update payonce.freezes set vendor = 'other'", "delete from payonce.freezes"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await till.s.database.work.execute(statement)


async def test_a_stuck_intent_is_named_and_nothing_is_frozen(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freeze_rules, "LOCK_WAIT_S", 1)
    async with open_till(stage) as till, till.begin() as stuck:
        await check_freezes(stuck, sending())
        pid = await stuck.fetchval("select pg_backend_pid()")
        with pytest.raises(Unavailable, match=f"nothing is frozen yet: the database sessions {pid} have kept"):
            await frozen(till, vendor="bank")
        assert await freezes(till.read, ended=True) == []


async def test_held_sends_are_counted(stage: OpenStage) -> None:
    before = metrics.HELD.labels("freeze")._value.get()
    async with open_till(stage) as till:
        await frozen(till, everything=True)
        await till.pay_all(await till.claim(3))
    assert metrics.HELD.labels("freeze")._value.get() == before + 3
