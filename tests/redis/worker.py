"""The worker of the processes' tests on queues in Redis, with what feeds them beside it. Run as a module."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.janitors import run_janitors
from payonce.engine.messages.process import Worker
from payonce.engine.messages.work import Work, handles
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Retry
from payonce.queues.backends import REDIS, open_backend
from tests.processes.journal import Journal
from tests.processes.worker import APPLICATION_NAME, Deeds, Duty, add_one, policy_of

STUMBLES = 2


class RedisDuty(Duty, kw_only=True):
    redis_url: str


class RedisDeeds(Deeds):
    """Further deeds: what fails, and how often, is part of the message."""

    async def stumble(self, work: Work, row: int) -> None:
        """Fails until its second attempt has ended: a run with fewer attempts than earlier ones had is noticed."""
        self._journal.note(f"attempt {work.message.attempts}", row)
        if work.message.attempts < STUMBLES:
            raise Retry("not yet")
        await self.apply(work, row)

    async def call(self, work: Work, row: int) -> None:
        """A call of a vendor that lasts for a while, or until it is let go, and then the commit of its answer."""
        self._journal.note("calling", row)
        try:
            if "takes_s" in work.message.payload:
                await asyncio.sleep(work.message.payload["takes_s"])
            else:
                await self._until_let_go(row)
        finally:
            self._journal.note("called", row)
        async with work.commit() as tx:
            await add_one(tx, row, work.message.id)

    async def spoil(self, work: Work, row: int) -> None:
        """Never succeeds, and parks by its policy."""
        raise Retry("never")


async def serve(duty: RedisDuty) -> None:
    policy, journal = policy_of(duty.policy), Journal(Path(duty.folder))
    deeds = RedisDeeds(journal)
    name = f"worker-{os.getpid()}-{new_id().hex[-6:]}"

    @handles(policy)
    async def handler(work: Work) -> None:
        await deeds.run(work)

    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with (
        Database.open(
            duty.url,
            work_pool_size=duty.pool_size,
            shortest_lease_s=policy.lease_s,
            application_name=APPLICATION_NAME,
        ) as database,
        Notifier.open(database) as notifier,
        open_backend(REDIS, duty.redis_url, database, notifier) as backend,
    ):
        worker = Worker([handler], database, backend.feed, lambda policy: backend.queue(policy, name), slots=duty.slots)
        # As in a process of the product: the relay in each, the refill in the one that leads.
        janitors = asyncio.create_task(
            run_janitors(
                database,
                backend.feed,
                backend.admin,
                holder=name,
                relays=backend.relays,
                leader_janitors=backend.janitors,
                notifier=notifier,
            )
        )
        working = asyncio.create_task(worker.run())
        journal.note("ready", 0)
        stopping = asyncio.create_task(told.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            journal.note("draining", 0)
            await worker.stop(duty.grace_s)
        await working
        janitors.cancel()
        await asyncio.wait({janitors})


if __name__ == "__main__":
    uvloop.run(serve(msgspec.json.decode(sys.argv[1], type=RedisDuty)))
