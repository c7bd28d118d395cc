"""The promises of a pushed queue, kept through Google's own client, a server, HTTP and the door."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Fixed
from payonce.engine.messages.work import Handler, Work, handles
from payonce.kit.outcomes import Retry
from payonce.queues.cloudtasks.names import task_id
from payonce.testing import OpenStage, eventually
from tests.cloudtasks.testbed import POLICY, QUEUE, AppContext, open_testbed

MANY = 60


class Log:
    """A handler that notes what it runs and does what the payload says."""

    def __init__(self, policy: Any = POLICY) -> None:
        self.ran: list[dict[str, Any]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.open = asyncio.Event()
        self.open.set()

        @handles(policy)
        async def run(work: Work) -> None:
            self.ran.append(work.message.payload)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await self.open.wait()
                await self._obey(work)
            finally:
                self.at_once -= 1

        self.handler: Handler = run

    async def _obey(self, work: Work) -> None:
        payload = work.message.payload
        if work.message.attempts < payload.get("retries", 0):
            raise Retry("not yet", payload.get("after_s"))
        if payload.get("commits"):
            async with work.commit() as tx:
                await tx.execute("select 1")

    def runs_of(self, number: int) -> int:
        return sum(payload.get("n") == number for payload in self.ran)


async def no_tasks(context: AppContext) -> bool:
    return await context.tasks_there() == 0


async def test_what_is_put_is_run_once_and_ends(stage: OpenStage) -> None:
    """Promise 1."""
    log = Log()
    async with open_testbed(stage, [log.handler]) as context:
        ids = await context.put(*({"n": number, "commits": number % 2 == 0} for number in range(MANY)))
        await context.drained()
        assert sorted(payload["n"] for payload in log.ran) == list(range(MANY))
        ended = await context.s.owner.fetchval(
            "select count(*) from payonce.inbox where id = any($1)", list(map(str, ids))
        )
        assert ended == MANY
        await eventually(partial(no_tasks, context), what="the task service has nothing left")


async def test_what_is_put_within_a_transaction_exists_with_its_commit(stage: OpenStage) -> None:
    log = Log()
    async with open_testbed(stage, [log.handler]) as context:
        try:
            async with context.s.database.transaction() as connection:
                await context.tasks.feed.put([Message(queue=QUEUE, payload={"n": 1})], within=connection)
                raise InterruptedError
        except InterruptedError:
            pass
        async with context.s.database.transaction() as connection:
            await context.tasks.feed.put([Message(queue=QUEUE, payload={"n": 2})], within=connection)
        await context.relay()
        await context.drained()
        assert [payload["n"] for payload in log.ran] == [2]


async def test_a_retry_comes_back_by_the_queues_backoff_and_counts(stage: OpenStage) -> None:
    log = Log()
    async with open_testbed(stage, [log.handler]) as context:
        [message_id] = await context.put({"n": 1, "retries": 2})
        for runs in (1, 2):
            await settled(context, runs)
            await answered(context, runs)
            await context.s.clock.advance(60)
        await context.drained()
        statuses = [
            row["status"]
            for row in await context.s.owner.fetch(
                "select status from payonce.job_logs where message_id = $1", message_id
            )
        ]
        assert Counter(statuses) == {"retry": 2, "success": 1}
        await eventually(partial(no_tasks, context), what="the task service has nothing left")
        assert await context.s.owner.fetchval("select count(*) from cloudtasks.tombstones") == 1, (
            "one task served all runs"
        )


async def test_a_retry_at_a_time_of_its_own_comes_as_a_new_task(stage: OpenStage) -> None:
    log = Log()
    async with open_testbed(stage, [log.handler]) as context:
        [message_id] = await context.put({"n": 1, "retries": 1, "after_s": 600})
        await eventually(lambda: len(log.ran) == 1)
        await settled(context, 1)
        await context.relay()
        known = await context.s.owner.fetchval("select delivered_as from payonce.outbox where id = $1", message_id)
        assert known.endswith(task_id(message_id, 1))
        await context.s.clock.advance(599)
        assert len(log.ran) == 1
        await context.s.clock.advance(2)
        await context.drained()
        assert len(log.ran) == 2


async def settled(context: Any, attempts: int) -> None:
    async def is_so() -> bool:
        return bool(
            await context.s.owner.fetchval(
                "select exists (select from payonce.outbox where attempts = $1 and holder is null)", attempts
            )
        )

    await eventually(is_so, what=f"{attempts} attempts are settled")


async def answered(context: Any, times: int) -> None:
    """The task service has noted so many answers to its only task."""

    async def is_so() -> bool:
        return bool(
            await context.s.owner.fetchval(
                "select exists (select from cloudtasks.tasks where responses = $1 and lease_until is null)", times
            )
        )

    await eventually(is_so, what=f"{times} answers are noted")


async def test_no_more_run_at_once_than_the_policy_says(stage: OpenStage) -> None:
    """Promise 5: the task service counts."""
    log = Log(replace(POLICY, concurrency=3))
    log.open.clear()
    async with open_testbed(stage, [log.handler]) as context:
        await context.put(*({"n": number} for number in range(9)))
        await eventually(lambda: log.at_once == 3)
        log.open.set()
        await context.drained()
        assert log.most_at_once <= 3
        assert len(log.ran) == 9


async def test_more_tasks_than_slots_are_all_run(stage: OpenStage) -> None:
    log = Log()
    log.open.clear()
    async with open_testbed(stage, [log.handler], slots=4) as context:
        await context.put(*({"n": number} for number in range(40)))
        await eventually(lambda: log.at_once == 4)
        log.open.set()
        await context.drained()
        assert (log.most_at_once, len(log.ran)) == (4, 40)


async def test_pause_stops_runs_and_resume_goes_on_with_all_of_them(stage: OpenStage) -> None:
    """Promise 6."""
    log = Log(replace(POLICY, backoff=Fixed(1)))
    async with open_testbed(stage, [log.handler]) as context:
        await context.tasks.admin.pause(QUEUE, "maintenance", by="somebody")
        there = await context.tasks.service.queue(QUEUE)
        assert there is not None
        assert there.paused
        await context.put({"n": 1}, {"n": 2})
        assert (await context.tasks.admin.depth(QUEUE)).ready == 2
        assert log.ran == []
        await context.tasks.admin.resume(QUEUE)
        await context.drained()
        assert len(log.ran) == 2


async def test_a_key_is_accepted_once(stage: OpenStage) -> None:
    """Promise 7."""
    log = Log()
    async with open_testbed(stage, [log.handler]) as context:
        [first] = await context.put({"n": 1}, idempotency_key="pay:1")
        assert await context.put({"n": 2}, idempotency_key="pay:1") == [first]
        await context.drained()
        assert await context.put({"n": 3}, idempotency_key="pay:1") == [first]
        await context.drained()
        assert [payload["n"] for payload in log.ran] == [1]


async def test_every_delivery_repeated_changes_nothing(stage: OpenStage) -> None:
    """The task service promises at least once: here each task is made a second time under another name."""
    log = Log()
    async with open_testbed(stage, [log.handler]) as context:
        ids = await context.put(*({"n": number, "commits": True} for number in range(20)))
        await context.drained()
        for number, message_id in enumerate(ids):
            await repeat(context, message_id, {"n": number})

        await eventually(partial(no_tasks, context), what="every repeated task is answered")
        assert len(log.ran) == 20


async def repeat(context: Any, message_id: Any, payload: dict[str, Any]) -> None:
    from payonce.engine.messages.push import EnvelopeCodec
    from payonce.queues.cloudtasks.client import TaskRequest

    [each] = context.tasks.pushed.values()
    root, url = each.reached_at(context.tasks.address)
    body = EnvelopeCodec().encode(Message(id=message_id, queue=QUEUE, payload=payload))
    name = context.tasks.service.config.location.task(QUEUE, f"again-{message_id.hex}")
    [said] = await context.tasks.service.create(QUEUE, [TaskRequest(name, url, root, body, 60.0)])
    assert said.code == "OK"
