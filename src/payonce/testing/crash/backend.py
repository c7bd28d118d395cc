"""What the explorer needs of a queue backend: its parts in a child, and a view of its messages from outside."""

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
    """The engine's parts in one child, each to be moved on its own."""

    feed: NotifyingFeed
    admin: Admin
    open_queue: Callable[[Policy], PullQueue]
    relays: Sequence[Relay] = ()
    """What feeds the queues, beside the scenario's own."""
    janitors: Sequence[Janitor] = ()
    steps: Mapping[str, Callable[[Worker], Awaitable[bool]]] = field(default_factory=dict)
    """How a step is taken in queues that nobody claims from, by their names."""


@dataclass(frozen=True)
class PendingWork:
    """What could be done next."""

    dead: Sequence[str] = ()
    """Queues with leases that have ended."""
    due: Sequence[str] = ()
    """Queues with something to claim."""
    relays: Sequence[str] = ()
    """Relays with something to hand over."""
    leased: bool = False
    """Somebody holds something, by a lease that has not ended."""
    janitors: Sequence[str] = ()
    """Janitors that have something to mend, by name; they tick when nothing else is due."""


class QueueProbe(Protocol):
    """Where the messages of one run lie, seen by the explorer."""

    async def pending(self) -> PendingWork: ...

    async def freeze(self, at: datetime) -> datetime:
        """Both clocks stand still, the due clock at that moment."""
        ...

    async def advance_leases(self, lease_s: float) -> None: ...

    async def next_due(self) -> datetime | None: ...

    async def waiting(self) -> str:
        """What is not at rest, in one line."""
        ...

    async def wipe(self) -> None:
        """What lies outside PostgreSQL is gone."""
        ...

    async def push(self, queue: str, bodies: Sequence[bytes]) -> None:
        """As somebody does by hand."""
        ...

    async def parked(self) -> tuple[str, UUID] | None:
        """A message that rests parked."""
        ...

    async def parked_in_review(self) -> tuple[str, UUID] | None:
        """A parked message whose effect waits for a person."""
        ...

    async def left_over(self, expected_parked: int) -> list[Violation]:
        """What should not be there when all is at rest."""
        ...


class DriverStorage(Protocol):
    """One driver's own part of the backend, emptied before every run."""

    @property
    def address(self) -> str:
        """For the children."""
        ...

    def probe(
        self, owner: asyncpg.Connection, policies: Sequence[Policy]
    ) -> AbstractAsyncContextManager[QueueProbe]: ...


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    async def declare(self, database: Database, policies: Sequence[Policy]) -> NotifyingFeed:
        """In the template of a scenario: its queues, and what its first messages are put by."""
        ...

    def storage(self, folder: Path) -> DriverStorage:
        """Opened once in every driver, in a process without an event loop; `folder` is the whole exploration's."""
        ...

    def parts(self, database: Database, address: str, worker: str) -> AbstractAsyncContextManager[EngineParts]:
        """In a child."""
        ...
