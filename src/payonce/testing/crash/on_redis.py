"""The explorer with queues in Redis that are fed from the outbox: every command to Redis is a crossing, too."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec
import redis.asyncio

from payonce.embedded.redis import RedisServer
from payonce.engine.database.connections import Connection, Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.janitors import Janitor
from payonce.engine.messages.declarations import queue_names
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import NotifyingFeed
from payonce.engine.outbox import declare_relays, put_durable
from payonce.queues.declarations import declare_queues
from payonce.queues.redis import RedisAdmin, RedisFeed, RedisQueue, RedisRelay, RedisStore, refill
from payonce.queues.redis.durable_copy import RELAY
from payonce.queues.redis.keys import main_key, unlogged_key
from payonce.queues.redis.refill import REFILL_EVERY_S
from payonce.queues.redis.unreadable import log_unreadable
from payonce.testing.clock import Clock
from payonce.testing.crash.backend import DriverStorage, EngineParts, PendingWork, QueueProbe
from payonce.testing.crash.model import Violation
from payonce.testing.crash.on_postgres import PARKED_IN_REVIEW, RELAYS, left_in_postgres
from payonce.testing.crash.redis_crossings import watch_redis
from payonce.testing.redis_clock import EPOCH, RedisClock

NOWHERE: Final = "redis://127.0.0.1:1/0"
REFILL: Final = "refill"
LOG: Final = "log of what Redis alone has"
LOG_EVERY_S: Final = 1.0
LISTS: Final = ("", ":processing", ":failed", ":unlogged")
SORTED: Final = (":delayed", ":alone", ":leases")
HASHES: Final = (":claims", ":ids")


@dataclass(frozen=True)
class OnRedis:
    name: str = "redis"

    async def declare(self, database: Database, policies: Sequence[Policy]) -> NotifyingFeed:
        """Declares in PostgreSQL alone: every run begins with an empty Redis, which gets its declarations then."""
        async with database.transaction() as connection:
            await declare_queues(connection, policies, self.name)
        await declare_relays(database, [RedisRelay(RedisStore(NOWHERE, database, test=True))])
        return OutboxFeed()

    def storage(self, folder: Path) -> DriverStorage:
        server = RedisServer(folder / f"redis-{os.getpid()}", "none")
        server.start()
        return RedisStorage(server)

    @asynccontextmanager
    async def parts(self, database: Database, address: str, worker: str) -> AsyncIterator[EngineParts]:
        watch_redis()
        notifier = Notifier(database)
        store = RedisStore(address, database, test=True)
        yield EngineParts(
            RedisFeed(store, notifier),
            RedisAdmin(store, notifier),
            lambda policy: RedisQueue(store, notifier, policy, worker),
            [RedisRelay(store)],
            [
                Janitor(REFILL, REFILL_EVERY_S, lambda: refill(store, 0.0)),
                Janitor(LOG, LOG_EVERY_S, lambda: _log_parked(store, worker)),
            ],
        )


async def _log_parked(store: RedisStore, worker: str) -> None:
    """Writes missing job-log rows, like the sweep of every queue."""
    for queue in await queue_names(store.database.engine):
        await log_unreadable(store, queue, worker)


class OutboxFeed:
    """Puts into the outbox, while there is no Redis to notify."""

    async def put(self, messages: Sequence[Message], within: Connection | None = None) -> list[UUID]:
        assert within is not None, "a scenario's first messages are put with its rows"
        return await put_durable(within, RELAY, messages)

    def notify(self, queues: set[str]) -> None:
        return None


@dataclass(frozen=True)
class RedisStorage:
    """A server of this driver, which ends with it."""

    server: RedisServer

    @property
    def address(self) -> str:
        return self.server.url

    @asynccontextmanager
    async def probe(self, owner: asyncpg.Connection, policies: Sequence[Policy]) -> AsyncIterator[QueueProbe]:
        client: Any = redis.asyncio.Redis.from_url(self.server.url)
        async with client:
            probe = RedisProbe(owner, RedisClock(Clock(owner), self.server.url), client, policies)
            await probe.wipe()
            yield probe


@dataclass(frozen=True)
class RedisProbe:
    owner: asyncpg.Connection
    clock: RedisClock
    client: Any
    policies: Sequence[Policy]

    async def wipe(self) -> None:
        """Empties the server, except for the test clocks, like the death of one without durability."""
        await self.client.execute_command("FLUSHALL")
        await self.clock.advance(0)

    async def pending(self) -> PendingWork:
        [row] = await self.owner.fetch(_PENDING, RELAY)
        # Computed like the clock's next due time: a difference in the last digit would make a message neither due nor
        # pending.
        due_ms, lease_ms = ((row[name] - EPOCH) / timedelta(milliseconds=1) for name in ("due_now", "lease_now"))
        dead, due, leased, unlogged = [], [], bool(row["leased"]), False
        for policy in self.policies:
            key = main_key(policy.queue)
            async with self.client.pipeline(transaction=False) as pipeline:
                pipeline.llen(key)
                pipeline.zcount(f"{key}:delayed", "-inf", due_ms)
                pipeline.zcount(f"{key}:alone", "-inf", due_ms)
                pipeline.zcount(f"{key}:leases", "-inf", lease_ms)
                pipeline.zcard(f"{key}:leases")
                pipeline.llen(unlogged_key(policy.queue))
                waiting, delayed, alone, ended, held, unlogged_count = await pipeline.execute()
            if ended:
                dead.append(policy.queue)
            if (waiting or delayed or alone) and policy.queue not in row["paused"]:
                due.append(policy.queue)
            leased, unlogged = leased or held > 0, unlogged or unlogged_count > 0
        lost = await self._lost(row["delivered"])
        mending = [name for name, needed in ((REFILL, lost), (LOG, unlogged)) if needed]
        return PendingWork(dead, due, row["relays"], leased, mending)

    async def _lost(self, delivered: Sequence[str]) -> bool:
        """Whether Redis lacks a message that was delivered to it."""
        if not delivered:
            return False
        known: set[str] = set()
        for policy in self.policies:
            known.update(each.decode() for each in await self.client.hkeys(f"{main_key(policy.queue)}:ids"))
        return not known.issuperset(delivered)

    async def freeze(self, at: datetime) -> datetime:
        return await self.clock.freeze(at)

    async def advance_leases(self, lease_s: float) -> None:
        await self.clock.advance_leases(lease_s)

    async def next_due(self) -> datetime | None:
        """Includes delivered messages, which may have been lost since."""
        kept = await self.owner.fetchval(
            """
            select min(ready_at) from payonce.outbox
            where relay = $1 and state = 'delivered' and ready_at > payonce.due_now()
            """,
            RELAY,
        )
        following = await self.clock.next_due()
        return min((moment for moment in (kept, following) if moment is not None), default=None)

    async def waiting(self) -> str:
        return "; ".join(await self._contents()) or "nothing waits"

    async def push(self, queue: str, bodies: Sequence[bytes]) -> None:
        await self.client.lpush(main_key(queue), *bodies)

    async def parked(self) -> tuple[str, UUID] | None:
        for policy in self.policies:
            for body in await self.client.lrange(f"{main_key(policy.queue)}:failed", 0, 0):
                return policy.queue, UUID(msgspec.json.decode(body)["id"])
        return None

    async def parked_in_review(self) -> tuple[str, UUID] | None:
        row = await self.owner.fetchrow(PARKED_IN_REVIEW)
        return None if row is None else (row["queue"], UUID(int=row["id"].int))

    async def left_over(self, expected_parked: int) -> list[Violation]:
        found = await left_in_postgres(self.owner, expected_parked - await self._parked_here_alone())
        return found + [Violation("stuck", f"left in Redis: {text}") for text in await self._contents(expected_parked)]

    async def _parked_here_alone(self) -> int:
        """Bodies pushed directly into Redis have no row in PostgreSQL."""
        here: int = sum([await self.client.llen(f"{main_key(policy.queue)}:failed") for policy in self.policies])
        kept: int = await self.owner.fetchval("select count(*) from payonce.live_messages where state = 'parked'")
        return here - min(here, kept)

    async def _contents(self, parked: int = 0) -> list[str]:
        """The contents of Redis, except `parked` messages and their metadata."""
        found = []
        for policy in self.policies:
            key = main_key(policy.queue)
            counts = {f"{key}{part}": await self.client.llen(f"{key}{part}") for part in LISTS}
            counts |= {f"{key}{part}": await self.client.zcard(f"{key}{part}") for part in SORTED}
            counts |= {f"{key}{part}": await self.client.hlen(f"{key}{part}") for part in HASHES}
            if parked and counts[f"{key}:failed"] == counts[f"{key}:ids"]:
                parked -= counts.pop(f"{key}:failed")
                counts.pop(f"{key}:ids")
            found += [f"{name} has {count}" for name, count in counts.items() if count]
        found += [lock.decode() for lock in await self.client.keys("lock:*")]
        return found


_PENDING: Final = f"""
    select {RELAYS},
        exists (select from payonce.outbox where state = 'leased') as leased,
        payonce.due_now() as due_now, payonce.lease_now() as lease_now,
        array(select name from payonce.queues where paused) as paused,
        array(select id::text from payonce.outbox
              where relay = $1 and (state = 'parked' or (state = 'delivered' and ready_at <= payonce.due_now())))
            as delivered
"""
