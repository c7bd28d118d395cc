"""Connection pools with bounded waits and cheap acquisition.

The driver starts a timer for each bounded wait and a task for each release. Together they took an eighth of the CPU
time of a handler's transaction, measured.
"""

import asyncio
from collections import deque
from typing import Any, Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from payonce.kit.outcomes import Unavailable

ACQUIRE_LIMIT_S: Final = 30.0
"""The longest wait for a free connection of a pool."""


class BoundedPool(asyncpg.Pool):
    """A pool in which nobody waits longer than ACQUIRE_LIMIT_S; the longest waiter is served first."""

    name = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns = Turns(options["max_size"])
        self._in_use: set[PoolConnectionProxy] = set()

    async def _acquire(self, timeout: float | None) -> PoolConnectionProxy:  # noqa: ASYNC109 - the driver's
        driver: Any = super()
        try:
            await self._turns.take(ACQUIRE_LIMIT_S if timeout is None else timeout)
        except TimeoutError as error:
            raise Unavailable(
                f"no database connection became free in time: all {self.get_max_size()} of the pool {self.name} "
                "are in use; look for waiting transactions, or raise PAYONCE_POOL_SIZE (the engine's pool is "
                "fixed)"
            ) from error
        try:
            connection: PoolConnectionProxy = await driver._acquire(None)
        except BaseException:
            self._turns.give()
            raise
        self._in_use.add(connection)
        return connection

    async def release(self, connection: PoolConnectionProxy, *, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Like the driver's release, which uses a separate task to survive a cancelled reset. No reset is needed here:
        after a clean transaction there is nothing to wait for, and otherwise a cancellation closes the connection."""
        inner: Any = connection
        try:
            if connection in self._in_use and inner._con is not None:
                inner._con._on_release()
                await inner._holder.release(timeout)
            else:
                await super().release(connection, timeout=timeout)
        finally:
            if connection in self._in_use:
                self._in_use.remove(connection)
                self._turns.give()


class Turns:
    """A bounded number of turns at a time; others wait in order. One timer serves all waiters."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[tuple[float, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, limit_s: float) -> None:
        """Raises TimeoutError when no turn became free within the limit."""
        if self._free:
            self._free -= 1
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append((loop.time() + limit_s, turn))
        if self._timer is None or self._timer.when() > loop.time() + limit_s:
            self._wake_at(loop.time() + limit_s)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give()
            raise

    def give(self) -> None:
        while self._waiting:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._end_overdue)

    def _end_overdue(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for deadline, turn in self._waiting:
            if deadline <= now and not turn.done():
                turn.set_exception(TimeoutError())
        self._waiting = deque((deadline, turn) for deadline, turn in self._waiting if not turn.done())
        if self._waiting:
            self._wake_at(min(deadline for deadline, _ in self._waiting))
