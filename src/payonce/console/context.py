"""What the console needs of the process that serves it."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from payonce.engine.controls import Actions
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.monitoring.attention import AttentionSource
from payonce.engine.monitoring.lookup import Lookup


class Context(Protocol):
    """Implemented by `App`, and by tests on a stage."""

    @property
    def database(self) -> Database: ...

    @property
    def notifier(self) -> Notifier: ...

    @property
    def admin(self) -> Admin: ...

    @property
    def read(self) -> Reader: ...

    @property
    def actions(self) -> Actions: ...

    @property
    def resources(self) -> Sequence[object]:
        """What the roles of this process opened; empty without roles."""
        ...

    @property
    def lookups(self) -> Sequence[Lookup]:
        """Of every service, independent of the roles of this process."""
        ...

    @property
    def attention(self) -> Sequence[AttentionSource]:
        """Of every service, independent of the roles of this process."""
        ...

    def holds(self, role: str) -> bool:
        """Whether the database has the tables of this role's service, independent of the roles of this process."""
        ...

    @property
    def closing(self) -> asyncio.Event:
        """Set when the process stops listening, which ends streams."""
        ...

    def begin(self, trace_id: str | None = None) -> AbstractAsyncContextManager[Tx]: ...
