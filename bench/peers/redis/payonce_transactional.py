"""payonce on Redis, fed from transactions: a put message is first a row of the outbox, and finally one of the inbox.

The worker's process also relays the outbox to Redis and refills Redis, as in a deployment of one process.
"""

import asyncio
from functools import partial

from bench.journal import Journal
from bench.peers import command
from bench.peers.ours import POLICY, WORKER, message
from bench.peers.port import Job, Payload, Traits, WriteMode
from bench.peers.redis.payonce import Payonce
from payonce.engine.janitors import RELAY_EVERY_S, Janitor, run_ticks
from payonce.engine.janitors.relay import carry_on
from payonce.engine.outbox import declare_relays, wake_name
from payonce.queues.redis import RedisRelay, refill
from payonce.queues.redis.refill import REFILL_EVERY_S


class Transactional(Payonce):
    traits = Traits(
        worker=f"{WORKER}; with the relay and the refill in the same process",
        bulk="put(within=transaction) of 20000, an idempotency key each; one commit",
        bulk_size=20_000,
        lease_s=POLICY.lease_s,
        write_modes=(
            WriteMode("write_atomic", True, "work.commit(): inbox, write, job log and the end of the outbox's row"),
        ),
    )

    async def open(self) -> None:
        await super().open()
        self._relay = RedisRelay(self._store)
        await declare_relays(self._database, [self._relay])

    async def put(self, job: Job, payload: Payload) -> None:
        await self.put_many(job, [payload])

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        async with self._database.engine.acquire() as connection, connection.transaction():
            await self._feed.put([message(job, payload) for payload in payloads], within=connection)
        self._feed.notify({POLICY.queue})

    async def unfinished(self) -> int:
        kept = int(await self._database.engine.fetchval("select count(*) from payonce.outbox"))
        return max(kept, await super().unfinished())

    async def serve(self, journal: Journal) -> None:
        janitors = [
            Janitor(
                "relay", RELAY_EVERY_S, partial(carry_on, self._database, self._relay), wake_name(self._relay.name)
            ),
            Janitor("refill", REFILL_EVERY_S, partial(refill, self._store)),
        ]
        async with asyncio.TaskGroup() as together:
            together.create_task(super().serve(journal))
            together.create_task(run_ticks(janitors, self._notifier))


if __name__ == "__main__":
    command.main(Transactional)
