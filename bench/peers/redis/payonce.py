"""payonce on Redis, fed directly like every peer: acknowledgements and the next claim in one script."""

import os
from contextlib import AsyncExitStack

import redis.asyncio

from bench.journal import Journal
from bench.peers import command
from bench.peers.ours import POLICY, SLOTS, WORK_CONNECTIONS, WORKER, handlers, install_schema, message
from bench.peers.port import Address, Job, Payload, Traits
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.process import Worker
from payonce.queues.redis import RedisFeed, RedisQueue, RedisStore

KEY = f"q:{POLICY.queue}"


class Payonce:
    traits = Traits(
        worker=WORKER,
        bulk="put() of 20000, an idempotency key each",
        bulk_size=20_000,
        lease_s=POLICY.lease_s,
        write_modes=(),
    )

    def __init__(self, at: Address) -> None:
        self._at = at
        self._stack = AsyncExitStack()
        self._database: Database
        self._notifier: Notifier
        self._store: RedisStore
        self._feed: RedisFeed
        self._watch: redis.asyncio.Redis

    async def install(self) -> None:
        # Only what all stages share: each has a new Redis server.
        await install_schema(self._at.database_url)

    async def open(self) -> None:
        self._database = await self._stack.enter_async_context(
            Database.open(self._at.database_url, work_pool_size=WORK_CONNECTIONS, shortest_lease_s=POLICY.lease_s)
        )
        self._notifier = await self._stack.enter_async_context(Notifier.open(self._database))
        self._store = await self._stack.enter_async_context(RedisStore.open(self._at.url, self._database))
        self._feed = RedisFeed(self._store, self._notifier)
        await self._feed.declare([POLICY])
        self._watch = redis.asyncio.Redis.from_url(self._at.url)

    async def put(self, job: Job, payload: Payload) -> None:
        await self._feed.put([message(job, payload)])

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        await self._feed.put([message(job, payload) for payload in payloads])

    async def unfinished(self) -> int:
        # A message's id is stored here until it is settled, whatever its state.
        return int(await self._watch.hlen(f"{KEY}:ids"))

    async def work(self, journal: Journal) -> None:
        await self.open()
        await self.serve(journal)

    async def serve(self, journal: Journal) -> None:
        def open_queue(policy: Policy) -> RedisQueue:
            return RedisQueue(self._store, self._notifier, policy, worker=f"bench-{os.getpid()}")

        await Worker(handlers(journal), self._database, self._feed, open_queue, slots=SLOTS).run()


if __name__ == "__main__":
    command.main(Payonce)
