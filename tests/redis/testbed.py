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
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.outbox import declare_relays
from payonce.kit.outcomes import Unavailable
from payonce.queues.redis import RedisAdmin, RedisFeed, RedisRelay, RedisStore
from payonce.testing import ScratchDatabase, eventually
from payonce.testing.processes import Child, Processes
from tests.processes.journal import Journal
from tests.processes.testbed import make_books
from tests.redis.worker import RedisDuty

ROOT = Path(__file__).resolve().parents[2]
QUEUE = "q:pay:additions"
LEASE_S = 1.0
POLICY = Policy(QUEUE, max_attempts=20, backoff=Fixed(0.05), lease_s=LEASE_S, run_limit_s=60.0)
START_LIMIT_S = 45.0
DRAIN_LIMIT_S = 60.0
COUNT_ALL = """
local queue = KEYS[1]
return redis.call('LLEN', queue) + redis.call('LLEN', queue .. ':processing')
    + redis.call('ZCARD', queue .. ':delayed') + redis.call('ZCARD', queue .. ':alone')
"""
"""One script: a message that moves between two counts would be in neither."""


@dataclass
class RedisTestbed:
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

    async def send(
        self, rows: Iterable[int], policy: Policy = POLICY, max_attempts: int | None = None, **payload: Any
    ) -> None:
        """Row and message in one transaction; the relays of the workers bring the message into Redis."""
        numbers = list(rows)
        await self.feed.declare([policy])
        async with self.database.transaction() as connection:
            await connection.execute("insert into books.rows (id) select unnest($1::bigint[])", numbers)
            messages = [
                Message(queue=policy.queue, payload={"row": row, **payload}, max_attempts=max_attempts)
                for row in numbers
            ]
            await self.feed.put(messages, within=connection)
        self.feed.notify({policy.queue})

    async def applied(self) -> int:
        count: int = await self.ask("select count(*) from books.lines")
        return count

    async def reached(self, count: int, within_s: float = DRAIN_LIMIT_S) -> None:
        async def enough() -> bool:
            return await self.applied() >= count

        await eventually(enough, within_s, f"{count} messages are applied")

    async def settled(self, within_s: float = DRAIN_LIMIT_S) -> None:
        """Waits until PostgreSQL keeps nothing but parked messages, and Redis has nothing else either."""

        async def nothing_left() -> bool:
            kept = await self.ask("select exists (select from payonce.live_messages where state <> 'parked')")
            return not kept and await self.empty()

        await eventually(nothing_left, within_s, "every message is applied or parked")

    async def each_applied_once(self, but: Iterable[int] = ()) -> None:
        """Nothing lost, nothing doubled; `but` these rows were not touched, and their messages are parked."""
        untouched = sorted(but)
        wrong = await self.ask(
            """
            select array_agg((r.id, r.value, lines.count)::text order by r.id)
            from books.rows r, lateral (select count(*) from books.lines where row_id = r.id) lines,
                lateral (select case when r.id = any($1::bigint[]) then 0 else 1 end as times) wanted
            where r.value <> wanted.times or lines.count <> wanted.times
            """,
            untouched,
        )
        assert wrong is None, f"rows with (id, value, lines) other than once: {wrong}"
        assert await self.parked_in_postgres() == untouched

    async def parked_in_postgres(self) -> list[int]:
        parked = await self.ask(
            "select array_agg((payload->>'row')::bigint order by 1) from payonce.outbox where state = 'parked'"
        )
        return sorted(parked or [])

    async def parked_in_redis(self, policy: Policy = POLICY) -> list[int]:
        bodies = await self.store.command("LRANGE", f"{policy.queue}:failed", 0, -1)
        return sorted(msgspec.json.decode(body)["payload"]["row"] for body in bodies)

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
            return bool(await self.store.command("EVAL", COUNT_ALL, 1, policy.queue) == 0)
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
async def open_redis_testbed(
    scratch: ScratchDatabase, server: RedisServer, folder: Path
) -> AsyncIterator[RedisTestbed]:
    await make_books(scratch)
    with Processes(folder) as processes:
        async with (
            Database.open(scratch.service_url) as database,
            Notifier.open(database, listen=False) as notifier,
            RedisStore.open(server.url, database) as store,
        ):
            feed, admin = RedisFeed(store, notifier), RedisAdmin(store, notifier)
            await declare_relays(database, [RedisRelay(store)])
            yield RedisTestbed(scratch, server, processes, Journal(folder), database, store, feed, admin)
