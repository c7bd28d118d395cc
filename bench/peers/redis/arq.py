"""arq: polls a sorted set, takes one key per job, and keeps the job in the set until it has run."""

import asyncio
import logging
from typing import Any

import msgspec
from arq import ArqRedis, create_pool, func
from arq.connections import RedisSettings
from arq.constants import default_queue_name
from arq.worker import Worker

from bench.journal import Journal
from bench.peers import command
from bench.peers.port import SLOW_S, Address, Job, Payload, Traits

MAX_JOBS = 100
POLL_S = 0.01
AT_ONCE = 50
Context = dict[Any, Any]


class Arq:
    traits = Traits(
        worker=f"max_jobs {MAX_JOBS}, poll_delay {POLL_S} s (default 0.5), keep_result 0, uvloop, msgspec",
        bulk=f"no bulk call; {AT_ONCE} enqueue_job() at once",
        bulk_size=AT_ONCE,
        # job_timeout plus ten seconds of grace: until then the dead worker's key blocks the job.
        lease_s=310.0,
        write_modes=(),
    )

    def __init__(self, at: Address) -> None:
        self._settings = RedisSettings.from_dsn(at.url)
        self._pool: ArqRedis

    async def install(self) -> None:
        """Does nothing: it has no schema."""

    async def open(self) -> None:
        self._pool = await create_pool(self._settings, job_serializer=msgspec.msgpack.encode)

    async def put(self, job: Job, payload: Payload) -> None:
        await self._pool.enqueue_job(job, payload)

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        await asyncio.gather(*(self._pool.enqueue_job(job, payload) for payload in payloads))

    async def unfinished(self) -> int:
        return int(await self._pool.zcard(default_queue_name))

    async def work(self, journal: Journal) -> None:
        logging.basicConfig(level=logging.WARNING)

        async def noop(context: Context, payload: Payload) -> None:
            journal.note_handled()

        async def timed(context: Context, payload: Payload) -> None:
            journal.note_latency(payload["enqueued_ns"])

        async def slow(context: Context, payload: Payload) -> None:
            journal.note_slow_start()
            await asyncio.sleep(SLOW_S)

        worker = Worker(
            functions=[func(job, name=job.__name__, keep_result=0) for job in (noop, timed, slow)],
            redis_settings=self._settings,
            max_jobs=MAX_JOBS,
            poll_delay=POLL_S,
            job_serializer=msgspec.msgpack.encode,
            job_deserializer=msgspec.msgpack.decode,
            handle_signals=False,
        )
        await worker.async_run()


if __name__ == "__main__":
    command.main(Arq)
