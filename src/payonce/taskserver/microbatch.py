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
        self._waiting: list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def add(self, item: Item) -> Answer:
        """Returns when the flush with this item has; raises what that raised."""
        [answer] = await self.add_all([item])
        return answer

    async def add_all(self, items: Sequence[Item]) -> Sequence[Answer]:
        """The same for several, which are not parted."""
        answers: asyncio.Future[Sequence[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, answers))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush_all())
        return await answers

    async def drained(self) -> None:
        """Returns when nothing waits any more."""
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
        """From the front, until there are `most`: at least one group, however large."""
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
