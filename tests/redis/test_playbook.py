"""The operational playbook of the billing design, section 14, typed as it stands there, with truthful answers."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.process import Worker
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Retry
from payonce.queues.redis import RedisFeed, RedisQueue, RedisStore
from payonce.testing import OpenStage, RedisClock
from tests.redis.terminal import Terminal

QUEUE = "q:pay:subscription_update"
RETRY_DELAY_S = 60.0
MAX_ATTEMPTS = 3
POLICY = Policy(QUEUE, max_attempts=MAX_ATTEMPTS, backoff=Fixed(RETRY_DELAY_S), lease_s=30.0)
LOAD = 200
LOOK_EVERY = 8
"""Of so many messages one waits for the operator, so that the load cannot be over before he has looked."""
LOOKS_LEAST = 20


@dataclass
class Drill:
    """A worker in the test's client, and the operator beside it."""

    type: Any
    worker: Worker
    feed: RedisFeed
    clock: RedisClock
    fails: set[int] = field(default_factory=set)
    stay: asyncio.Event | None = None
    inside: asyncio.Event = field(default_factory=asyncio.Event)
    looked: asyncio.Condition | None = None

    async def look(self) -> tuple[int, int, int]:
        """Inspect Queues."""
        return (
            await self.type("LLEN q:pay:subscription_update"),
            await self.type("LLEN q:pay:subscription_update:processing"),
            await self.type("ZCARD q:pay:subscription_update:delayed"),
        )

    async def log(self) -> list[dict[str, Any]]:
        """Inspect Job Logs: the newest first."""
        return [json.loads(line) for line in await self.type("LRANGE q:log:jobs 0 50")]

    async def handle(self, work: Work) -> None:
        self.inside.set()
        if self.stay is not None:
            await self.stay.wait()
        if self.looked is not None and work.message.payload["order"] % LOOK_EVERY == 0:
            # The first look may have begun before.
            for _ in range(2):
                async with self.looked:
                    await self.looked.wait()
        if work.message.payload["order"] in self.fails:
            raise Retry("the subscription service does not answer")


@asynccontextmanager
async def drill(server: RedisServer, stage: OpenStage, slots: int = 1) -> AsyncIterator[Drill]:
    async with (
        stage() as opened,
        RedisStore.open(server.url, opened.database) as store,
        Terminal.open(server.port) as at,
    ):
        clock = RedisClock(opened.clock, server.url)
        await clock.freeze()
        feed = RedisFeed(store, opened.notifier)
        await feed.declare([POLICY])

        @handles(POLICY)
        async def post_webhook(work: Work) -> None:
            await drilling.handle(work)

        def open_queue(policy: Policy) -> RedisQueue:
            return RedisQueue(store, opened.notifier, policy, "worker-1")

        worker = Worker([post_webhook], opened.database, feed, open_queue, slots=slots)
        drilling = Drill(at.type, worker, feed, clock)
        yield drilling


async def test_a_retryable_failure_moves_from_main_to_processing_to_delayed_to_main(
    redis_server: RedisServer, stage: OpenStage
) -> None:
    """The failure drill, with attempts incrementing, and the path to the dead letters after max attempts."""
    async with drill(redis_server, stage) as at:
        at.fails = {1}
        await at.type(f"""LPUSH {QUEUE} '{{"order": 1}}'""")
        for attempt in range(1, MAX_ATTEMPTS + 1):
            assert await at.look() == (1 if attempt == 1 else 0, 0, 0 if attempt == 1 else 1)
            at.stay, at.inside = asyncio.Event(), asyncio.Event()
            run = asyncio.create_task(at.worker.step())
            await at.inside.wait()
            assert await at.look() == (0, 1, 0)
            [claimed] = await at.type("LRANGE q:pay:subscription_update:processing 0 -1")
            assert json.loads(claimed).get("attempts", 0) == attempt - 1
            at.stay.set()
            assert await run
            newest = (await at.log())[0]
            last = attempt == MAX_ATTEMPTS
            assert (newest["queue"], newest["status"], newest["attempts"]) == (
                QUEUE,
                "parked" if last else "retry",
                attempt,
            )
            assert "does not answer" in newest["info"]
            if not last:
                assert await at.look() == (0, 0, 1)
                [waiting] = await at.type("ZRANGE q:pay:subscription_update:delayed 0 -1")
                assert json.loads(waiting)["attempts"] == attempt
                assert not await at.worker.step(), "nothing runs early"
                await at.clock.advance(RETRY_DELAY_S)
        assert await at.look() == (0, 0, 0)
        assert await at.type("LLEN q:pay:subscription_update:failed") == 1
        [parked] = await at.type("LRANGE q:pay:subscription_update:failed 0 -1")
        assert json.loads(parked)["attempts"] == MAX_ATTEMPTS
        assert json.loads(parked)["payload"] == {"order": 1}
        assert [line["status"] for line in await at.log()] == ["parked", "retry", "retry"]


