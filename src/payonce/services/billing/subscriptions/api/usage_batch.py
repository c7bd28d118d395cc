"""Batches concurrent usage events: one round trip and one commit for all of them."""

import asyncio
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final

from payonce.engine.database.connections import is_transient
from payonce.services.billing.subscriptions.store.usage import CountedUsage, Reads, read_answer

BATCH_MAX: Final = 100
"""Events per call, which locks shared counters until its commit."""


@dataclass(frozen=True)
class _PendingEvent:
    account_id: str
    feature: str
    delta: int
    event_id: str
    answer: "asyncio.Future[CountedUsage]"


class UsageBatcher:
    """Runs one call at a time. An event is sent at once if no call is running; events that arrive during a call share
    the next one."""

    def __init__(self, read: Reads) -> None:
        self._read = read
        self._waiting: list[_PendingEvent] = []
        self._call: asyncio.Task[None] | None = None

    async def use(self, account_id: str, feature: str, delta: int, event_id: str) -> CountedUsage:
        """Same contract as `usage.use`."""
        answer: asyncio.Future[CountedUsage] = asyncio.get_running_loop().create_future()
        self._waiting.append(_PendingEvent(account_id, feature, delta, event_id, answer))
        if self._call is None or self._call.done():
            # In a context of its own, so that the call does not join the first caller's transaction.
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
        """If a batch fails, its events are sent one by one, so that one invalid event does not fail the others."""
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
    # The caller may have been canceled.
    if not event.answer.done():
        event.answer.set_exception(error)
