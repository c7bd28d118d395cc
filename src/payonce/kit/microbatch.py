"""Micro-batching: items that arrive during a flush go into the next one together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class MicroBatch(Generic[Item, Answer]):
    """Flushes as soon as the previous flush has returned and `pause_s` has passed since its start; the first item after
    an idle period is flushed at once."""

    def __init__(
        self, flush: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], most: int, pause_s: float = 0.0
    ) -> None:
        self._flush = flush
        self._most = most
        self._pause_s = pause_s
        self._flush_from = 0.0
        self._waiting: list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def add(self, item: Item) -> Answer:
        """Returns after the flush with this item; raises what the flush raised."""
        [answer] = await self.add_all([item])
        return answer

    async def add_all(self, items: Sequence[Item]) -> Sequence[Answer]:
        """The same for several items, which stay in one flush."""
        answers: asyncio.Future[Sequence[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, answers))
        if self._flushing is None:
            # In a context of its own: a flush serves all callers and must not join the transaction of the first one.
            self._flushing = asyncio.create_task(self._flush_all(), context=Context())
        return await answers

    async def drained(self) -> None:
        """Returns when nothing waits."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _flush_all(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(max(0.0, self._flush_from - asyncio.get_running_loop().time()))
                self._flush_from = asyncio.get_running_loop().time() + self._pause_s
                await self._flush_one(self._taken())
        finally:
            self._flushing = None

    def _taken(self) -> list[tuple[Sequence[Item], "asyncio.Future[Sequence[Answer]]"]]:
        """Takes groups from the front up to `most` items, but at least one group."""
        count = groups = 0
        while groups < len(self._waiting) and (not groups or count + len(self._waiting[groups][0]) <= self._most):
            count += len(self._waiting[groups][0])
            groups += 1
        taken, self._waiting = self._waiting[:groups], self._waiting[groups:]
        return taken

    async def _flush_one(self, batch: Sequence[tuple[Sequence[Item], "asyncio.Future[Sequence[Answer]]"]]) -> None:
        try:
            answers = await self._flush([item for items, _ in batch for item in items])
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error) if isinstance(error, Exception) else future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        begins = 0
        for items, future in batch:
            if not future.done():
                future.set_result(answers[begins : begins + len(items)])
            begins += len(items)
