"""Procrastinate: psycopg 3; claims and acknowledges one job at a time."""

import asyncio

import msgspec
import procrastinate

from bench.journal import Journal
from bench.peers import command
from bench.peers.port import SLOW_S, WRITE_BUSINESS_ROW, Address, Job, Payload, Traits, WriteMode, business_pool

CONCURRENCY = 20
CONNECTIONS = 20


class Procrastinate:
    traits = Traits(
        worker=f"concurrency {CONCURRENCY}, psycopg pool of {CONNECTIONS}, uvloop, msgspec, delete_jobs successful",
        bulk="batch_defer_async() of 500",
        bulk_size=500,
        # Heartbeats only reveal stalled workers; putting jobs back is left to a periodic task of the user.
        lease_s=None,
        write_modes=(
            WriteMode("write", False, "cannot: a job finished in the handler makes the worker's own finish fail"),
        ),
    )

    def __init__(self, at: Address) -> None:
        self._url = at.url
        self._app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(
                conninfo=at.url,
                min_size=CONNECTIONS,
                max_size=CONNECTIONS,
                json_dumps=msgspec.json.encode,
                json_loads=msgspec.json.decode,
            )
        )

    async def install(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await self._app.open_async()

    async def put(self, job: Job, payload: Payload) -> None:
        await self._app.configure_task(job, queue="bench").defer_async(payload=dict(payload))

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        deferrer = self._app.configure_task(job, queue="bench")
        await deferrer.batch_defer_async(*({"payload": dict(payload)} for payload in payloads))

    async def unfinished(self) -> int:
        row = await self._app.connector.execute_query_one_async(
            "select count(*) as unfinished from procrastinate_jobs where status in ('todo', 'doing')"
        )
        return int(row["unfinished"])

    async def work(self, journal: Journal) -> None:
        business = await business_pool(self._url)

        @self._app.task(queue="bench", name="noop")
        async def noop(payload: Payload) -> None:
            journal.note_handled()

        @self._app.task(queue="bench", name="timed")
        async def timed(payload: Payload) -> None:
            journal.note_latency(payload["enqueued_ns"])

        @self._app.task(queue="bench", name="slow")
        async def slow(payload: Payload) -> None:
            journal.note_slow_start()
            await asyncio.sleep(SLOW_S)

        @self._app.task(queue="bench", name="write")
        async def write(payload: Payload) -> None:
            await business.execute(WRITE_BUSINESS_ROW, payload["reference"], 1)
            journal.note_handled()

        async with self._app.open_async():
            await self._app.run_worker_async(queues=["bench"], concurrency=CONCURRENCY, delete_jobs="successful")


if __name__ == "__main__":
    command.main(Procrastinate)
