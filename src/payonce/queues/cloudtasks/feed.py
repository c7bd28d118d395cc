"""Puts messages of pushed queues into the outbox, which keeps them until they are settled."""

from collections.abc import Callable, Sequence
from uuid import UUID

from payonce.engine.database.connections import Connection, Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.engine.outbox import put_durable, wake_name
from payonce.queues.cloudtasks.names import RELAY
from payonce.queues.declarations import check_limits, check_put_size, declare_queues, undeclared


class CloudTasksFeed:
    def __init__(
        self, database: Database, notifier: Notifier, is_reached_from_here: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._is_reached_from_here = is_reached_from_here
        self._known: set[str] = set()

    async def declare(self, policies: Sequence[Policy]) -> None:
        """Declares queues in PostgreSQL. An operator's settings (pause, tuning) stay."""
        check_limits(policies)
        async with self._database.engine.acquire() as connection, connection.transaction():
            await declare_queues(connection, policies, RELAY)
        self._known.update(policy.queue for policy in policies)

    async def put(self, messages: Sequence[Message], within: Connection | None = None) -> list[UUID]:
        if not messages:
            return []
        check_put_size(messages)
        if within is not None:
            await self._know_queues(within, messages)
            return await put_durable(within, RELAY, messages)
        async with self._database.transaction() as connection:
            await self._know_queues(connection, messages)
            ids = await put_durable(connection, RELAY, messages)
        self.notify({message.queue for message in messages})
        return ids

    def notify(self, queues: set[str]) -> None:
        """Call after the commit of a put within a transaction: the relay creates the tasks."""
        if not queues:
            return
        # A relay in this process that can create all of their tasks need not wake other processes: a NOTIFY costs each
        # listener. If it fails, the others poll within a second.
        if not (all(map(self._is_reached_from_here, queues)) and self._notifier.wake_here(wake_name(RELAY))):
            self._notifier.notify({wake_name(RELAY)})

    async def _know_queues(self, connection: Connection, messages: Sequence[Message]) -> None:
        unknown = {message.queue for message in messages} - self._known
        if unknown:
            rows = await connection.fetch("select name from payonce.queues where name = any($1)", list(unknown))
            self._known.update(row["name"] for row in rows)
            if missing := unknown - self._known:
                raise undeclared(missing)
