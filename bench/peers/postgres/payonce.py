"""payonce on PostgreSQL: acknowledgements and the next claim in one statement."""

import os
from contextlib import AsyncExitStack

from bench.journal import Journal
from bench.peers import command
from bench.peers.ours import POLICY, SLOTS, WORK_CONNECTIONS, WORKER, handlers, install_schema, message
from bench.peers.port import Address, Job, Payload, Traits, WriteMode
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.process import Worker
from payonce.queues.postgres import PostgresFeed, PostgresQueue


class Payonce:
    traits = Traits(
        worker=WORKER,
        bulk="put() of 20000, an idempotency key each",
        bulk_size=20_000,
        lease_s=POLICY.lease_s,
        write_modes=(
            WriteMode("write_atomic", True, "work.commit(): fence, write, job log and acknowledgement"),
            WriteMode("write", False, "write on a connection of its own, acknowledged after the handler"),
        ),
    )

    def __init__(self, at: Address) -> None:
        self._url = at.url
        self._stack = AsyncExitStack()
        self._database: Database
        self._notifier: Notifier
        self._feed: PostgresFeed

    async def install(self) -> None:
        await install_schema(self._url)
        await self.open()
        await self._feed.declare([POLICY])
        # Later databases are copied from this one, which must have no connections then.
        await self._stack.aclose()

    async def open(self) -> None:
        self._database = await self._stack.enter_async_context(
            Database.open(self._url, work_pool_size=WORK_CONNECTIONS, shortest_lease_s=POLICY.lease_s)
        )
        self._notifier = await self._stack.enter_async_context(Notifier.open(self._database))
        self._feed = PostgresFeed(self._database, self._notifier)

    async def put(self, job: Job, payload: Payload) -> None:
        await self._feed.put([message(job, payload)])

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        await self._feed.put([message(job, payload) for payload in payloads])

    async def unfinished(self) -> int:
        return int(await self._database.engine.fetchval("select count(*) from payonce.messages"))

    async def work(self, journal: Journal) -> None:
        await self.open()

        def open_queue(policy: Policy) -> PostgresQueue:
            return PostgresQueue(self._database, self._notifier, policy, worker=f"bench-{os.getpid()}")

        await Worker(handlers(journal), self._database, self._feed, open_queue, slots=SLOTS).run()


if __name__ == "__main__":
    command.main(Payonce)
