"""The engine for one test, opened on one database and closed after it."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

import asyncpg

from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.database.sessions import connect
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.process import Worker
from payonce.engine.messages.transaction import Reader, Tx, begin
from payonce.engine.messages.work import Handler
from payonce.queues.postgres import PostgresAdmin, PostgresFeed, PostgresQueue
from payonce.testing.clock import Clock
from payonce.testing.servers import ScratchDatabase


@dataclass(frozen=True)
class Stage:
    """The engine as in one process, in the service role, with the owner's connection and the clocks."""

    scratch: ScratchDatabase
    database: Database
    notifier: Notifier
    feed: PostgresFeed
    admin: PostgresAdmin
    clock: Clock
    owner: asyncpg.Connection
    """For operations that services may not do: triggers, other schemas, reading everything."""

    async def queue(self, policy: Policy, worker: str = "worker-1") -> PostgresQueue:
        """Declares the queue; returns it for a worker of that name."""
        await self.feed.declare([policy])
        return PostgresQueue(self.database, self.notifier, policy, worker)

    @property
    def read(self) -> Reader:
        return Reader(self.database)

    def begin(self) -> AbstractAsyncContextManager[Tx]:
        """A transaction outside any run, as in an HTTP request."""
        return begin(self.database, self.feed)

    async def worker(self, *handlers: Handler, resources: Sequence[object] = ()) -> Worker:
        """A worker with these handlers and resources, whose queues are declared; nothing runs until run() or step()."""
        await self.feed.declare(list({handler.policy.queue: handler.policy for handler in handlers}.values()))
        return Worker(handlers, self.database, self.feed, self._open_queue, resources)

    async def drain(self, worker: Worker) -> int:
        """Runs all due work; returns the number of steps."""
        steps = 0
        # Without queue names a step would check each of the worker's queues twice, and most are empty.
        while (due := await self.clock.due_queues()) and await worker.step(due):
            steps += 1
        return steps

    async def run(self, worker: Worker, for_s: float = 3_600.0) -> None:
        """Runs all work that falls due within that time, from one due time to the next; the clock then stays
        stopped."""
        await self.clock.run_to(await self.clock.now() + timedelta(seconds=for_s), partial(self.drain, worker))

    def _open_queue(self, policy: Policy) -> PostgresQueue:
        return PostgresQueue(self.database, self.notifier, policy, "worker-1")

    async def drained(self) -> bool:
        """Whether no work is due, in any process."""
        return await self.clock.idle()


_settings_by_server: Final[dict[str, dict[str, str]]] = {}
"""Session settings by server: reading them for every test would take another connection each."""


@asynccontextmanager
async def open_stage(scratch: ScratchDatabase) -> AsyncIterator[Stage]:
    server = scratch.service_url.replace(scratch.name, "")
    async with (
        Clock.open(scratch.owner_url) as clock,
        Database.open(scratch.service_url, settings=_settings_by_server.get(server)) as database,
        Notifier.open(database) as notifier,
    ):
        _settings_by_server[server] = database.settings
        owner = await connect(scratch.owner_url)
        try:
            feed, admin = PostgresFeed(database, notifier), PostgresAdmin(database, notifier)
            yield Stage(scratch, database, notifier, feed, admin, clock, owner)
        finally:
            await owner.close()


OpenStage = Callable[[], AbstractAsyncContextManager[Stage]]
"""The type of the fixture `stage`: call it and enter the result. Several at once act like several processes."""
