"""A message does not end while an effect of it may be under way."""

from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

import pytest

from payonce.engine.effects import Answer, Keyed, Safety, answer_review, reviews
from payonce.engine.model import Message, State
from payonce.engine.policy import Fixed, Policy
from payonce.engine.process import Worker
from payonce.engine.queue import Filter
from payonce.engine.transaction import Reader, begin
from payonce.engine.work import Handler, Work, handles
from payonce.kit.outcomes import Refused, Unknown
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage, Stage
from tests.engine.effects_stage import Pay, Receipt, Vendor

KEYED = Keyed(valid_for_s=86_400)


async def step(s: Stage, *handlers: Handler) -> None:
    """One run of one message."""
    worker = Worker(handlers, s.database, s.feed, lambda policy: PostgresQueue(s.database, s.bell, policy, "worker-1"))
    assert await worker.step()


async def put(s: Stage, policy: Policy) -> UUID:
    await s.feed.declare([policy])
    [message_id] = await s.feed.put([Message(queue=policy.queue)])
    return message_id


async def why_it_waits(s: Stage, state: State) -> str:
    """The last error of the only message in that state; nothing when there is none."""
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
                tx, review.effect.id, Answer.HAPPENED, "ada", "it is in their books", revision=review.effect.revision,
                outcome=Receipt("n-p-1:1", "p-1:1"), effect=Pay,
            )  # fmt: skip
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
        assert "although the end of test.pay p-1:1 is not known" in await why_it_waits(s, State.READY)
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
