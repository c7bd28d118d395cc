"""The promises as kept by a worker: it handles messages, rests when told to, and stops without losing anything."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from uuid import UUID

import pytest

from payonce.engine.database.notifier import Notifier
from payonce.engine.messages import job_log, worker
from payonce.engine.messages.maintenance import Task
from payonce.engine.messages.model import Message, Settlement, State
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.ports import POLL_S, Exchange, PullQueue
from payonce.engine.messages.process import DEFAULT_SLOTS, Worker
from payonce.engine.messages.work import Handler, Work, handles
from payonce.engine.monitoring.metrics import MAINTENANCE_MOVES
from payonce.kit.outcomes import Retry
from payonce.testing import ScratchDatabase, Stage, eventually, open_stage
from tests.conformance.redis_stage import RedisStage, open_redis_stage

LIMITED_REST_S = 0.05
SOON_S = 30.0
PAY = Policy("pay", max_attempts=3, backoff=Fixed(60))


AnyStage = Stage | RedisStage
OpenAnyStage = Callable[[], AbstractAsyncContextManager[AnyStage]]


@pytest.fixture(params=["PostgreSQL", "Redis"])
def stage(scratch: ScratchDatabase, request: pytest.FixtureRequest) -> OpenAnyStage:
    if request.param == "PostgreSQL":
        return lambda: open_stage(scratch)
    server = request.getfixturevalue("redis_server")
    return lambda: open_redis_stage(scratch, server)


class Asked:
    """How often a queue was queried."""

    def __init__(self, queue: PullQueue, patch: pytest.MonkeyPatch) -> None:
        self.times = 0
        exchange = queue.exchange

        async def counted(settlements: Sequence[Settlement], limit: int) -> Exchange:
            self.times += 1
            return await exchange(settlements, limit)

        patch.setattr(queue, "exchange", counted)


@asynccontextmanager
async def working(s: AnyStage, *handlers: Handler, slots: int = DEFAULT_SLOTS) -> AsyncIterator[Asked]:
    """A worker that runs while this is entered; yields how often its first queue is queried."""
    policies = [handler.policy for handler in handlers]
    queues: dict[str, PullQueue] = {policy.queue: await s.queue(policy, "worker-1") for policy in policies}
    with pytest.MonkeyPatch.context() as patch:
        asked = Asked(queues[policies[0].queue], patch)
        process = Worker(handlers, s.database, s.feed, lambda policy: queues[policy.queue], slots=slots)
        running = asyncio.create_task(process.run())
        try:
            yield asked
        finally:
            await process.stop(grace_s=30)
            await asyncio.wait_for(running, 40)


async def statuses(s: AnyStage, message_id: UUID | None = None) -> list[str]:
    """Of ended runs."""
    if isinstance(s, RedisStage):
        return await s.statuses(message_id)
    rows = await s.owner.fetch(
        "select status from payonce.job_logs where $1::uuid is null or message_id = $1 order by id", message_id
    )
    return [row["status"] for row in rows]


async def test_every_message_is_handled_once(stage: OpenAnyStage) -> None:
    handled: list[object] = []

    @handles(PAY)
    async def pay(work: Work) -> None:
        handled.append(work.message.id)

    async with stage() as s:
        async with working(s, pay):
            sent = await s.feed.put([Message(queue="pay") for _ in range(300)])
            await eventually(s.drained)
        assert sorted(map(str, handled)) == sorted(map(str, sent))
        assert await statuses(s) == ["success"] * 300


@pytest.mark.parametrize("limit_s", [3600.0, worker.REFILL_LIMIT_S])
async def test_in_a_backlog_free_slots_are_filled_several_at_a_time_or_after_a_moment(
    stage: OpenAnyStage, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "REFILL_LIMIT_S", limit_s)
    slots, runs = 2 * worker.REFILL_SHARE, list[asyncio.Event]()

    @handles(PAY)
    async def pay(work: Work) -> None:
        runs.append(asyncio.Event())
        await runs[-1].wait()

    async with stage() as s:
        await s.feed.declare([PAY])
        await s.feed.put([Message(queue="pay") for _ in range(2 * slots)])
        async with working(s, pay, slots=slots):
            await eventually(lambda: len(runs) == slots)
            runs[0].set()
            await eventually(lambda: ended(s, 1))
            if limit_s > SOON_S:
                await asyncio.sleep(2 * POLL_S)
                assert len(runs) == slots
                runs[1].set()
                await eventually(lambda: len(runs) == slots + 2)
            else:
                await eventually(lambda: len(runs) == slots + 1)
            monkeypatch.setattr(worker, "REFILL_LIMIT_S", 0.0)

            async def all_ended() -> bool:
                for run in runs:
                    run.set()
                return await s.drained()

            await eventually(all_ended)


async def ended(s: AnyStage, runs: int) -> bool:
    return len(await statuses(s)) == runs


async def test_a_failing_message_is_retried_by_policy_and_then_parked_with_its_reason(stage: OpenAnyStage) -> None:
    times = []

    @handles(PAY)
    async def pay(work: Work) -> None:
        times.append(await work.read.fetchval("select payonce.due_now()"))
        raise Retry("card gateway is busy")

    async with stage() as s:
        start = await s.clock.freeze()
        async with working(s, pay):
            await s.feed.put([Message(queue="pay")])
            await s.clock.run_to(start.replace(year=start.year + 1), lambda: eventually(s.drained))
        assert [(moment - start).total_seconds() for moment in times] == [0, 60, 120]
        [parked] = await s.admin.peek("pay", State.PARKED, 10)
        assert parked.message.attempts == 3
        assert "card gateway is busy" in (parked.last_error or "")


async def test_a_handler_with_a_bug_is_retried_and_its_secrets_stay_out_of_the_log(stage: OpenAnyStage) -> None:
    @handles(PAY)
    async def pay(work: Work) -> None:
        raise ZeroDivisionError("password=hunter2")

    async with stage() as s:
        async with working(s, pay):
            await s.feed.put([Message(queue="pay", max_attempts=1)])
            await eventually(s.drained)
        [parked] = await s.admin.peek("pay", State.PARKED, 10)
        assert parked.last_error is not None
        assert "ZeroDivisionError" in parked.last_error
        assert "hunter2" not in parked.last_error


async def test_an_unknown_action_is_left_to_a_newer_worker(stage: OpenAnyStage) -> None:
    @handles(PAY, "pay")
    async def pay(work: Work) -> None:
        raise AssertionError("this action is another's")

    async with stage() as s:
        async with working(s, pay):
            await s.feed.put([Message(queue="pay", action="refund")])
            await eventually(s.drained)
        [waiting] = await s.admin.peek("pay", State.READY, 10)
        assert waiting.message.attempts == 0


async def test_a_worker_on_a_paused_queue_does_not_spin(stage: OpenAnyStage) -> None:
    @handles(PAY)
    async def pay(work: Work) -> None:
        raise AssertionError("the queue is paused")

    async with stage() as s:
        await s.feed.declare([PAY])
        await s.admin.pause("pay", "maintenance")
        await s.feed.put([Message(queue="pay") for _ in range(10)])
        async with working(s, pay) as asked:
            await asks_no_more_often_than(asked, POLL_S)


async def test_a_worker_on_a_full_limit_does_not_spin(stage: OpenAnyStage) -> None:
    one = Policy("pay", concurrency=1)

    @handles(one)
    async def pay(work: Work) -> None:
        raise AssertionError("the only place is taken")

    async with stage() as s:
        other = await s.queue(one, "worker-2")
        await s.feed.put([Message(queue="pay") for _ in range(10)])
        await other.exchange([], 1)
        async with working(s, pay) as asked:
            await asks_no_more_often_than(asked, LIMITED_REST_S)


async def asks_no_more_often_than(asked: Asked, every_s: float) -> None:
    """A lower bound only, so that a slow machine cannot fail it."""
    await eventually(lambda: asked.times >= 1)
    first, begun = asked.times, time.monotonic()
    await eventually(lambda: asked.times >= first + 4)
    assert time.monotonic() - begun >= 3 * every_s


async def test_a_resumed_queue_is_worked_on_at_once(stage: OpenAnyStage) -> None:
    @handles(PAY)
    async def pay(work: Work) -> None:
        pass

    async with stage() as s, working(s, pay):
        await s.admin.pause("pay", "maintenance")
        await s.feed.put([Message(queue="pay")])
        await s.admin.resume("pay")
        await eventually(s.drained)


async def test_a_put_wakes_a_waiter_of_another_process(stage: OpenAnyStage) -> None:
    async with stage() as here, stage() as there:
        waiting = asyncio.create_task((await here.queue(PAY)).wait(2 * SOON_S))

        async def woken() -> bool:
            # The listener may not be up yet, so one notification may go unnoticed.
            await there.feed.put([Message(queue="pay")])
            return waiting.done()

        await eventually(woken, SOON_S)


async def test_a_process_that_stops_while_it_starts_leaves_no_connection(stage: OpenAnyStage) -> None:
    async with stage() as s:
        connections = "select count(*) from pg_stat_activity where datname = current_database()"
        await (await s.queue(PAY)).wait(0.01)
        before = await s.owner.fetchval(connections)
        for step in range(180):
            async with Notifier.open(s.database):
                # Ends at another point of its start each time.
                for _ in range(step % 60):
                    await asyncio.sleep(0)

        async def none_left() -> bool:
            return bool(await s.owner.fetchval(connections) <= before + 1)

        await eventually(none_left, SOON_S)


async def test_a_worker_told_to_stop_lets_its_runs_end(stage: OpenAnyStage) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @handles(PAY)
    async def pay(work: Work) -> None:
        begun.set()
        await may_end.wait()

    async with stage() as s:
        async with working(s, pay):
            [sent] = await s.feed.put([Message(queue="pay")])
            await asyncio.wait_for(begun.wait(), SOON_S)
            asyncio.get_running_loop().call_later(0.05, may_end.set)
        assert await statuses(s, sent) == ["success"]


async def test_a_poison_message_parks_alone_in_a_worker(stage: OpenAnyStage) -> None:
    """Suspects run isolated, and those that end in order are done."""
    beside: list[int] = []
    running = 0

    @handles(PAY)
    async def pay(work: Work) -> None:
        nonlocal running
        running += 1
        beside.append(running)
        await asyncio.sleep(0)
        running -= 1

    async with stage() as s:
        queue = await s.queue(PAY, "dead")
        await s.feed.put([Message(queue="pay") for _ in range(3)])
        for _ in range(2):
            await queue.exchange([], 10)
            await s.clock.advance_leases(PAY.lease_s + 1)
            await queue.reap()
        async with working(s, pay):
            await eventually(s.drained)
        assert beside == [1, 1, 1]
        assert await s.admin.peek("pay", State.PARKED, 10) == []


async def test_what_comes_from_the_delayed_ones_is_told_once_under_the_pumps_name(stage: OpenAnyStage) -> None:
    @handles(PAY)
    async def pay(work: Work) -> None:
        if not work.message.attempts:
            raise Retry("card gateway is busy")

    async with stage() as s:
        start = await s.clock.freeze()
        async with working(s, pay):
            await s.feed.put([Message(queue="pay") for _ in range(3)])
            await s.clock.run_to(start.replace(year=start.year + 1), lambda: eventually(s.drained))
        assert await upkeep(s, Task.PUMP) == [("pay", "3 messages came from the delayed ones")]
        assert await upkeep(s, Task.SWEEP) == []
        async with working(s, pay):
            await s.feed.put([Message(queue="pay", max_attempts=1)])
            await eventually(s.drained)
        assert len(await upkeep(s, Task.PUMP)) == 1, "whoever finds nothing says nothing"


async def test_what_is_taken_from_the_dead_is_told_under_the_sweepers_name(stage: OpenAnyStage) -> None:
    @handles(PAY)
    async def pay(work: Work) -> None:
        """Done at once."""

    async with stage() as s:
        dead = await s.queue(PAY, "dead")
        await s.feed.put([Message(queue="pay") for _ in range(2)])
        await dead.exchange([], 10)
        await s.clock.advance_leases(PAY.lease_s + 1)
        counted = MAINTENANCE_MOVES.labels(Task.SWEEP.value, "pay")._value
        before = counted.get()
        async with working(s, pay):
            await eventually(s.drained)
            await eventually(lambda: upkeep(s, Task.SWEEP))
        assert await upkeep(s, Task.SWEEP) == [("pay", "2 messages taken from dead or stopped workers")]
        assert await upkeep(s, Task.PUMP) == []
        assert counted.get() - before == 2


async def test_a_log_that_cannot_be_written_stops_neither_sweep_nor_worker(stage: OpenAnyStage) -> None:
    @handles(PAY)
    async def pay(work: Work) -> None:
        """Done at once."""

    async with stage() as s:
        await s.owner.execute(f"alter table payonce.job_logs add constraint refused check (action <> '{Task.SWEEP}')")
        dead = await s.queue(PAY, "dead")
        await s.feed.put([Message(queue="pay")])
        await dead.exchange([], 10)
        await s.clock.advance_leases(PAY.lease_s + 1)
        async with working(s, pay):
            await eventually(s.drained)
        assert (await statuses(s)).count("success") >= 1


async def upkeep(s: AnyStage, task: Task) -> list[tuple[str, str | None]]:
    """Its lines in the job log, newest first; with Redis those in both stores, which must be the same."""
    runs = await job_log.recent(s.database.engine, correlation_id=task.value)
    assert [run.last_error for run in runs] == [None] * len(runs), "what was done is no error"
    found = [(run.queue, run.info) for run in runs]
    if isinstance(s, RedisStage):
        lines = [json.loads(line) for line in await s.store.command("LRANGE", "q:log:jobs", 0, -1)]
        assert [(each["queue"], each["info"]) for each in lines if each["action"] == task] == found
    return found