async def test_what_is_due_goes_back_to_the_main_list_before_anything_newer(
    redis_server: RedisServer, stage: OpenStage
) -> None:
    """delayed → main is seen in the main list itself, in the order of time ready."""
    async with drill(redis_server, stage) as at:
        at.fails = {1}
        await at.type(f"""LPUSH {QUEUE} '{{"order": 1}}'""")
        await at.worker.step()
        await at.clock.advance(RETRY_DELAY_S)
        assert await at.look() == (0, 0, 1)
        await at.feed.put([Message(queue=QUEUE, payload={"order": 2})])
        assert await at.look() == (2, 0, 0)
        newest_first = await at.type("LRANGE q:pay:subscription_update 0 -1")
        assert [json.loads(body)["payload"]["order"] for body in newest_first] == [2, 1]


async def test_every_line_of_the_job_log_has_the_fields_of_the_design(
    redis_server: RedisServer, stage: OpenStage
) -> None:
    async with drill(redis_server, stage) as at:
        await at.type(f"""LPUSH {QUEUE} '{{"order": 1, "action": "renewal"}}'""")
        await at.worker.step()
        [line] = await at.log()
        assert set(line) == {"timestamp", "queue", "action", "status", "message_id", "attempts", "info"}
        assert (line["action"], line["status"], line["attempts"]) == ("renewal", "success", 1)


async def test_the_answers_add_up_at_every_moment_of_a_load(redis_server: RedisServer, stage: OpenStage) -> None:
    """Run as one transaction under load: every put message is waiting, in progress, delayed, parked, or logged as
    settled."""
    async with drill(redis_server, stage, slots=3) as at:
        at.fails, at.looked = {order for order in range(LOAD) if order % 5 == 0}, asyncio.Condition()
        for order in range(LOAD):
            await at.type(f"""LPUSH {QUEUE} '{{"order": {order}}}'""")
        await at.clock.thaw()
        working = asyncio.create_task(at.worker.run())
        try:
            seen = await looks_until_at_rest(at, at.looked)
        finally:
            await at.worker.stop()
            await working
        assert all(sum(counts.values()) == LOAD for counts in seen), [dict(counts) for counts in seen]
        assert len({tuple(counts.values()) for counts in seen}) >= LOOKS_LEAST, "the load was over too soon"
        assert seen[-1] == {"main": 0, "processing": 0, "delayed": 0, "failed": LOAD // 5, "ended": LOAD - LOAD // 5}


async def looks_until_at_rest(at: Drill, looked: asyncio.Condition) -> list[Counter[str]]:
    seen: list[Counter[str]] = []
    while not seen or seen[-1]["failed"] + seen[-1]["ended"] < LOAD:
        await at.type("MULTI")
        await at.look()
        await at.type("LLEN q:pay:subscription_update:failed")
        await at.type("LRANGE q:log:jobs 0 -1")
        main, processing, delayed, failed, log = await at.type("EXEC")
        ended = sum(json.loads(line)["status"] == "success" for line in log)
        seen.append(Counter(main=main, processing=processing, delayed=delayed, failed=failed, ended=ended))
        if main == processing == 0:
            await at.clock.advance(RETRY_DELAY_S)
        async with looked:
            looked.notify_all()
        await asyncio.sleep(0)
    return seen
