"""A worker process that runs to a given point, reports it, and waits there to be killed. Run as a script."""

import asyncio
import sys
from contextlib import AsyncExitStack

import msgspec

from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Exponential, Policy
from payonce.engine.messages.ports import PullQueue
from payonce.engine.messages.transaction import NotifyingFeed, Reader
from payonce.engine.messages.work import Work
from payonce.queues.postgres import PostgresFeed, PostgresQueue
from payonce.queues.redis import RedisFeed, RedisQueue, RedisStore

WAIT_S = 60.0


async def main(url: str, policy: Policy, moment: str, redis_url: str | None = None) -> None:
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(Database.open(url, application_name="victim"))
        notifier = await stack.enter_async_context(Notifier.open(database, listen=False))
        feed: NotifyingFeed = PostgresFeed(database, notifier)
        queue: PullQueue = PostgresQueue(database, notifier, policy, worker="victim")
        if redis_url is not None:
            store = await stack.enter_async_context(RedisStore.open(redis_url, database))
            feed, queue = RedisFeed(store, notifier), RedisQueue(store, notifier, policy, worker="victim")
        if moment == "before put is committed":
            async with database.transaction() as connection:
                await feed.put([Message(queue=policy.queue)], within=connection)
                await stay()
        if moment == "marked alone":
            suspect = await queue.claim_alone()
            assert suspect is not None
            assert await queue.mark_alone(suspect)
            await stay()
        claims = (await queue.exchange([], 1_000)).claims
        assert claims
        if moment == "before commit":
            work = Work(claims[0], queue, database, feed, Reader(database))
            async with work.commit() as tx:
                await tx.send(policy, {"follows": True})
                await stay()
        await stay()


async def stay() -> None:
    print("there", flush=True)
    # Ends by itself only if the parent died without killing it.
    await asyncio.sleep(WAIT_S)
    sys.exit("nobody came to kill this process")


if __name__ == "__main__":
    described = msgspec.json.decode(sys.argv[2])
    described["backoff"] = Exponential(**described["backoff"])
    asyncio.run(main(sys.argv[1], Policy(**described), *sys.argv[3:]))
