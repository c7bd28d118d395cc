"""The answer to an effect in review wakes its message in any state, on every backend; and the preview of a redrive
shows which messages would only go back to waiting."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.controls import Executed, ReviewAnswer, answer_review_action, submit
from payonce.engine.effects import Blind
from payonce.engine.effects.review import Answer, Review, reviews
from payonce.engine.messages.model import Message, State
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.ports import Admin, Filter
from payonce.engine.messages.process import Worker
from payonce.engine.messages.transaction import NotifyingFeed, Reader, begin
from payonce.engine.messages.work import Handler, Work, handles
from payonce.engine.outbox import relay_step
from payonce.kit.outcomes import Retry
from payonce.queues.redis import RedisRelay
from payonce.testing import ScratchDatabase, Stage, open_stage
from tests.cloudtasks.testbed import open_runs
from tests.conformance.redis_stage import RedisStage, open_redis_stage
from tests.engine.effects_stage import Pay, Vendor

PAY = Policy("pay", max_attempts=4, backoff=Fixed(3_600), lease_s=30)
OUTCOME = {"number": "n-p-1:1", "reference": "p-1:1"}


@dataclass
class Ground:
    s: Stage | RedisStage
    feed: NotifyingFeed
    admin: Admin
    worker: Worker
    bring: Callable[[], Awaitable[None]]
    """Due messages reach the place where the worker finds them."""
    vendor: Vendor
    acts: "Acts"

    async def step(self) -> bool:
        await self.bring()
        return await self.worker.step()

    async def review(self) -> Review:
        [found] = await reviews(Reader(self.s.database))
        return found

    async def answer(self, how: Answer = Answer.HAPPENED) -> Any:
        found = await self.review()
        given = ReviewAnswer(found.effect.id, found.effect.revision, how, "seen", OUTCOME)
        async with begin(self.s.database, self.feed) as tx:
            end = await submit(tx, answer_review_action(self.admin), given, "ada", "seen")
        assert isinstance(end, Executed)
        return end.result

    async def answer_slowly(self) -> Callable[[], Awaitable[None]]:
        """Answers in a transaction that stays open for a second; the returned function commits it."""
        answered, commit = asyncio.Event(), asyncio.Event()
        found = await self.review()

        async def answer() -> None:
            given = ReviewAnswer(found.effect.id, found.effect.revision, Answer.HAPPENED, "seen", OUTCOME)
            async with begin(self.s.database, self.feed) as tx:
                await submit(tx, answer_review_action(self.admin), given, "ada", "seen")
                answered.set()
                await commit.wait()

        answering_now = asyncio.create_task(answer())
        await answered.wait()
        await self.s.clock.advance(1)

        async def committed() -> None:
            commit.set()
            await answering_now

        return committed

    async def states(self) -> tuple[int, int, int]:
        """Due, delayed, parked."""
        await self.bring()
        depth = await self.admin.depth(PAY.queue)
        return depth.ready, depth.delayed, depth.parked

    async def is_paid(self) -> bool:
        return bool(await self.s.owner.fetchval("select state = 'performed' from payonce.effects"))


OpenGround = Callable[[], AbstractAsyncContextManager[Ground]]


@dataclass
class Acts:
    """An event inside the next run."""

    before: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Before its effect; the run then ends with a retry and never reaches it."""
    after: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """After its effect, if that ended with a retry."""


def handler_of(vendor: Vendor, acts: Acts) -> Handler:
    @handles(PAY)
    async def pay(work: Work) -> None:
        if acts.before:
            await _all(acts.before)
            raise Retry("not ready yet")
        try:
            await work.effect(Pay(vendor, Blind()), key="p-1")
        except Retry:
            await _all(acts.after)
            raise
        if "busy" in vendor.faults:
            raise Retry("somebody else is busy")
        async with work.commit():
            pass

    return pay


async def _all(acts: list[Callable[[], Awaitable[None]]]) -> None:
    while acts:
        await acts.pop(0)()


@asynccontextmanager
async def on_postgres(scratch: ScratchDatabase, vendor: Vendor, acts: Acts) -> AsyncIterator[Ground]:
    async def nothing() -> None:
        pass

    async with open_stage(scratch) as s:
        await s.clock.freeze()
        queue = await s.queue(PAY)
        worker = Worker([handler_of(vendor, acts)], s.database, s.feed, lambda _: queue)
        await s.feed.put([Message(queue=PAY.queue)])
        yield Ground(s, s.feed, s.admin, worker, nothing, vendor, acts)


