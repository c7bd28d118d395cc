"""The explorer with queues in PostgreSQL."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import asyncpg

from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import NotifyingFeed
from payonce.kit.outcomes import Invalid
from payonce.queues.postgres import PostgresAdmin, PostgresFeed, PostgresQueue
from payonce.testing.clock import Clock
from payonce.testing.crash.backend import DriverStorage, EngineParts, PendingWork, QueueProbe
from payonce.testing.crash.model import Violation

SHOWN_ROWS: Final = 3


@dataclass(frozen=True)
class OnPostgres:
    name: str = "postgres"

    async def declare(self, database: Database, policies: Sequence[Policy]) -> NotifyingFeed:
        feed = PostgresFeed(database, Notifier(database))
        await feed.declare(policies)
        return feed

    def storage(self, folder: Path) -> DriverStorage:
        return PostgresStorage()

    @asynccontextmanager
    async def parts(self, database: Database, address: str, worker: str) -> AsyncIterator[EngineParts]:
        # The notifier stays closed: it would notify from a background task.
        notifier = Notifier(database)
        yield EngineParts(
            PostgresFeed(database, notifier),
            PostgresAdmin(database, notifier),
            lambda policy: PostgresQueue(database, notifier, policy, worker),
        )


@dataclass(frozen=True)
class PostgresStorage:
    """No storage of its own: every run has a database."""

    address: str = ""

    @asynccontextmanager
    async def probe(self, owner: asyncpg.Connection, policies: Sequence[Policy]) -> AsyncIterator[QueueProbe]:
        yield PostgresProbe(owner, Clock(owner))


@dataclass(frozen=True)
class PostgresProbe:
    owner: asyncpg.Connection
    clock: Clock

    async def pending(self) -> PendingWork:
        [row] = await self.owner.fetch(_PENDING)
        return PendingWork(row["dead"], row["due"], row["relays"], row["leased"])

    async def freeze(self, at: datetime) -> datetime:
        return await self.clock.freeze(at)

    async def advance_leases(self, lease_s: float) -> None:
        await self.clock.advance_leases(lease_s)

    async def next_due(self) -> datetime | None:
        return await self.clock.next_due()

    async def waiting(self) -> str:
        rows = await self.owner.fetch("select queue, state, last_error from payonce.messages order by id limit 5")
        return "; ".join(f"{row['queue']} {row['state']} ({row['last_error']})" for row in rows) or "nothing waits"

    async def wipe(self) -> None:
        """Does nothing: all messages are in PostgreSQL."""

    async def push(self, queue: str, bodies: Sequence[bytes]) -> None:
        raise Invalid(
            f"queue {queue} is in PostgreSQL, where bodies cannot be pushed directly; explore this scenario on redis"
        )

    async def parked(self) -> tuple[str, UUID] | None:
        row = await self.owner.fetchrow(
            "select queue, id from payonce.messages where state = 'parked' order by id limit 1"
        )
        return None if row is None else (row["queue"], UUID(int=row["id"].int))

    async def parked_in_review(self) -> tuple[str, UUID] | None:
        row = await self.owner.fetchrow(PARKED_IN_REVIEW)
        return None if row is None else (row["queue"], UUID(int=row["id"].int))

    async def left_over(self, expected_parked: int) -> list[Violation]:
        return await left_in_postgres(self.owner, expected_parked)


async def left_in_postgres(owner: asyncpg.Connection, expected_parked: int) -> list[Violation]:
    """Unfinished messages in PostgreSQL, including durable copies of other backends' queues."""
    rows = await owner.fetch("select queue, state, last_error from payonce.live_messages order by id")
    found = [
        Violation("stuck", f"a message of {row['queue']} is {row['state']}: {row['last_error']}")
        for row in rows
        if row["state"] != "parked"
    ]
    parked = [f"{row['queue']}: {row['last_error']}" for row in rows if row["state"] == "parked"]
    return found + wrongly_parked(parked, expected_parked)


def wrongly_parked(parked: Sequence[str], expected: int) -> list[Violation]:
    if len(parked) == expected:
        return []
    why = "; ".join(parked[:SHOWN_ROWS])
    return [Violation("stuck", f"{len(parked)} messages are parked, {expected} should be: {why}")]


RELAYS: Final = """
        array(select distinct o.relay from payonce.outbox o join payonce.relays r on r.name = o.relay
              where (o.state = 'waiting' and o.try_at <= payonce.due_now() and not r.paused)
                 or (o.state = 'leased' and o.lease_until <= payonce.lease_now()) order by o.relay) as relays"""

_PENDING: Final = f"""
    select
        array(select distinct queue from payonce.messages
              where state = 'leased' and lease_until <= payonce.lease_now() order by queue) as dead,
        array(select distinct m.queue from payonce.messages m join payonce.queues q on q.name = m.queue
              where m.state in ('ready', 'alone') and m.ready_at <= payonce.due_now() and not q.paused
              order by m.queue) as due,
        {RELAYS},
        exists (select from payonce.messages where state = 'leased')
            or exists (select from payonce.outbox where state = 'leased') as leased
"""

PARKED_IN_REVIEW: Final = """
    select m.id, m.queue from payonce.live_messages m
    where m.state = 'parked'
      and exists (select from payonce.effects e where e.message_id = m.id and e.state = 'review')
    order by m.id limit 1
"""
