"""SAQ on Redis: a blocking move per free task, acknowledgements one by one."""

import asyncio
import logging
from typing import Any

import msgspec
import redis.asyncio
from saq import Worker
from saq.queue.redis import RedisQueue
from saq.types import Context

from bench.journal import Journal
from bench.peers import command
from bench.peers.port import SLOW_S, Address, Job, Payload, Traits

CONCURRENCY = 100
OPERATIONS = 100
# Each of its tasks waits on one connection and acknowledges on another.
CONNECTIONS = 4 * CONCURRENCY
AT_ONCE = 20


class Saq:
    traits = Traits(
        worker=(
            f"concurrency {CONCURRENCY}, max_concurrent_ops {OPERATIONS}, up to {CONNECTIONS} connections without "
            "time-out, uvloop, msgspec, ttl -1 (delete)"
        ),
        bulk=f"no bulk call; {AT_ONCE} enqueue() at once",
        bulk_size=AT_ONCE,
        lease_s=None,
        write_modes=(),
    )

    def __init__(self, at: Address) -> None:
        # Its wait for a job is unlimited. The client's default limit of 5 s would interrupt it, and a job that the
        # server returns at that moment would be lost; likewise if the client's connections run out.
        client = redis.asyncio.Redis.from_url(at.url, socket_timeout=None, max_connections=CONNECTIONS)
        self._queue = RedisQueue(
            client, dump=msgspec.json.encode, load=msgspec.json.decode, max_concurrent_ops=OPERATIONS
        )

    async def install(self) -> None:
        """Does nothing: it has no schema."""

    async def open(self) -> None:
        await self._queue.connect()

    async def put(self, job: Job, payload: Payload) -> None:
        # The slow job uses the library's defaults, which decide what happens to it after a crash.
        options = {} if job == "slow" else {"ttl": -1, "timeout": 60}
        await self._queue.enqueue(job, payload=payload, **options)

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        await asyncio.gather(*(self.put(job, payload) for payload in payloads))

    async def unfinished(self) -> int:
        return int(await self._queue.count("incomplete"))

    async def work(self, journal: Journal) -> None:
        logging.basicConfig(level=logging.WARNING)
        await self._queue.connect()

        async def noop(context: Context, *, payload: Payload) -> None:
            journal.note_handled()

        async def timed(context: Context, *, payload: Payload) -> None:
            journal.note_latency(payload["enqueued_ns"])

        async def slow(context: Context, *, payload: Payload) -> None:
            journal.note_slow_start()
            await asyncio.sleep(SLOW_S)

        functions: list[Any] = [(job.__name__, job) for job in (noop, timed, slow)]
        await Worker(self._queue, functions=functions, concurrency=CONCURRENCY).start()


if __name__ == "__main__":
    command.main(Saq)
