"""PgQueuer: asyncpg and LISTEN/NOTIFY; acknowledgements are buffered and flushed together."""

import asyncio
from datetime import timedelta

import asyncpg
import msgspec
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job as PgqueuerJob
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from bench.journal import Journal
from bench.peers import command
from bench.peers.port import SLOW_S, WRITE_BUSINESS_ROW, Address, Job, Payload, Traits, WriteMode, business_pool

BATCH = 500
CONNECTIONS = 4


class Pgqueuer:
    traits = Traits(
        worker=f"asyncpg pool of {CONNECTIONS}, uvloop, batch_size {BATCH}, otherwise defaults (durability durable)",
        bulk="enqueue() with lists of 1000",
        bulk_size=1000,
        lease_s=30.0,
        write_modes=(
            WriteMode("write_atomic", True, "by hand: Queries.log_jobs on the handler's connection; no fence"),
            WriteMode("write", False, "as documented: acknowledged after the handler, in a buffer"),
        ),
    )

    def __init__(self, at: Address) -> None:
        self._url = at.url
        self._queries: Queries

    async def install(self) -> None:
        await self.open()
        await self._queries.install()

    async def open(self) -> None:
        self._queries = Queries(AsyncpgDriver(await asyncpg.connect(self._url)))

    async def put(self, job: Job, payload: Payload) -> None:
        await self._queries.enqueue(job, msgspec.json.encode(payload))

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        bodies: list[bytes | None] = [msgspec.json.encode(payload) for payload in payloads]
        await self._queries.enqueue([job] * len(bodies), bodies, [0] * len(bodies))

    async def unfinished(self) -> int:
        rows = await self._queries.driver.fetch("select count(*)::int as unfinished from pgqueuer")
        return msgspec.convert(rows[0]["unfinished"], int)

    async def work(self, journal: Journal) -> None:
        pool = await asyncpg.create_pool(self._url, min_size=CONNECTIONS, max_size=CONNECTIONS)
        business = await business_pool(self._url)
        manager = QueueManager(Queries(AsyncpgPoolDriver(pool)))

        @manager.entrypoint("noop")
        async def noop(job: PgqueuerJob) -> None:
            _decode(job)
            journal.note_handled()

        @manager.entrypoint("timed")
        async def timed(job: PgqueuerJob) -> None:
            journal.note_latency(_decode(job)["enqueued_ns"])

        @manager.entrypoint("slow")
        async def slow(job: PgqueuerJob) -> None:
            journal.note_slow_start()
            await asyncio.sleep(SLOW_S)

        @manager.entrypoint("write")
        async def write(job: PgqueuerJob) -> None:
            await business.execute(WRITE_BUSINESS_ROW, _decode(job)["reference"], 1)
            journal.note_handled()

        @manager.entrypoint("write_atomic")
        async def write_atomic(job: PgqueuerJob) -> None:
            async with business.acquire() as connection, connection.transaction():
                await connection.execute(WRITE_BUSINESS_ROW, _decode(job)["reference"], 1)
                await Queries(AsyncpgDriver(connection)).log_jobs([(job, "successful", None)])
            journal.note_handled()

        await manager.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=30))


def _decode(job: PgqueuerJob) -> Payload:
    return msgspec.json.decode(job.payload or b"", type=Payload)


if __name__ == "__main__":
    command.main(Pgqueuer)
