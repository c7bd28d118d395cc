"""Named leases with epochs: one holder at a time, by the store's clock, fenced in the holder's transactions.

Rows, not advisory locks: those belong to a session, and behind a transaction pooler every client got one.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from payonce.engine.database.connections import Connection, Database, is_transient
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.model import NAME_MAX_LENGTH, Lease
from payonce.engine.monitoring.metrics import LEASE_CHANGES
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, Stale
from payonce.kit.redact import redact

TTL_DEFAULT_S: Final = 5.0
TTL_MIN_S: Final = 0.5
"""Below this a busy machine would lose leases that it could have renewed."""
TTL_MAX_S: Final = 3_600.0
"""A dead holder is replaced only after the time to live, and an hour without a holder is an outage."""
RENEWALS_PER_TTL: Final = 3
"""Two renewals may fail before the lease is lost."""
ATTEMPTS_PER_TTL: Final = 5
"""How often others try: a dead holder is replaced within 1.2 times the time to live, and a try locks nothing."""
RELEASE_LIMIT_S: Final = 1.0
CLOCK_STEP_MIN_S: Final = 1.0
"""Tolerance beyond the time to live, since a lease may be renewed while the reading statement is on its way."""
HOLDINGS_MAX: Final = 500
"""Leases per page."""

log = get_logger(__name__)


async def acquire(database: Database, name: str, holder: str, ttl_s: float) -> Lease | None:
    """The lease, or None while it is held, even by this holder: after a lost answer it is left to expire."""
    _check(name, holder, ttl_s)
    epoch = await database.engine.fetchval(
        # The first condition only reads, so that waiters never lock the row that holders fence with. A lease that ends
        # later than a lease given now was given before the clock was set back: it is cut to one time to live.
        """
        with stepped as (
            update payonce.leases set expires_at = payonce.lease_now() + make_interval(secs => $3::float8)
            where name = $1 and expires_at > payonce.lease_now() + make_interval(secs => $3::float8 + $4::float8)
        )
        insert into payonce.leases as held (name, holder, epoch, expires_at)
        select $1, $2, 1, payonce.lease_now() + make_interval(secs => $3::float8)
        where not exists (select from payonce.leases where name = $1 and expires_at > payonce.lease_now())
        on conflict (name) do update
            set holder = excluded.holder, epoch = held.epoch + 1, expires_at = excluded.expires_at
            where held.expires_at <= payonce.lease_now()
        returning epoch
        """,
        name,
        holder,
        ttl_s,
        CLOCK_STEP_MIN_S,
    )
    if epoch is None:
        return None
    LEASE_CHANGES.labels(name).inc()
    return Lease(name, holder, epoch, ttl_s)


async def renew(database: Database, lease: Lease) -> bool:
    """False when the lease is lost. An expired lease is not renewed, even if nobody took it; it must be
    acquired again."""
    renewed = await database.engine.fetchval(
        """
        update payonce.leases set expires_at = payonce.lease_now() + make_interval(secs => $4::float8)
        where name = $1 and holder = $2 and epoch = $3 and expires_at > payonce.lease_now()
        returning true
        """,
        lease.name,
        lease.holder,
        lease.epoch,
        lease.ttl_s,
    )
    return renewed is not None


async def release(database: Database, lease: Lease) -> None:
    """Lets the next holder in at once. A lease that has passed to another holder stays theirs."""
    await database.engine.execute(
        """
        update payonce.leases set expires_at = '-infinity' where name = $1 and holder = $2 and epoch = $3
        """,
        lease.name,
        lease.holder,
        lease.epoch,
    )


async def fence(connection: Connection, lease: Lease) -> None:
    """Raises Stale unless the lease is held. Until the caller's transaction ends, nobody can take it over.

    FOR SHARE: a take-over updates this row and so waits for the commit, while transactions of one holder do not wait
    for each other. The holder's own renewal waits too, so a fenced transaction must be shorter than the lease.
    """
    held = await connection.fetchval(
        """
        select true from payonce.leases
        where name = $1 and holder = $2 and epoch = $3 and expires_at > payonce.lease_now()
        for share
        """,
        lease.name,
        lease.holder,
        lease.epoch,
    )
    if held is None:
        raise Stale(
            f"lease {lease.name} of epoch {lease.epoch} is no longer held by {lease.holder}; nothing was written"
        )


@dataclass(frozen=True)
class LeaseStatus:
    """A lease as shown to operators, with its remaining seconds; 0 once it expired or was released."""

    name: str
    holder: str
    epoch: int
    held: bool
    rest_s: float


async def lease_statuses(read: Reads, limit: int = HOLDINGS_MAX, after: str | None = None) -> list[LeaseStatus]:
    """All leases that ever existed, by name; `after` is the last name of the previous page."""
    rows = await read.fetch(
        """
        select name, holder, epoch, expires_at > payonce.lease_now() as held,
            case when expires_at > payonce.lease_now()
                then extract(epoch from expires_at - payonce.lease_now())::float8 else 0 end as rest_s
        from payonce.leases where $1::text is null or name > $1 order by name limit $2
        """,
        after,
        min(limit, HOLDINGS_MAX),
    )
    return [LeaseStatus(**dict(row)) for row in rows]


class Leadership:
    """Tries to hold a named lease for as long as it is open, and knows when it does."""

    def __init__(self, database: Database, name: str, holder: str, ttl_s: float = TTL_DEFAULT_S) -> None:
        _check(name, holder, ttl_s)
        self._database = database
        self._name = name
        self._holder = holder
        self._ttl_s = ttl_s
        self._lease: Lease | None = None
        self._held_until = -math.inf

    @classmethod
    @asynccontextmanager
    async def open(
        cls, database: Database, name: str, holder: str, ttl_s: float = TTL_DEFAULT_S
    ) -> AsyncIterator["Leadership"]:
        """`holder` must be unique to this process."""
        leadership = cls(database, name, holder, ttl_s)
        keeper = asyncio.create_task(leadership._keep_for_ever())
        try:
            yield leadership
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            await leadership._let_go()

    @property
    def lease(self) -> Lease | None:
        """The lease while it is certainly held, by this process's clock, counted from before the store was asked."""
        return self._lease if time.monotonic() < self._held_until else None

    async def step(self) -> None:
        """Renews the lease, or tries to acquire it."""
        if self.lease is None:
            self._lease = None
        sent_at = time.monotonic()
        async with asyncio.timeout(self._ttl_s):
            if self._lease is None:
                self._lease = await acquire(self._database, self._name, self._holder, self._ttl_s)
                if self._lease is not None:
                    log.info("lease_acquired", lease=self._name, holder=self._holder, epoch=self._lease.epoch)
            elif not await renew(self._database, self._lease):
                log.warning("lease_lost", lease=self._name, holder=self._holder, epoch=self._lease.epoch)
                self._lease = None
        if self._lease is not None:
            self._held_until = sent_at + self._ttl_s

    async def _keep_for_ever(self) -> None:
        while True:
            began_at = time.monotonic()
            try:
                await self.step()
            except Exception as error:
                # The lease is held until it expires nevertheless: the store counts from its last renewal.
                level = log.warning if is_transient(error) else log.error
                level("lease_unreachable", lease=self._name, holder=self._holder, error=redact(str(error)))
            tries = RENEWALS_PER_TTL if self._lease is not None else ATTEMPTS_PER_TTL
            await asyncio.sleep(max(0.0, began_at + self._ttl_s / tries - time.monotonic()))

    async def _let_go(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            # If this fails, the next holder waits for the lease to expire, which is slower but equally correct.
            with suppress(Exception):
                async with asyncio.timeout(RELEASE_LIMIT_S):
                    await release(self._database, lease)


def _check(name: str, holder: str, ttl_s: float) -> None:
    for what, text in (("name", name), ("holder", holder)):
        if not 1 <= len(text) <= NAME_MAX_LENGTH or "\x00" in text:
            raise Invalid(f"lease {what} {text[:40]!r} must have 1 to {NAME_MAX_LENGTH} characters and no NUL")
    if not TTL_MIN_S <= ttl_s <= TTL_MAX_S:
        raise Invalid(f"ttl_s of lease {name} is {ttl_s}; it must be between {TTL_MIN_S:g} and {TTL_MAX_S:g} seconds")
