"""Values loaded once for many concurrent readers, and cached."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class CachedValue(Generic[Value]):
    """Concurrent readers share one load; errors are not cached."""

    def __init__(self, load: Callable[[], Awaitable[Value]], keep_s: float) -> None:
        self._load = load
        self._keep_s = keep_s
        self._turn = asyncio.Lock()
        self._kept: tuple[float, Value] | None = None

    async def get(self) -> Value:
        async with self._turn:
            if self._kept is not None and time.monotonic() < self._kept[0]:
                return self._kept[1]
            value = await self._load()
            self._kept = (time.monotonic() + self._keep_s, value)
            return value

    def forget(self) -> None:
        self._kept = None