@asynccontextmanager
async def on_redis(scratch: ScratchDatabase, server: RedisServer, vendor: Vendor, acts: Acts) -> AsyncIterator[Ground]:
    async with open_redis_stage(scratch, server) as s:
        await s.clock.freeze()
        queue = await s.queue(PAY)

        async def relay() -> None:
            while await relay_step(s.database, RedisRelay(s.store)):
                pass

        worker = Worker([handler_of(vendor, acts)], s.database, s.feed, lambda _: queue)
        async with begin(s.database, s.feed) as tx:
            await tx.send(PAY, {})
        yield Ground(s, s.feed, s.admin, worker, relay, vendor, acts)


@asynccontextmanager
async def on_cloud_tasks(scratch: ScratchDatabase, vendor: Vendor, acts: Acts) -> AsyncIterator[Ground]:
    async with open_stage(scratch) as s:
        await s.clock.freeze()
        async with open_runs(s, PAY) as runs:

            async def tasks() -> None:
                """The task service has every task, and delivers the due ones."""
                await s.owner.execute(
                    "update payonce.outbox set state = 'delivered', token = token + 1 where state = 'waiting'"
                )
                due = "state = 'delivered' and ready_at <= payonce.due_now()"
                for row in await s.owner.fetch(f"select id, delivery from payonce.outbox where {due}"):
                    runs.bring(row["id"], row["delivery"])

            worker = Worker([handler_of(vendor, acts)], s.database, runs.tasks.feed, lambda _: runs.queue)
            await runs.tasks.feed.put([Message(queue=PAY.queue)])
            yield Ground(s, runs.tasks.feed, runs.tasks.admin, worker, tasks, vendor, acts)


@pytest.fixture(params=["PostgreSQL", "Redis", "Cloud Tasks"])
def ground(scratch: ScratchDatabase, request: pytest.FixtureRequest) -> OpenGround:
    vendor, acts = Vendor(faults=["lost after"]), Acts()
    if request.param == "PostgreSQL":
        return lambda: on_postgres(scratch, vendor, acts)
    if request.param == "Redis":
        server = request.getfixturevalue("redis_server")
        return lambda: on_redis(scratch, server, vendor, acts)
    return lambda: on_cloud_tasks(scratch, vendor, acts)


async def _lost(g: Ground) -> None:
    """The vendor's answer was lost; the next run opens a review."""
    await g.step()
    await g.s.clock.advance(3_601)


async def _last_run_is_due(g: Ground) -> None:
    """With its effect in review."""
    for _ in range(3):
        await g.step()
        await g.s.clock.advance(3_601)


async def _parked(g: Ground) -> None:
    """With its effect in review."""
    for _ in range(4):
        await g.step()
        await g.s.clock.advance(3_601)


async def test_an_answer_wakes_a_message_that_waits_for_its_next_attempt(ground: OpenGround) -> None:
    async with ground() as g:
        await _lost(g)
        await g.step()
        await g.review()
        assert (await g.states())[1:] == (1, 0)
        assert not await g.step(), "its time has not come"
        assert (await g.answer())["redriven"]
        assert (await g.states())[1:] == (0, 0)
        assert await g.step()
        assert await g.is_paid()
        assert await g.states() == (0, 0, 0)
        assert len(g.vendor.calls) == 1


async def test_an_answer_wakes_a_message_that_was_redriven_into_the_review(ground: OpenGround) -> None:
    async with ground() as g:
        await _parked(g)
        assert (await g.states())[1:] == (0, 1)
        preview = await g.admin.preview(PAY.queue, State.PARKED, Filter())
        assert (preview.count, preview.in_review, preview.with_open_effects) == (1, 1, 1)
        assert await g.admin.redrive(PAY.queue, Filter()) == 1
        await g.step()
        assert (await g.states())[1:] == (1, 0), "straight back to waiting"
        await g.answer()
        assert await g.step()
        assert await g.is_paid()
        assert await g.states() == (0, 0, 0)
        assert len(g.vendor.calls) == 1


async def test_an_answer_wakes_a_parked_message(ground: OpenGround) -> None:
    async with ground() as g:
        await _parked(g)
        assert (await g.states())[1:] == (0, 1)
        await g.answer()
        assert await g.step()
        assert await g.is_paid()
        assert await g.states() == (0, 0, 0)


