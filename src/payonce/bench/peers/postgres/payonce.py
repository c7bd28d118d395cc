"""payonce itself, with everything on: lease, fence, retries, keys, limits, job log, heartbeat and sweeper."""

import asyncio
import os
from contextlib import AsyncExitStack

import asyncpg

from payonce.bench.journal import Journal
from payonce.bench.peers import command
from payonce.bench.peers.port import SLOW_S, WRITE_BUSINESS_ROW, Address, Job, Payload, Traits, Way
from payonce.engine.bell import Bell
from payonce.engine.database import Database
from payonce.engine.migrate import SERVICE_ROLE, known_migrations, migrate
from payonce.engine.model import Message
from payonce.engine.policy import Policy
from payonce.engine.process import Worker
from payonce.engine.work import Handler, Work, handles
from payonce.queues.postgres import PostgresFeed, PostgresQueue

SLOTS = 1000
# As many as a business pool of a peer, so that transactional handlers compete on equal terms.
WORK_CONNECTIONS = 8
# High enough never to hold anything up: the price of keeping the limit is in the figures, waiting for it is not.
CONCURRENCY = 10_000
# Longer than the handler that is killed in mid-run, which must end by its lease and not by its limit.
RUN_LIMIT_S = 2 * SLOW_S

POLICY = Policy("bench", concurrency=CONCURRENCY, run_limit_s=RUN_LIMIT_S)


class Payonce:
    traits = Traits(
        worker=f"{SLOTS} slots, lease {POLICY.lease_s:g} s, concurrency limit on, key per message, log = {POLICY.log}",
        bulk="put() of 20000, an idempotency key each",
        bulk_size=20_000,
        lease_s=POLICY.lease_s,
        ways=(
            Way("write_atomic", True, "work.commit(): fence, write, job log and acknowledgement"),
            Way("write", False, "write on a connection of its own, acknowledged after the handler"),
        ),
    )

    def __init__(self, at: Address) -> None:
        self._url = at.url
        self._stack = AsyncExitStack()
        self._database: Database
        self._bell: Bell
        self._feed: PostgresFeed

    async def install(self) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            await migrate(connection, known_migrations(()))
            await connection.execute(f"grant insert on bench_business to {SERVICE_ROLE}")
        finally:
            await connection.close()
        await self.open()
        await self._feed.declare([POLICY])
        # What comes after is copied from this database, which nobody may be connected to then.
        await self._stack.aclose()

    async def open(self) -> None:
        self._database = await self._stack.enter_async_context(
            Database.open(self._url, work_pool_size=WORK_CONNECTIONS, shortest_lease_s=POLICY.lease_s)
        )
        self._bell = await self._stack.enter_async_context(Bell.open(self._database))
        self._feed = PostgresFeed(self._database, self._bell)

    async def put(self, job: Job, payload: Payload) -> None:
        await self._feed.put([_message(job, payload)])

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        await self._feed.put([_message(job, payload) for payload in payloads])

    async def unfinished(self) -> int:
        return int(await self._database.engine.fetchval("select count(*) from payonce.messages"))

    async def work(self, journal: Journal) -> None:
        await self.open()

        def open_queue(policy: Policy) -> PostgresQueue:
            return PostgresQueue(self._database, self._bell, policy, worker=f"bench-{os.getpid()}")

        await Worker(_handlers(journal), self._database, self._feed, open_queue, slots=SLOTS).run()


def _handlers(journal: Journal) -> list[Handler]:
    @handles(POLICY, "noop")
    async def noop(work: Work) -> None:
        journal.note_handled()

    @handles(POLICY, "timed")
    async def timed(work: Work) -> None:
        journal.note_latency(work.message.payload["enqueued_ns"])

    @handles(POLICY, "slow")
    async def slow(work: Work) -> None:
        journal.note_slow_start()
        await asyncio.sleep(SLOW_S)

    @handles(POLICY, "write")
    async def write(work: Work) -> None:
        await work.read.fetch(WRITE_BUSINESS_ROW, work.message.payload["reference"], 1)
        journal.note_handled()

    @handles(POLICY, "write_atomic")
    async def write_atomic(work: Work) -> None:
        async with work.commit() as tx:
            await tx.execute(WRITE_BUSINESS_ROW, work.message.payload["reference"], 1)
        journal.note_handled()

    return [noop, timed, slow, write, write_atomic]


def _message(job: Job, payload: Payload) -> Message:
    return Message(
        queue=POLICY.queue,
        action=job,
        idempotency_key=f"{job}:{payload['reference']}",
        payload=dict(payload),
    )


if __name__ == "__main__":
    command.main(Payonce)
