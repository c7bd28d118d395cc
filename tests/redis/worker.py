"""The worker of the processes' tests on queues in Redis, with what feeds them beside it. Run as a module."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from payonce.engine.bell import Bell
from payonce.engine.database import Database
from payonce.engine.process import Worker
from payonce.engine.work import Work, handles
from payonce.kit.ids import new_id
from payonce.queues.redis import RedisFeed, RedisQueue, RedisStore
from tests.processes.journal import Journal
from tests.processes.worker import APPLICATION_NAME, Deeds, Duty, policy_of


class RedisDuty(Duty, kw_only=True):
    redis_url: str


async def serve(duty: RedisDuty) -> None:
    policy, journal = policy_of(duty.policy), Journal(Path(duty.folder))
    deeds = Deeds(journal)
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
        Bell.open(database) as bell,
        RedisStore.open(duty.redis_url, database) as store,
    ):
        feed = RedisFeed(store, bell)
        worker = Worker(
            [handler], database, feed, lambda policy: RedisQueue(store, bell, policy, name), slots=duty.slots
        )
        working = asyncio.create_task(worker.run())
        journal.note("ready", 0)
        stopping = asyncio.create_task(told.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            journal.note("draining", 0)
            await worker.stop(duty.grace_s)
        await working


if __name__ == "__main__":
    uvloop.run(serve(msgspec.json.decode(sys.argv[1], type=RedisDuty)))
