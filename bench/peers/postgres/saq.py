"""SAQ on PostgreSQL: psycopg 3; claims as many jobs as it has free tasks, acknowledges one by one."""

import asyncio
import logging
from typing import Any

import msgspec
from psycopg_pool import AsyncConnectionPool
from saq import Job as SaqJob
from saq import Status, Worker
from saq.queue.postgres import PostgresQueue
from saq.types import Context

from bench.journal import Journal
from bench.peers import command
from bench.peers.port import SLOW_S, WRITE_BUSINESS_ROW, Address, Job, Payload, Traits, WriteMode, business_pool

CONCURRENCY = 50
CONNECTIONS = 20


class Saq:
    traits = Traits(
        worker=f"concurrency {CONCURRENCY}, psycopg pool of {CONNECTIONS}, uvloop, msgspec, ttl -1 (delete)",
        bulk=f"no bulk call; {CONNECTIONS} enqueue() at once, as its pool allows",
        bulk_size=CONNECTIONS,
        lease_s=None,
        write_modes=(
            WriteMode("write_atomic", True, "by hand: queue.finish(connection=…) in the handler; no fence"),
            WriteMode("write", False, "as documented: acknowledged after the handler"),
        ),
    )

    def __init__(self, at: Address) -> None:
        self._pool = AsyncConnectionPool(at.url, min_size=CONNECTIONS, max_size=CONNECTIONS, open=False)
        self._queue = PostgresQueue(
            pool=self._pool,
            manage_pool_lifecycle=True,
            dump=msgspec.json.encode,
            load=msgspec.json.decode,
            min_size=CONNECTIONS,
            max_size=CONNECTIONS,
        )
        self._url = at.url

    async def install(self) -> None:
        await self._queue.connect()

    async def open(self) -> None:
        await self._queue.connect()

    async def put(self, job: Job, payload: Payload) -> None:
        # The slow job uses the library's defaults, which decide what happens to it after a crash.
        options = {} if job == "slow" else {"ttl": -1, "timeout": 60}
        await self._queue.enqueue(job, payload=payload, **options)

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        await asyncio.gather(*(self.put(job, payload) for payload in payloads))

    async def unfinished(self) -> int:
        async with self._pool.connection() as connection:
            cursor = await connection.execute("select count(*) from saq_jobs where status <> 'complete'")
            row = await cursor.fetchone()
        return int(row[0]) if row else 0

    async def work(self, journal: Journal) -> None:
        logging.basicConfig(level=logging.WARNING)
        await self._queue.connect()
        business = await business_pool(self._url)

        async def noop(context: Context, *, payload: Payload) -> None:
            journal.note_handled()

        async def timed(context: Context, *, payload: Payload) -> None:
            journal.note_latency(payload["enqueued_ns"])

        async def slow(context: Context, *, payload: Payload) -> None:
            journal.note_slow_start()
            await asyncio.sleep(SLOW_S)

        async def write(context: Context, *, payload: Payload) -> None:
            await business.execute(WRITE_BUSINESS_ROW, payload["reference"], 1)
            journal.note_handled()

        async def write_atomic(context: Context, *, payload: Payload) -> None:
            job: SaqJob = context["job"]
            async with self._pool.connection() as connection, connection.transaction():
                await connection.execute("insert into bench_business values (%s, %s)", (payload["reference"], 1))
                await self._queue.finish(job, Status.COMPLETE, connection=connection)
            journal.note_handled()

        functions: list[Any] = [(name.__name__, name) for name in (noop, timed, slow, write, write_atomic)]
        await Worker(self._queue, functions=functions, concurrency=CONCURRENCY).start()


if __name__ == "__main__":
    command.main(Saq)
