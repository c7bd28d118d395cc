"""Where a test of worker processes on Redis stands: it puts, starts workers, and reads both stores."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from payonce.embedded.redis import RedisServer
from payonce.engine.bell import Bell
from payonce.engine.database import Database
from payonce.engine.model import Message
from payonce.engine.policy import Fixed, Policy
from payonce.kit.outcomes import Unavailable
from payonce.queues.redis import RedisAdmin, RedisFeed, RedisStore
from payonce.testing import ScratchDatabase, eventually
from payonce.testing.processes import Child, Processes
from tests.processes.desk import make_books
from tests.processes.journal import Journal
from tests.redis.worker import RedisDuty

ROOT = Path(__file__).resolve().parents[2]
QUEUE = "q:pay:additions"
LEASE_S = 1.0
POLICY = Policy(QUEUE, max_attempts=20, backoff=Fixed(0.05), lease_s=LEASE_S, run_limit_s=60.0)
START_LIMIT_S = 20.0
DRAIN_LIMIT_S = 45.0
PLACES = ("LLEN", ""), ("LLEN", ":processing"), ("ZCARD", ":delayed"), ("ZCARD", ":alone")


@dataclass
class RedisDesk:
    scratch: ScratchDatabase
    server: RedisServer
    processes: Processes
    journal: Journal
    database: Database
    store: RedisStore
    feed: RedisFeed
    admin: RedisAdmin

    def begin_worker(self, policy: Policy = POLICY, redis_url: str | None = None, **duty: Any) -> Child:
        """A worker process that is about to serve."""
        told = RedisDuty(
            url=self.scratch.service_url,
            redis_url=redis_url or self.server.url,
            folder=str(self.journal.folder),
            policy={name: value for name, value in policy.described().items() if name != "on_give_up"},
            **duty,
        )
        command = (sys.executable, "-m", "tests.redis.worker", msgspec.json.encode(told).decode())
        return self.processes.start(*command, name="worker", cwd=ROOT)

    async def worker(self, policy: Policy = POLICY, redis_url: str | None = None, **duty: Any) -> Child:
        child = self.begin_worker(policy, redis_url, **duty)
        await self.serving(child)
        return child

    async def serving(self, *children: Child) -> None:
        for child in children:
            await eventually(partial(self.journal.notes, "ready", 0, child.pid), START_LIMIT_S, f"{child.name} serves")

    async def put(self, rows: Iterable[int], policy: Policy = POLICY, **payload: Any) -> list[UUID]:
        """One message per row straight into Redis, each row there before its message."""
        numbers = list(rows)
        await self.feed.declare([policy])
        await self.ask("insert into books.rows (id) select unnest($1::bigint[])", numbers)
        return await self.feed.put([Message(queue=policy.queue, payload={"row": row, **payload}) for row in numbers])

    async def ask(self, statement: str, *arguments: object) -> Any:
        return await self.database.work.fetchval(statement, *arguments)

    async def ended(self, count: int, within_s: float = DRAIN_LIMIT_S) -> None:
        """Waits until so many rows have a run that came to its end."""
        await eventually(lambda: len(self.ended_rows()) >= count, within_s, f"{count} messages have ended")

    def ended_rows(self) -> set[int]:
        return {note.row for note in self.journal.notes("ended")}

    async def empty(self, policy: Policy = POLICY) -> bool:
        """Whether nothing but parked messages is left in Redis; False while it does not answer."""
        try:
            return not any([await self.store.command(word, policy.queue + part) for word, part in PLACES])
        except Unavailable:
            return False

    async def start_server_again(self) -> None:
        """Returns when it serves; connections of this test broke with it."""

        async def answers() -> bool:
            try:
                return bool(await self.store.command("PING"))
            except Unavailable:
                return False

        await asyncio.to_thread(self.server.start)
        await eventually(answers, START_LIMIT_S, "the server answers")

    async def drained(self, policy: Policy = POLICY, within_s: float = DRAIN_LIMIT_S) -> None:
        async def nothing_left() -> bool:
            return await self.empty(policy)

        await eventually(nothing_left, within_s, "every message has ended or is parked")


@asynccontextmanager
async def open_redis_desk(scratch: ScratchDatabase, server: RedisServer, folder: Path) -> AsyncIterator[RedisDesk]:
    await make_books(scratch)
    with Processes(folder) as processes:
        async with (
            Database.open(scratch.service_url) as database,
            Bell.open(database, listen=False) as bell,
            RedisStore.open(server.url, database) as store,
        ):
            feed, admin = RedisFeed(store, bell), RedisAdmin(store, bell)
            yield RedisDesk(scratch, server, processes, Journal(folder), database, store, feed, admin)
