"""Queues whose consumer has a database of its own: messages go into the outbox, and a relay delivers them."""

from collections.abc import Sequence
from uuid import UUID

from payonce.engine.database.connections import Connection, Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.engine.outbox import put_out, wake_name


class RelayFeed:
    """Puts messages into the outbox for one relay. The receiving side checks idempotency keys."""

    def __init__(self, database: Database, notifier: Notifier, relay: str) -> None:
        self._database = database
        self._notifier = notifier
        self._relay = relay

    async def declare(self, policies: Sequence[Policy]) -> None:
        """Does nothing: the consuming service declares its queues."""

    async def put(self, messages: Sequence[Message], within: Connection | None = None) -> list[UUID]:
        if within is not None:
            return await put_out(within, self._relay, messages)
        async with self._database.transaction() as connection:
            return await put_out(connection, self._relay, messages)

    def notify(self, queues: set[str]) -> None:
        self._notifier.notify({wake_name(self._relay)})
