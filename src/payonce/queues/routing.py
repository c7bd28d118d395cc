"""Combines two backends: pushed queues go to the task service, all others to the home backend."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from payonce.engine.database.connections import Connection
from payonce.engine.messages.model import Message, State
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Admin, Depth, Filter, Preview, QueuedMessage
from payonce.engine.messages.transaction import NotifyingFeed


class DeclaringFeed(NotifyingFeed, Protocol):
    async def declare(self, policies: Sequence[Policy]) -> None: ...


class RoutedFeed:
    def __init__(self, home: DeclaringFeed, pushes: DeclaringFeed, pushed: frozenset[str]) -> None:
        self._home = home
        self._pushes = pushes
        self._pushed = pushed

    async def declare(self, policies: Sequence[Policy]) -> None:
        at_home = [policy for policy in policies if policy.queue not in self._pushed]
        away = [policy for policy in policies if policy.queue in self._pushed]
        if at_home:
            await self._home.declare(at_home)
        if away:
            await self._pushes.declare(away)

    async def put(self, messages: Sequence[Message], within: Connection | None = None) -> list[UUID]:
        """Within a transaction all messages are stored or none; outside a transaction this holds per backend."""
        away = [message.queue in self._pushed for message in messages]
        if not any(away):
            return await self._home.put(messages, within)
        if all(away):
            return await self._pushes.put(messages, within)
        ids: dict[UUID, UUID] = {}
        for feed, which in ((self._home, False), (self._pushes, True)):
            part = [message for message, is_away in zip(messages, away, strict=True) if is_away is which]
            ids |= dict(zip([message.id for message in part], await feed.put(part, within), strict=True))
        return [ids[message.id] for message in messages]

    def notify(self, queues: set[str]) -> None:
        if at_home := queues - self._pushed:
            self._home.notify(at_home)
        if away := queues & self._pushed:
            self._pushes.notify(away)


class RoutedAdmin:
    def __init__(self, home: Admin, pushes: Admin, pushed: frozenset[str]) -> None:
        self._home = home
        self._pushes = pushes
        self._pushed = pushed

    def _of(self, queue: str) -> Admin:
        return self._pushes if queue in self._pushed else self._home

    async def queues(self) -> list[str]:
        return await self._home.queues()

    async def depth(self, queue: str) -> Depth:
        return await self._of(queue).depth(queue)

    async def peek(self, queue: str, state: State, limit: int, after: UUID | None = None) -> list[QueuedMessage]:
        return await self._of(queue).peek(queue, state, limit, after)

    async def pause(self, queue: str, reason: str, by: str = "the application") -> None:
        await self._of(queue).pause(queue, reason, by)

    async def resume(self, queue: str, by: str = "the application") -> None:
        await self._of(queue).resume(queue, by)

    async def preview(self, queue: str, state: State, which: Filter) -> Preview:
        return await self._of(queue).preview(queue, state, which)

    async def choose(
        self, queue: str, state: State, which: Filter, limit: int, within: Connection | None = None
    ) -> list[UUID]:
        return await self._of(queue).choose(queue, state, which, limit, within)

    async def redrive(self, queue: str, which: Filter, within: Connection | None = None) -> int:
        return await self._of(queue).redrive(queue, which, within)

    async def purge(
        self,
        queue: str,
        state: State,
        which: Filter,
        by: str,
        *,
        limit: int | None = None,
        put_before: datetime | None = None,
    ) -> int:
        return await self._of(queue).purge(queue, state, which, by, limit=limit, put_before=put_before)
