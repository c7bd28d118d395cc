"""taskiq on a Redis stream: reads a hundred entries at a time, acknowledges one by one."""

import asyncio
import logging
from typing import Any

import msgspec
import redis.asyncio
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.journal import Journal
from bench.peers import command
from bench.peers.port import SLOW_S, Address, Job, Payload, Traits

ASYNC_TASKS = 100
PREFETCH = 100
AT_ONCE = 50


class _Serializer(TaskiqSerializer):
    def dumpb(self, value: Any) -> bytes:
        return msgspec.json.encode(value)

    def loadb(self, value: bytes) -> Any:
        return msgspec.json.decode(value)


class Taskiq:
    traits = Traits(
        worker=f"RedisStreamBroker, {ASYNC_TASKS} tasks, prefetch {PREFETCH}, no validation, uvloop, msgspec",
        bulk=f"no bulk call; {AT_ONCE} kiq() at once",
        bulk_size=AT_ONCE,
        # The idle_timeout of its stream broker.
        lease_s=600.0,
        write_modes=(),
    )

    def __init__(self, at: Address) -> None:
        # From the stream's beginning: the default skips entries put before the first worker started.
        self._broker = RedisStreamBroker(url=at.url, consumer_id="0").with_serializer(_Serializer())
        self._watch = redis.asyncio.Redis.from_url(at.url)

        # The enqueuer refers to a task by name; only the worker's body runs.
        async def elsewhere(payload: Payload) -> None:
            raise NotImplementedError

        self._tasks = {job: self._broker.register_task(elsewhere, task_name=job) for job in ("noop", "timed", "slow")}

    async def install(self) -> None:
        """Does nothing: it has no schema."""

    async def open(self) -> None:
        await self._broker.startup()

    async def put(self, job: Job, payload: Payload) -> None:
        await self._tasks[job].kiq(payload)

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        await asyncio.gather(*(self._tasks[job].kiq(payload) for payload in payloads))

    async def unfinished(self) -> int:
        (group,) = await self._watch.xinfo_groups("taskiq")
        return int(group["pending"]) + int(group["lag"] or 0)

    async def work(self, journal: Journal) -> None:
        logging.basicConfig(level=logging.WARNING)

        async def noop(payload: Payload) -> None:
            journal.note_handled()

        async def timed(payload: Payload) -> None:
            journal.note_latency(payload["enqueued_ns"])

        async def slow(payload: Payload) -> None:
            journal.note_slow_start()
            await asyncio.sleep(SLOW_S)

        for job in (noop, timed, slow):
            self._broker.register_task(job, task_name=job.__name__)
        # As its command line runs it in each process, without validation, like --no-parse: for a typed dictionary as
        # payload it would build a validator per job.
        await run_receiver_task(
            self._broker,
            max_async_tasks=ASYNC_TASKS,
            max_prefetch=PREFETCH,
            validate_params=False,
            run_startup=True,
        )


if __name__ == "__main__":
    command.main(Taskiq)