async def test_an_answer_during_a_run_makes_the_next_run_due_at_once(ground: OpenGround) -> None:
    async with ground() as g:
        await _lost(g)
        g.acts.after.append(_quietly(g.answer))
        await g.step()
        assert (await g.states())[1:] == (0, 0)
        assert await g.step()
        assert await g.is_paid()
        assert await g.states() == (0, 0, 0)
        assert len(g.vendor.calls) == 1


async def test_an_answer_during_a_run_that_never_comes_to_its_effect_makes_the_next_run_due_at_once(
    ground: OpenGround,
) -> None:
    async with ground() as g:
        await _lost(g)
        await g.step()
        await g.s.clock.advance(3_601)
        g.acts.before.append(_quietly(g.answer))
        await g.step()
        assert (await g.states())[1:] == (0, 0)
        assert await g.step()
        assert await g.is_paid()
        assert await g.states() == (0, 0, 0)
        assert len(g.vendor.calls) == 1


async def test_an_answer_during_the_last_run_makes_one_more_run_due_at_once(ground: OpenGround) -> None:
    async with ground() as g:
        await _last_run_is_due(g)
        g.acts.before.append(_quietly(g.answer))
        await g.step()
        assert (await g.states())[1:] == (0, 0)
        assert await g.step()
        assert await g.is_paid()


async def test_an_answer_begun_before_the_run_and_committed_after_its_look_wakes_the_message(
    ground: OpenGround,
) -> None:
    async with ground() as g:
        await _lost(g)
        await g.step()
        await g.s.clock.advance(3_601)
        g.acts.after.append(await g.answer_slowly())
        await g.step()
        assert (await g.states())[1:] == (0, 0)
        assert await g.step()
        assert await g.is_paid()
        assert await g.states() == (0, 0, 0)


async def test_an_answer_begun_before_the_last_run_and_committed_after_its_look_wakes_the_message(
    ground: OpenGround,
) -> None:
    async with ground() as g:
        await _last_run_is_due(g)
        g.acts.after.append(await g.answer_slowly())
        await g.step()
        assert (await g.states())[1:] == (0, 0)
        assert await g.step()
        assert await g.is_paid()
        assert await g.states() == (0, 0, 0)


async def test_a_message_is_not_given_up_on_an_answer_that_its_last_run_did_not_read(ground: OpenGround) -> None:
    async with ground() as g:
        await _last_run_is_due(g)
        g.acts.before.append(await g.answer_slowly())
        await g.step()
        assert (await g.states())[1:] == (1, 0)
        await g.s.clock.advance(3_601)
        assert await g.step()
        assert await g.is_paid()
        assert await g.states() == (0, 0, 0)


async def test_an_answer_while_the_run_is_being_settled_waits_and_wakes_the_message(ground: OpenGround) -> None:
    async with ground() as g:
        answering_now: list[asyncio.Task[Any]] = []

        async def answer_soon() -> None:
            answering_now.append(asyncio.create_task(g.answer()))

        await _lost(g)
        g.acts.after.append(answer_soon)
        await g.step()
        await asyncio.gather(*answering_now)
        assert (await g.states())[1:] == (0, 0)
        assert await g.step()
        assert await g.is_paid()


async def test_an_older_answer_does_not_hurry_runs_that_never_come_to_their_effect(ground: OpenGround) -> None:
    """Otherwise such a message would be retried without a pause and use up its attempts."""
    async with ground() as g:
        await _lost(g)
        await g.step()
        await g.answer()
        await g.s.clock.advance(1)
        g.acts.before.append(_nothing)
        assert await g.step()
        assert (await g.states())[1:] == (1, 0)
        assert not await g.step()


async def test_only_an_answer_to_this_very_run_makes_the_next_one_due_at_once(ground: OpenGround) -> None:
    """Otherwise a message that is retried for another reason would be retried without a pause."""
    async with ground() as g:
        await _lost(g)
        g.acts.after.append(_quietly(g.answer))
        await g.step()
        await g.s.clock.advance(1)
        g.vendor.faults.append("busy")
        assert await g.step()
        assert await g.is_paid()
        assert (await g.states())[1:] == (1, 0)
        assert not await g.step()


async def _nothing() -> None:
    pass


def _quietly(act: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[None]]:
    async def quiet() -> None:
        await act()

    return quiet
