"""Batches concurrent usage events: one round trip and one commit for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from payonce.engine.database.connections import is_transient
from payonce.kit.microbatch import MicroBatch
from payonce.services.billing.subscriptions.store.usage import CountedUsage, Reads, read_answer

BATCH_MAX: Final = 100
"""Events per call, which locks shared counters until its commit."""


@dataclass(frozen=True)
class _UsageEvent:
    account_id: str
    feature: str
    delta: int
    event_id: str


class UsageBatcher:
    """Runs one call at a time. An event is sent at once if no call is running; events that arrive during a call share
    the next one."""

    def __init__(self, read: Reads) -> None:
        self._read = read
        self._batch = MicroBatch[_UsageEvent, CountedUsage | Exception](self._count, BATCH_MAX)

    async def use(self, account_id: str, feature: str, delta: int, event_id: str) -> CountedUsage:
        """Same contract as `usage.use`."""
        answer = await self._batch.add(_UsageEvent(account_id, feature, delta, event_id))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _count(self, events: Sequence[_UsageEvent]) -> list[CountedUsage | Exception]:
        """If a batch fails, its events are sent one by one, so that one invalid event does not fail the others."""
        try:
            rows = await self._call(events)
        except Exception as error:
            if len(events) == 1 or is_transient(error):
                raise
            return [await self._count_one(event) for event in events]
        return [_answer(event, row) for event, row in zip(events, rows, strict=True)]

    async def _count_one(self, event: _UsageEvent) -> CountedUsage | Exception:
        try:
            [row] = await self._call([event])
        except Exception as error:
            return error
        return _answer(event, row)

    async def _call(self, events: Sequence[_UsageEvent]) -> list[Any]:
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


def _answer(event: _UsageEvent, row: Any) -> CountedUsage | Exception:
    try:
        return read_answer(row, event.feature, event.delta, event.event_id)
    except Exception as refusal:
        return refusal
