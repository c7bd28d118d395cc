"""payonce as measured on every backend, with all features on: lease, fence, retries, keys, limits, job log."""

import asyncio

import asyncpg

from bench.journal import Journal
from bench.peers.port import SLOW_S, WRITE_BUSINESS_ROW, Job, Payload
from payonce.engine.database.migrate import SERVICE_ROLE, known_migrations, migrate
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.work import Handler, Work, handles

SLOTS = 1000
# The size of a peer's business pool, so that transactional handlers compete on equal terms.
WORK_CONNECTIONS = 8
# High enough never to delay anything: the figures include the cost of the limit, but no waiting for it.
CONCURRENCY = 10_000
# Longer than the handler that is killed during its run, which must end by its lease and not by its limit.
RUN_LIMIT_S = 2 * SLOW_S

POLICY = Policy("bench", concurrency=CONCURRENCY, run_limit_s=RUN_LIMIT_S)
WORKER = f"{SLOTS} slots, lease {POLICY.lease_s:g} s, concurrency limit on, key per message, log = {POLICY.log}"


async def install_schema(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await migrate(connection, known_migrations(()))
        await connection.execute(f"grant insert on bench_business to {SERVICE_ROLE}")
    finally:
        await connection.close()


def handlers(journal: Journal) -> list[Handler]:
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


def message(job: Job, payload: Payload) -> Message:
    return Message(
        queue=POLICY.queue,
        action=job,
        idempotency_key=f"{job}:{payload['reference']}",
        payload=dict(payload),
    )
