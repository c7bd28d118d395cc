"""How a worker treats each way in which a run can end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from payonce.engine.messages.model import Message, Settlement, State
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.ports import Exchange, QueuedMessage
from payonce.engine.messages.process import Worker
from payonce.engine.messages.work import Handler, Work, handles
from payonce.engine.monitoring import metrics
from payonce.kit.outcomes import Retry
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage, Stage, eventually

ONCE = Policy("runs", max_attempts=1, lease_s=60)


class SlowQueue(PostgresQueue):
    """Holds answers back until released."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.let_go = asyncio.Event()
        self.let_go.set()
        self.holding = asyncio.Event()

    async def exchange(self, settlements: Sequence[Settlement], limit: int) -> Exchange:
        answer = await super().exchange(settlements, limit)
        if answer.claims and not self.let_go.is_set():
            self.holding.set()
            await self.let_go.wait()
        return answer


@asynccontextmanager
async def working(s: Stage, handler: Handler, held_back: bool = False) -> AsyncIterator[SlowQueue]:
    await s.feed.declare([handler.policy])
    queue = SlowQueue(s.database, s.notifier, handler.policy, "worker-1")
    if held_back:
        queue.let_go.clear()
    worker = Worker([handler], s.database, s.feed, lambda _: queue)
    running = asyncio.create_task(worker.run())
    try:
        yield queue
    finally:
        queue.let_go.set()
        await worker.stop(grace_s=0.1)
        await asyncio.wait_for(running, 60)


async def parked(s: Stage, policy: Policy = ONCE) -> QueuedMessage:
    async def find() -> list[QueuedMessage]:
        return await s.admin.peek(policy.queue, State.PARKED, 10)

    [found] = await eventually(find)
    return found


async def test_a_cancellation_of_the_handlers_own_is_an_attempt_and_not_a_crash(stage: OpenStage) -> None:
    @handles(ONCE)
    async def cancels(work: Work) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async with stage() as s, working(s, cancels):
        await s.feed.put([Message(queue="runs")])
        found = await parked(s)
    assert (found.message.attempts, found.crashes) == (1, 0)
    assert "CancelledError" in (found.last_error or "")


async def test_a_handler_that_swallows_its_cancellation_cannot_keep_the_worker_from_stopping(stage: OpenStage) -> None:
    begun, enough = asyncio.Event(), asyncio.Event()

    @handles(ONCE)
    async def stubborn(work: Work) -> None:
        begun.set()
        while not enough.is_set():
            with suppress(asyncio.CancelledError):
                await enough.wait()

    async with stage() as s:
        async with working(s, stubborn):
            await s.feed.put([Message(queue="runs")])
            await begun.wait()
        enough.set()
        assert (await s.admin.depth("runs")).leased == 1


async def test_an_error_of_the_outside_is_told_with_where_it_came_from(stage: OpenStage) -> None:
    @handles(ONCE)
    async def opens(work: Work) -> None:
        raise ConnectionRefusedError("the vendor is away")

    async with stage() as s, working(s, opens):
        await s.feed.put([Message(queue="runs")])
        error = (await parked(s)).last_error or ""
    assert "ConnectionRefusedError: the vendor is away" in error
    assert "opens (test_runs.py" in error
    assert "database" not in error


async def test_a_commit_whose_failed_statement_was_swallowed_is_no_success(stage: OpenStage) -> None:
    after: list[Work] = []

    @handles(ONCE)
    async def swallows(work: Work) -> None:
        async with work.commit() as tx:
            with suppress(asyncpg.PostgresError):
                await tx.execute("select 1 / 0")
        after.append(work)

    async with stage() as s, working(s, swallows):
        await s.feed.put([Message(queue="runs")])
        found = await parked(s)
    assert "InFailedSQLTransactionError" in (found.last_error or "")
    assert not after, "nothing may follow a commit that did not happen"


