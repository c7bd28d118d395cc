"""DBOS: durable workflows on queues in its system database; it polls, and keeps finished work."""

import asyncio

import asyncpg
import sqlalchemy
from dbos import DBOS, AsyncSQLAlchemyDatasource, DBOSClient, DBOSConfig, EnqueueOptions

from bench.journal import Journal
from bench.peers import command
from bench.peers.port import SLOW_S, Address, Job, Payload, Traits, WriteMode

QUEUE = "bench"
CONCURRENCY = 500
POLL_S = 0.05


class Dbos:
    traits = Traits(
        worker=f"async workflows, worker_concurrency {CONCURRENCY}, polling every {POLL_S} s (default 1.0)",
        bulk="enqueue_in_transaction(), 100 to a commit",
        bulk_size=100,
        lease_s=None,
        write_modes=(
            WriteMode("write_atomic", True, "the write and its step record are one commit, the workflow's end another"),
        ),
    )

    def __init__(self, at: Address) -> None:
        self._url = at.url
        self._client: DBOSClient
        self._engine: sqlalchemy.Engine
        self._watch: asyncpg.Connection

    async def install(self) -> None:
        # Launching an application creates its schema and registers its queues.
        await self._launch()

    async def open(self) -> None:
        self._client = DBOSClient(system_database_url=self._url)
        self._engine = sqlalchemy.create_engine(self._url.replace("postgresql://", "postgresql+psycopg://", 1))
        self._watch = await asyncpg.connect(self._url)

    async def put(self, job: Job, payload: Payload) -> None:
        self._client.enqueue(_options(job), payload)

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        options = _options(job)
        with self._engine.begin() as connection:
            for payload in payloads:
                self._client.enqueue_in_transaction(connection, options, payload)

    async def unfinished(self) -> int:
        found = await self._watch.fetchval(
            "select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')"
        )
        return int(found)

    async def work(self, journal: Journal) -> None:
        datasource = await AsyncSQLAlchemyDatasource.create(self._url)

        @DBOS.workflow(name="noop")
        async def noop(payload: Payload) -> None:
            journal.note_handled()

        @DBOS.workflow(name="timed")
        async def timed(payload: Payload) -> None:
            journal.note_latency(payload["enqueued_ns"])

        @DBOS.workflow(name="slow")
        async def slow(payload: Payload) -> None:
            journal.note_slow_start()
            await asyncio.sleep(SLOW_S)

        @DBOS.workflow(name="write_atomic")
        async def write_atomic(payload: Payload) -> None:
            async def write() -> None:
                await datasource.sql_session().execute(_WRITE, {"reference": payload["reference"]})

            await datasource.run_tx_step_async({"isolation_level": "READ COMMITTED"}, write)
            journal.note_handled()

        await self._launch()
        await asyncio.Event().wait()

    async def _launch(self) -> None:
        DBOS(config=_config(self._url))
        DBOS.launch()
        await DBOS.register_queue_async(QUEUE, worker_concurrency=CONCURRENCY, polling_interval_sec=POLL_S)


_WRITE = sqlalchemy.text("insert into bench_business values (:reference, 1)")


def _config(url: str) -> DBOSConfig:
    return {
        "name": "bench",
        "system_database_url": url,
        "log_level": "ERROR",
        "application_version": "1",
        # The same executor after a crash: DBOS recovers that at start without its paid conductor.
        "executor_id": "bench",
    }


def _options(job: Job) -> EnqueueOptions:
    return {"queue_name": QUEUE, "workflow_name": job, "app_version": "1"}


if __name__ == "__main__":
    command.main(Dbos)
