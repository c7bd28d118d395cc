"""A queue backend for the explorer: its components in a child, and access to its messages from outside."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol
from uuid import UUID

import asyncpg

from payonce.engine.database.connections import Database
from payonce.engine.janitors import Janitor
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Admin, PullQueue
from payonce.engine.messages.process import Worker
from payonce.engine.messages.transaction import NotifyingFeed
from payonce.engine.outbox import Relay
from payonce.testing.crash.model import Violation


@dataclass(frozen=True)
class EngineParts:
    """The engine's components in one child, each driven separately."""

    feed: NotifyingFeed
    admin: Admin
    open_queue: Callable[[Policy], PullQueue]
    relays: Sequence[Relay] = ()
    """The backend's relays, in addition to the scenario's."""
    janitors: Sequence[Janitor] = ()
    steps: Mapping[str, Callable[[Worker], Awaitable[bool]]] = field(default_factory=dict)
    """Step functions of queues whose messages are pushed instead of claimed, by queue."""


@dataclass(frozen=True)
class PendingWork:
    """Pending work of each kind."""

    dead: Sequence[str] = ()
    """Queues with expired leases."""
    due: Sequence[str] = ()
    """Queues with claimable messages."""
    relays: Sequence[str] = ()
    """Relays with due entries."""
    leased: bool = False
    """Whether an unexpired lease exists."""
    janitors: Sequence[str] = ()
    """Janitors with something to repair, by name; they tick when nothing else is due."""


class QueueProbe(Protocol):
    """Access to the messages of one run, for the explorer."""

    async def pending(self) -> PendingWork: ...

    async def freeze(self, at: datetime) -> datetime:
        """Stops both clocks, the due clock at that time."""
        ...

    async def advance_leases(self, lease_s: float) -> None: ...

    async def next_due(self) -> datetime | None: ...

    async def waiting(self) -> str:
        """Describes unfinished messages in one line."""
        ...

    async def wipe(self) -> None:
        """Deletes everything outside PostgreSQL."""
        ...

    async def push(self, queue: str, bodies: Sequence[bytes]) -> None:
        """Pushes bodies directly into a queue's list."""
        ...

    async def parked(self) -> tuple[str, UUID] | None:
        """A parked message."""
        ...

    async def parked_in_review(self) -> tuple[str, UUID] | None:
        """A parked message whose effect waits for an operator."""
        ...

    async def left_over(self, expected_parked: int) -> list[Violation]:
        """Unexpected remains when everything has finished."""
        ...


class DriverStorage(Protocol):
    """The storage of one driver process, emptied before every run."""

    @property
    def address(self) -> str:
        """The address for the children."""
        ...

    def probe(
        self, owner: asyncpg.Connection, policies: Sequence[Policy]
    ) -> AbstractAsyncContextManager[QueueProbe]: ...


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    async def declare(self, database: Database, policies: Sequence[Policy]) -> NotifyingFeed:
        """Declares queues in a scenario's template database; returns the feed for its first messages."""
        ...

    def storage(self, folder: Path) -> DriverStorage:
        """Opens a driver's storage, in a process without an event loop; `folder` belongs to the whole exploration."""
        ...

    def parts(self, database: Database, address: str, worker: str) -> AbstractAsyncContextManager[EngineParts]:
        """Opens the engine's components in a child."""
        ...
