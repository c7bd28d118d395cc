"""A message does not end while an effect of it may be under way."""

from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

import pytest

from payonce.engine.effects import Answer, Blind, Keyed, Safety, answer_review, reviews
from payonce.engine.messages.model import Message, State
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.ports import Filter
from payonce.engine.messages.process import Worker
from payonce.engine.messages.transaction import Reader, begin
from payonce.engine.messages.work import Handler, Work, handles
from payonce.kit.outcomes import Held, Refused, Retry, Unknown
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage, Stage
from tests.engine.effects_stage import Order, Pay, Receipt, Vendor, open_context

KEYED = Keyed(valid_for_s=86_400)


async def step(s: Stage, *handlers: Handler) -> None:
    """One run of one message."""
    worker = Worker(
        handlers, s.database, s.feed, lambda policy: PostgresQueue(s.database, s.notifier, policy, "worker-1")
    )
    assert await worker.step()


async def put(s: Stage, policy: Policy) -> UUID:
    await s.feed.declare([policy])
    [message_id] = await s.feed.put([Message(queue=policy.queue)])
    return message_id


async def why_it_waits(s: Stage, state: State) -> str:
    """The last error of the only message in that state; empty without one."""
    found = await s.admin.peek("pay", state, 10)
    return "".join(each.last_error or "" for each in found)


async def effect_states(s: Stage) -> Sequence[tuple[str, str | None]]:
    rows = await s.owner.fetch("select state, review_cause from payonce.effects order by id")
    return [(row["state"], row["review_cause"]) for row in rows]


def paying(vendor: Vendor, policy: Policy, safety: Safety = KEYED) -> Handler:
    @handles(policy)
    async def pay(work: Work) -> None:
        await work.effect(Pay(vendor, safety), key="p-1")
        async with work.commit():
            pass

    return pay


async def test_giving_up_on_an_unknown_effect_parks_the_message_and_asks_a_person(stage: OpenStage) -> None:
    given_up: list[Work] = []

    async def settle_the_object(work: Work) -> None:
        given_up.append(work)

    policy = Policy("pay", max_attempts=1, lease_s=30, on_give_up=settle_the_object)
    async with stage() as s:
        vendor = Vendor(faults=["lost after"], honours_keys=True)
        await put(s, policy)
        await step(s, paying(vendor, policy))
        assert "test.pay p-1:1 waits for a person" in await why_it_waits(s, State.PARKED)
        assert await effect_states(s) == [("review", "gave_up")]
        assert given_up == [], "the business object must not come to its end while money may be under way"


async def test_what_waits_for_an_answer_says_first_what_went_wrong_also_when_it_is_redriven(stage: OpenStage) -> None:
    policy = Policy("pay", max_attempts=1, lease_s=30)
    async with stage() as s:
        vendor = Vendor(faults=["lost after"], honours_keys=True)
        await put(s, policy)
        for _ in range(2):
            await step(s, paying(vendor, policy))
            reason = await why_it_waits(s, State.PARKED)
            assert reason.index("reset by peer") < reason.index("gave up"), reason
            assert reason.index("reset by peer") < reason.index("test.pay p-1:1 waits for a person"), reason
            assert await s.admin.redrive(policy.queue, Filter()) == 1


async def test_giving_up_on_a_refused_effect_lets_the_object_end(stage: OpenStage) -> None:
    given_up: list[Work] = []

    async def settle_the_object(work: Work) -> None:
        given_up.append(work)

    policy = Policy("pay", max_attempts=1, lease_s=30, on_give_up=settle_the_object)
    async with stage() as s:
        await put(s, policy)
        await step(s, paying(Vendor(faults=["refuse"]), policy))
        assert len(given_up) == 1
        assert await effect_states(s) == [("refused", None)]


async def test_an_answered_review_lets_the_redriven_message_finish(stage: OpenStage) -> None:
    policy = Policy("pay", max_attempts=1, lease_s=30)
    async with stage() as s:
        vendor = Vendor(faults=["lost after"], honours_keys=True)
        await put(s, policy)
        await step(s, paying(vendor, policy))
        [review] = await reviews(Reader(s.database))
        async with begin(s.database, s.feed) as tx:
            await answer_review(
                tx,
                review.effect.id,
                Answer.HAPPENED,
                "ada",
                "it is in their books",
                revision=review.effect.revision,
                outcome=Receipt("n-p-1:1", "p-1:1"),
                effect=Pay,
            )
        assert await s.admin.redrive("pay", Filter()) == 1
        await step(s, paying(vendor, policy))
        assert (await s.admin.depth("pay")).parked == 0
        assert await effect_states(s) == [("performed", None)]
        assert len(vendor.calls) == 1


