"""Waits for messages with a blocking command on the main list, on a dedicated connection. For a worker with a free slot
a claim is pipelined behind it: a new message arrives with the response to the wait."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import RedisError

from payonce.kit.ids import random_token
from payonce.kit.log import get_logger
from payonce.kit.outcomes import QueueAway
from payonce.queues.redis.connections import Argument, ConnectionPool
from payonce.queues.redis.keys import main_key
from payonce.queues.redis.store import COMMAND_TIMEOUT_S, LOST, RedisStore

WAIT_S: Final = 5
"""Duration of one wait; the server ends it then, so that none survives a lost connection."""
CLAIMING_WAIT_S: Final = 1
"""Duration of a wait with a claim behind it: for so long the server may claim for a worker that is gone, and a lease
may be older than its worker knows."""
EMPTY: Final = 4
"""Number of fields in a response without a claim."""
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 2.0

log = get_logger(__name__)


@dataclass(frozen=True)
class Prefetched:
    """The response to a claim behind a wait."""

    answer: Sequence[Any]
    token: int
    asked_at: float
    """Send time by this process' clock: the claim is not older."""


class ArrivalWatcher:
    """Sets an event when the main list has messages. Waits only while none are known to be there, or it would spin."""

    def __init__(
        self,
        store: RedisStore,
        queue: str,
        wakeup: asyncio.Event,
        claim: Callable[[int], tuple[Argument, ...]],
        put_back: Callable[[Prefetched], Awaitable[None]],
    ) -> None:
        self._store = store
        self._key = main_key(queue)
        self._wakeup = wakeup
        self._claim = claim
        """Returns the command that claims one message under a token."""
        self._put_back = put_back
        self._wanted = asyncio.Event()
        self._claiming = False
        self._prefetched: Prefetched | None = None
        self._lost: Exception | None = None
        self._wait: _ClaimingWait | None = None
        self._started = False
        self.enabled = True
        """False while messages there cannot be claimed: the queue is paused or limited, or its worker is full."""

    def listen(self, *, claiming: bool) -> None:
        """Starts waiting; a wait that is still under way continues."""
        self._claiming = claiming
        if self.enabled:
            if not self._started:
                self._started = True
                self._store.keep(self._wait_forever())
            self._wanted.set()

    def pause(self) -> None:
        """Stops after the wait that is under way."""
        self._wanted.clear()

    def take(self) -> Prefetched | None:
        """Returns a prefetched claim. Raises QueueAway if the response to a claim was lost."""
        if (lost := self._lost) is not None:
            self._lost = None
            raise QueueAway(f"the answer to a claim was lost: {lost}") from lost
        prefetched, self._prefetched = self._prefetched, None
        return prefetched

    def discard(self) -> None:
        """Discards prefetched claims, before the store releases all claims but the running ones."""
        self._prefetched = self._lost = None
        if self._wait is not None:
            self._wait.void = True

    async def return_released(self) -> None:
        """Returns claims prefetched while the store released this worker's claims."""
        if self._wait is not None:
            self._wait.void = True
        await self.return_unused()

    async def return_unused(self) -> None:
        """Returns an unused prefetched claim; after a failure, `take` raises."""
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None:
            try:
                await self._put_back(prefetched)
            except Exception as error:
                self._lost = error

    async def close(self) -> None:
        """Ends a wait that is under way, and returns what it claims."""
        self._wanted.clear()
        with suppress(*LOST, RedisError, QueueAway):
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                if (wait := self._wait) is not None:
                    wait.stopped = True
                    await self._unblock(wait)
                    await wait.over.wait()
                await self.return_unused()

    async def _unblock(self, wait: "_ClaimingWait") -> None:
        if wait.connection is None:
            return
        await asyncio.wait([wait.connection])
        if not wait.connection.cancelled() and wait.connection.exception() is None:
            with suppress(RedisError):
                await self._store.command("CLIENT", "UNBLOCK", wait.connection.result())

    async def _wait_forever(self) -> None:
        idle_pool, claiming = self._store.blocking_connection(WAIT_S), self._store.blocking_connection(CLAIMING_WAIT_S)
        failures = 0
        try:
            while True:
                await self._wanted.wait()
                if not self._wanted.is_set():
                    continue
                try:
                    if self._claiming and isinstance(claiming, ConnectionPool):
                        found = await self._wait_and_claim(claiming)
                    else:
                        found = await idle_pool.execute_command(*self._blocking_move(WAIT_S)) is not None
                    failures = 0
                except (*LOST, RedisError) as error:
                    failures += 1
                    log.debug("redis_wait_failed", error=str(error), failures=failures)
                    await asyncio.sleep(min(RETRY_S * 2 ** min(failures - 1, 8), RETRY_MAX_S))
                    continue
                if found:
                    self._wanted.clear()
                    self.enabled = False
                    self._wakeup.set()
        finally:
            await idle_pool.aclose()
            await claiming.aclose()

    def _blocking_move(self, seconds: int) -> tuple[Argument, ...]:
        """Moves the oldest element onto itself: a wait that removes nothing."""
        return ("BLMOVE", self._key, self._key, "RIGHT", "RIGHT", seconds)

    async def _wait_and_claim(self, pool: ConnectionPool) -> bool:
        """Returns whether there is a claim to take, or an error to report."""
        wait = self._wait = _ClaimingWait()
        try:
            connection = await pool.connection()
            if wait.stopped:
                return False
            token, asked_at = random_token(), time.monotonic()
            requests = [
                connection.send(words)
                for words in (("CLIENT", "ID"), self._blocking_move(CLAIMING_WAIT_S), self._claim(token))
            ]
            wait.connection = requests[0]
            try:
                async with asyncio.timeout(CLAIMING_WAIT_S + COMMAND_TIMEOUT_S):
                    _, found, claimed = await asyncio.gather(*requests, return_exceptions=True)
            except TimeoutError as error:
                await pool.aclose()
                found = claimed = error
        finally:
            self._wait = None
            wait.over.set()
        if isinstance(claimed, LOST):
            self._lost = claimed
            self._wakeup.set()
        elif isinstance(claimed, list) and claimed[0] == b"OK" and len(claimed) > EMPTY:
            self._prefetched = Prefetched(claimed[1:], token, asked_at)
            if wait.void:
                await self.return_unused()
            return True
        if isinstance(found, Exception):
            raise found
        return found is not None or isinstance(claimed, Exception)


class _ClaimingWait:
    def __init__(self) -> None:
        self.connection: asyncio.Future[int] | None = None
        """The server's number for the connection, with which the wait can be ended. None while it connects."""
        self.over = asyncio.Event()
        self.stopped = False
        self.void = False
        """Its claim must not run: the store has released it."""
