"""Many callers, one statement: what comes in while a flush is under way goes out together with the next."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Gathering(Generic[Item, Answer]):
    """Flushes as soon as the previous flush has returned and `pause_s` has passed since it began; the first item after
    a rest does not wait for company."""

    def __init__(
        self, flush: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], most: int, pause_s: float
    ) -> None:
        self._flush = flush
        self._most = most
        self._pause_s = pause_s
        self._flush_from = 0.0
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def add(self, item: Item) -> Answer:
        """Returns when the flush with this item has; raises what that raised."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush_all())
        return await answer

    async def drained(self) -> None:
        """Returns when nothing waits any more."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _flush_all(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(max(0.0, self._flush_from - asyncio.get_running_loop().time()))
                self._flush_from = asyncio.get_running_loop().time() + self._pause_s
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._flush_one(batch)
        finally:
            self._flushing = None

    async def _flush_one(self, batch: Sequence[tuple[Item, "asyncio.Future[Answer]"]]) -> None:
        try:
            answers = await self._flush([item for item, _ in batch])
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error) if isinstance(error, Exception) else future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
