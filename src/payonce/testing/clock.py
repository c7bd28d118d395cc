"""Moves the store's two clocks in tests. All processes on the database follow, since they read its clocks.

The due clock decides when messages and schedules fall due, the lease clock when leases end: advancing the due clock by
an hour does not end the leases of healthy workers.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, cast

import asyncpg

from payonce.engine.database.migrate import SERVICE_ROLE
from payonce.engine.database.notifier import CHANNEL, EVERYBODY
from payonce.engine.database.sessions import connect

HOPS_MAX: Final = 10_000
"""Bounds a drain that makes new work due at every hop."""

Drain = Callable[[], Awaitable[object]]


@dataclass
class MovedClock:
    """The clock of simulated vendors, which moves with the store's."""

    ahead: timedelta = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def advance(self, seconds: float) -> None:
        self.ahead += timedelta(seconds=seconds)


class Clock:
    """Moves the clocks of one database, over a separate connection of its owner."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def open(cls, owner_url: str) -> AsyncIterator["Clock"]:
        """Marks the database as a test database and makes its clocks movable; they run until moved."""
        connection = await connect(owner_url)
        try:
            async with connection.transaction():
                await connection.execute(_MAKE_MOVABLE)
            yield cls(connection)
        finally:
            await connection.close()

    async def now(self) -> datetime:
        return cast(datetime, await self._connection.fetchval("select payonce.due_now()"))

    async def lease_now(self) -> datetime:
        return cast(datetime, await self._connection.fetchval("select payonce.lease_now()"))

    async def freeze(self, at: datetime | None = None) -> datetime:
        """Stops both clocks, the due clock `at` the given time; leases then end only by advance_leases()."""
        return await self._move("due_frozen = coalesce($3, payonce.due_now()), lease_frozen = payonce.lease_now()", at)

    async def thaw(self) -> None:
        """Restarts both clocks from their current times."""
        await self._move(
            """
            due_offset = payonce.due_now() - statement_timestamp(), due_frozen = null,
            lease_offset = payonce.lease_now() - statement_timestamp(), lease_frozen = null
            """
        )

    async def advance(self, due_s: float) -> datetime:
        """Advances the due clock and wakes every waiter. Leases are not affected."""
        return await self._move(
            """
            due_frozen = due_frozen + make_interval(secs => $3), due_offset = due_offset + make_interval(secs => $3)
            """,
            due_s,
        )

    async def advance_leases(self, lease_s: float) -> None:
        """Advances the lease clock: leases not renewed within that time end."""
        await self._move(
            """
            lease_frozen = lease_frozen + make_interval(secs => $3),
            lease_offset = lease_offset + make_interval(secs => $3)
            """,
            lease_s,
        )

    async def step(self, by_s: float) -> None:
        """Sets both clocks forward or back at once, like a correction of the server's wall clock."""
        await self._move(
            """
            due_frozen = due_frozen + make_interval(secs => $3), due_offset = due_offset + make_interval(secs => $3),
            lease_frozen = lease_frozen + make_interval(secs => $3),
            lease_offset = lease_offset + make_interval(secs => $3)
            """,
            by_s,
        )

    async def run_to(self, at: datetime, drain: Drain) -> int:
        """Advances from one due time to the next up to `at`, draining at each, and stops there.

        A year yields twelve monthly renewals, each run at its own time. Returns the number of hops.
        """
        now = await self.freeze()
        if at < now:
            raise ValueError(f"run_to {at.isoformat()} is before {now.isoformat()}; pass a later time")
        await drain()
        for hop in range(HOPS_MAX):
            following = await self.next_due()
            if following is None or following > at:
                await self.freeze(at)
                await drain()
                return hop
            await self.freeze(following)
            await drain()
        raise AssertionError(
            f"run_to made {HOPS_MAX} hops and reached only {await self.now()}; something falls due again and again"
        )

    async def next_due(self) -> datetime | None:
        """The time at which the next message, schedule or outbox entry falls due, except paused ones."""
        return cast(datetime | None, await self._connection.fetchval(_NEXT_DUE))

    async def due_queues(self) -> set[str]:
        """Queues with a message that could be claimed now, rates and limits aside."""
        return {row["queue"] for row in await self._connection.fetch(_DUE_QUEUES)}

    async def idle(self) -> bool:
        """Whether nothing runs, and nothing that could run is due: the end of a drain."""
        return cast(bool, await self._connection.fetchval(_IDLE))

    async def _move(self, change: str, *by: object) -> datetime:
        """Moves the clocks, wakes every waiter, and returns the due clock's time."""
        moved = f"""
            update payonce.test_clock set {change}
            returning coalesce(due_frozen, statement_timestamp() + due_offset), pg_notify($1, $2)
        """
        return cast(datetime, await self._connection.fetchval(moved, CHANNEL, EVERYBODY, *by))


async def make_production_again(owner_url: str) -> None:
    """Reverts Clock.open: real clocks, and a database that production code accepts."""
    connection = await connect(owner_url)
    try:
        async with connection.transaction():
            await connection.execute(_MAKE_GENUINE)
    finally:
        await connection.close()


_MAKE_MOVABLE: Final = f"""
    update payonce.installation set purpose = 'test';
    create table if not exists payonce.test_clock (
        singleton boolean primary key default true check (singleton),
        due_frozen timestamptz, due_offset interval not null default '0',
        lease_frozen timestamptz, lease_offset interval not null default '0'
    );
    insert into payonce.test_clock default values on conflict do nothing;
    grant select on payonce.test_clock to {SERVICE_ROLE};
    create or replace function payonce.due_now() returns timestamptz language sql stable parallel safe
        return (select coalesce(due_frozen, statement_timestamp() + due_offset) from payonce.test_clock);
    create or replace function payonce.lease_now() returns timestamptz language sql stable parallel safe
        return (select coalesce(lease_frozen, statement_timestamp() + lease_offset) from payonce.test_clock);
"""

_MAKE_GENUINE: Final = """
    create or replace function payonce.due_now() returns timestamptz language sql stable parallel safe
        return statement_timestamp();
    create or replace function payonce.lease_now() returns timestamptz language sql stable parallel safe
        return statement_timestamp();
    drop table if exists payonce.test_clock;
    update payonce.installation set purpose = 'production';
"""

_NEXT_DUE: Final = """
    select min(due_at) from (
        select m.ready_at as due_at from payonce.messages m join payonce.queues q on q.name = m.queue
        where m.state in ('ready', 'alone') and m.ready_at > payonce.due_now() and not q.paused
        union all
        select next_at from payonce.schedules where next_at > payonce.due_now()
        union all
        select o.try_at from payonce.outbox o join payonce.relays r on r.name = o.relay
        where o.state = 'waiting' and o.try_at > payonce.due_now() and not r.paused
    ) waiting
"""

_DUE_QUEUES: Final = """
    select distinct m.queue from payonce.messages m join payonce.queues q on q.name = m.queue
    where m.state in ('ready', 'alone') and m.ready_at <= payonce.due_now() and not q.paused
"""

_IDLE: Final = """
    select not exists (
        select from payonce.messages m join payonce.queues q on q.name = m.queue
        where m.state = 'leased' or (m.state in ('ready', 'alone') and m.ready_at <= payonce.due_now() and not q.paused)
    )
"""