async def test_an_error_that_a_savepoint_undid_does_not_spoil_the_commit(stage: OpenStage) -> None:
    @handles(ONCE)
    async def recovers(work: Work) -> None:
        async with work.commit() as tx:
            with suppress(asyncpg.PostgresError):
                async with tx.connection.transaction():
                    await tx.execute("select 1 / 0")

    async with stage() as s, working(s, recovers):
        [message_id] = await s.feed.put([Message(queue="runs")])
        await eventually(s.drained)
        statuses = await s.owner.fetch("select status from payonce.job_logs where message_id = $1", message_id)
    assert [row["status"] for row in statuses] == ["success"]


async def test_giving_up_that_takes_too_long_ends_parked(stage: OpenStage) -> None:
    async def hangs(work: Work) -> None:
        await asyncio.Event().wait()

    policy = Policy("runs", max_attempts=1, lease_s=60, run_limit_s=0.5, on_give_up=hangs)

    @handles(policy)
    async def fails(work: Work) -> None:
        raise ArithmeticError("no")

    async with stage() as s, working(s, fails):
        await s.feed.put([Message(queue="runs")])
        found = await parked(s, policy)
    assert "giving up was cancelled" in (found.last_error or "")


async def test_a_suspect_waits_for_a_claim_that_is_still_on_its_way(stage: OpenStage) -> None:
    at_once: list[list[str]] = []
    running: list[str] = []

    @handles(Policy("runs", lease_s=60, max_attempts=1))
    async def notes(work: Work) -> None:
        running.append(work.message.action)
        at_once.append(list(running))
        for _ in range(20):
            await asyncio.sleep(0)
        running.remove(work.message.action)

    async with stage() as s, working(s, notes, held_back=True) as queue:
        await s.feed.put([Message(queue="runs", action="neighbour") for _ in range(5)])
        await queue.holding.wait()
        [suspect] = await s.feed.put([Message(queue="runs", action="suspect", delay_s=3600)])
        await s.owner.execute(
            "update payonce.messages set state = 'alone', crashes = 2, ready_at = payonce.due_now() where id = $1",
            suspect,
        )

        async def claimed() -> bool:
            return (await s.admin.depth("runs")).leased == 6

        await eventually(claimed)
        queue.let_go.set()
        await eventually(s.drained)
    assert ["suspect"] in at_once
    assert not any("suspect" in names and len(names) > 1 for names in at_once)


async def test_retry_latency_is_observed_also_when_the_handler_commits(stage: OpenStage) -> None:
    policy = Policy("committed", max_attempts=3, backoff=Fixed(0))

    @handles(policy)
    async def commits(work: Work) -> None:
        if work.message.attempts == 0:
            raise Retry("once more")
        async with work.commit():
            pass

    async with stage() as s, working(s, commits):
        await s.feed.put([Message(queue="committed")])
        await eventually(s.drained)

        def observed() -> bool:
            labels = {"queue": "committed"}
            return metrics.REGISTRY.get_sample_value("retry_latency_seconds_count", labels) == 1

        await eventually(observed)


async def test_a_row_that_cannot_be_read_is_parked_and_its_neighbours_run(stage: OpenStage) -> None:
    handled: list[int] = []

    @handles(ONCE)
    async def notes(work: Work) -> None:
        handled.append(work.message.payload["number"])

    async with stage() as s:
        await s.feed.declare([ONCE])
        await s.owner.execute(
            """
            insert into payonce.messages (id, queue, action, payload)
            values (gen_random_uuid(), 'runs', '', ('{"number": ' || repeat('9', 5000) || '}')::json)
            """
        )
        async with working(s, notes):
            await s.feed.put([Message(queue="runs", payload={"number": number}) for number in range(5)])
            found = await parked(s)
            await eventually(s.drained)
    assert sorted(handled) == [0, 1, 2, 3, 4]
    assert "cannot be read" in (found.last_error or "")
