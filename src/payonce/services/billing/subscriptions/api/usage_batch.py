"""Events that wait at the same time go to the store in one call: one round trip and one commit for all of them."""

import asyncio
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final

from payonce.engine.database.connections import is_transient
from payonce.services.billing.subscriptions.store.usage import CountedUsage, Reads, read_answer

BATCH_MAX: Final = 100
"""Events of one call: a counter that many share is locked until its commit."""


@dataclass(frozen=True)
class _PendingEvent:
    account_id: str
    feature: str
    delta: int
    event_id: str
    answer: "asyncio.Future[CountedUsage]"


class UsageBatcher:
    """One call at a time. An event that finds none under way is sent at once; events that arrive meanwhile go
    together in the next call."""

    def __init__(self, read: Reads) -> None:
        self._read = read
        self._waiting: list[_PendingEvent] = []
        self._call: asyncio.Task[None] | None = None

    async def use(self, account_id: str, feature: str, delta: int, event_id: str) -> CountedUsage:
        """As `usage.use` does it."""
        answer: asyncio.Future[CountedUsage] = asyncio.get_running_loop().create_future()
        self._waiting.append(_PendingEvent(account_id, feature, delta, event_id, answer))
        if self._call is None or self._call.done():
            # In a context of its own: it must not take part in the transaction of the first caller.
            self._call = asyncio.create_task(self._send(), context=Context())
        return await answer

    async def _send(self) -> None:
        while self._waiting:
            events, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            try:
                rows = await self._count(events)
            except Exception as error:
                await self._after(error, events)
            else:
                for event, row in zip(events, rows, strict=True):
                    _resolve(event, row)

    async def _count(self, events: list[_PendingEvent]) -> list[Any]:
        return await self._read.fetch(
            """
            select outcome, counted, used, allowed, period_start, period_end, state
            from subscriptions.use_many($1, $2, $3, $4)
            """,
            [event.account_id for event in events],
            [event.feature for event in events],
            [event.delta for event in events],
            [event.event_id for event in events],
        )

    async def _after(self, error: Exception, events: list[_PendingEvent]) -> None:
        """What is wrong with one event is not to be the end of the others: each is then sent by itself."""
        if len(events) == 1 or is_transient(error):
            for event in events:
                _fail(event, error)
            return
        for event in events:
            try:
                [row] = await self._count([event])
            except Exception as own:
                _fail(event, own)
            else:
                _resolve(event, row)


def _resolve(event: _PendingEvent, row: Any) -> None:
    try:
        counted = read_answer(row, event.feature, event.delta, event.event_id)
    except Exception as refusal:
        _fail(event, refusal)
        return
    if not event.answer.done():
        event.answer.set_result(counted)


def _fail(event: _PendingEvent, error: Exception) -> None:
    # Whoever asked may have gone meanwhile.
    if not event.answer.done():
        event.answer.set_exception(error)