@pytest.mark.parametrize("way", ["return", "commit"])
async def test_a_handler_cannot_end_its_message_on_an_effect_whose_end_is_unknown(stage: OpenStage, way: str) -> None:
    policy = Policy("pay", max_attempts=3, backoff=Fixed(0), lease_s=30)
    vendor = Vendor(faults=["lost after"], honours_keys=True)

    @handles(policy)
    async def swallow(work: Work) -> None:
        with suppress(Unknown):
            await work.effect(Pay(vendor, KEYED), key="p-1")
        if way == "commit":
            async with work.commit():
                pass

    async with stage() as s:
        await put(s, policy)
        await step(s, swallow)
        assert "although the outcome of test.pay p-1:1 is unknown" in await why_it_waits(s, State.READY)
        assert await effect_states(s) == [("unknown", None)]
        await step(s, swallow)
        assert (await s.admin.depth("pay")).ready == 0
        assert await effect_states(s) == [("performed", None)]


async def test_a_handler_may_end_its_message_on_a_definite_refusal(stage: OpenStage) -> None:
    policy = Policy("pay", lease_s=30)

    @handles(policy)
    async def reject(work: Work) -> None:
        try:
            await work.effect(Pay(Vendor(faults=["refuse"]), KEYED), key="p-1")
        except Refused as no:
            async with work.commit(rejected=no.reason):
                pass

    async with stage() as s:
        message_id = await put(s, policy)
        await step(s, reject)
        status = await s.owner.fetchval("select status from payonce.job_logs where message_id = $1", message_id)
        assert status == "failed"


async def test_a_second_effect_that_ends_does_not_hide_the_first(stage: OpenStage) -> None:
    async with open_context(stage, Blind(), "lost after") as context:
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work, "p-1")
        await context.pay(work, "p-2")
        with pytest.raises(RuntimeError, match=r"the outcome of test\.pay p-1:1 is unknown"):
            async with work.commit():
                pass
        assert (await context.s.admin.depth("pay")).leased == 1


@pytest.mark.parametrize("fault", ["stop before", "stop after"])
async def test_a_refusal_does_not_hide_an_effect_that_is_under_way(stage: OpenStage, fault: str) -> None:
    async with open_context(stage, Blind()) as context:
        work = await context.claim()
        await context.stop_in_the_vendor(work, fault)
        context.vendor.faults.insert(0, "refuse")
        with pytest.raises(Refused):
            await context.pay(work, "p-2")
        with pytest.raises(RuntimeError, match=r"the outcome of test\.pay p-1 is unknown"):
            async with work.commit(rejected="p-2 was refused"):
                pass


async def test_a_run_does_not_end_while_an_effect_of_it_is_still_being_prepared(stage: OpenStage) -> None:
    class Slow(Pay):
        def identity(self) -> object:
            return 100

        async def prepare(self) -> Order:
            await self.vendor._stop()
            return await super().prepare()

    async with open_context(stage, Blind()) as context:
        context.effect_type = Slow
        work = await context.claim()
        paying = await context.stop_in_the_vendor(work, "")
        assert await context.state() == []
        with pytest.raises(RuntimeError, match=r"the outcome of test\.pay p-1 is unknown"):
            async with work.commit():
                pass
        context.vendor.resume.set()
        await paying
        async with work.commit():
            pass


async def later(s: Stage, way: str) -> None:
    """The message is claimed once more; by its attempts and crashes it may look new."""
    if way == "redriven":
        assert await s.admin.redrive("pay", Filter()) == 1
    await s.clock.advance(1_000)


@pytest.mark.parametrize("way", ["retried", "held", "redriven"])
@pytest.mark.parametrize("end", ["return", "commit"])
async def test_a_later_run_cannot_end_the_message_on_what_an_earlier_one_left(
    stage: OpenStage, way: str, end: str
) -> None:
    policy = Policy("pay", max_attempts=1 if way == "redriven" else 3, backoff=Fixed(0), lease_s=30)
    vendor = Vendor(faults=["lost after"], honours_keys=True)
    runs = []

    @handles(policy)
    async def forgetful(work: Work) -> None:
        runs.append(work)
        if len(runs) == 1:
            with suppress(Unknown):
                await work.effect(Pay(vendor, KEYED), key="p-1")
            raise Held("frozen") if way == "held" else Retry("busy")
        if end == "commit":
            async with work.commit():
                pass

    async with stage() as s:
        await put(s, policy)
        await step(s, forgetful)
        await later(s, way)
        await step(s, forgetful)
        state = State.PARKED if way == "redriven" else State.READY
        assert "although the outcome of test.pay p-1:1 is unknown" in await why_it_waits(s, state)


async def test_a_first_run_without_effects_ends_without_a_question(stage: OpenStage) -> None:
    policy = Policy("pay", lease_s=30)
    asked: list[str] = []

    @handles(policy)
    async def nothing_outside(work: Work) -> None:
        work.read = Unread(asked)  # type: ignore[assignment]

    async with stage() as s:
        await put(s, policy)
        await step(s, nothing_outside)
        assert (await s.admin.depth("pay")).leased == (await s.admin.depth("pay")).ready == 0
        assert asked == []


class Unread:
    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    async def fetchrow(self, sql: str, *arguments: object) -> None:
        self.asked.append(sql)
