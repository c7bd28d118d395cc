"""How a worker learns that something was put: a blocking look at the main list, on a connection of its own. Behind the
look of a worker with a free place stands a claim: what is put is on its way to it with the answer to the look."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import RedisError

from payonce.kit.ids import drawn_token
from payonce.kit.log import get_logger
from payonce.kit.outcomes import QueueAway
from payonce.queues.redis.connections import Lines, Word
from payonce.queues.redis.keys import main_key
from payonce.queues.redis.store import COMMAND_TIMEOUT_S, LOST, RedisStore

LOOK_S: Final = 5
"""How long one look lasts; the server ends it then, so that none is left behind on a lost connection."""
CLAIMING_LOOK_S: Final = 1
"""Of a look with a claim behind it: for so long the server may still claim for a worker that is gone, and a lease may
be older by so much than its worker can tell."""
EMPTY: Final = 4
"""Parts of an answer that claims nothing."""
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 2.0

log = get_logger(__name__)


@dataclass(frozen=True)
class Caught:
    """What the claim behind a look came to."""

    answer: Sequence[Any]
    token: int
    asked_at: float
    """By this process' own clock: nothing of it was claimed before."""


class ArrivalWatcher:
    """Wakeups when the main list has something. It looks only while nothing is known to lie there, or it would spin."""

    def __init__(
        self,
        store: RedisStore,
        queue: str,
        rung: asyncio.Event,
        claim: Callable[[int], tuple[Word, ...]],
        put_back: Callable[[Caught], Awaitable[None]],
    ) -> None:
        self._store = store
        self._key = main_key(queue)
        self._rung = rung
        self._claim = claim
        """The command that claims one message under a token."""
        self._put_back = put_back
        self._wanted = asyncio.Event()
        self._claiming = False
        self._caught: Caught | None = None
        self._lost: Exception | None = None
        self._look: _ClaimingLook | None = None
        self._started = False
        self.may_ring = True
        """False while what lies there may not be claimed: the queue is paused or limited, or its worker is full."""

    def listen(self, *, claiming: bool) -> None:
        """A look that is under way from an earlier wait goes on."""
        self._claiming = claiming
        if self.may_ring:
            if not self._started:
                self._started = True
                self._store.keep(self._look_for_ever())
            self._wanted.set()

    def rest(self) -> None:
        """Nobody waits just now: the look that is under way is the last."""
        self._wanted.clear()

    def take(self) -> Caught | None:
        """What was claimed behind a look. Raises when nobody knows what was: its answer is lost."""
        if (lost := self._lost) is not None:
            self._lost = None
            raise QueueAway(f"the answer to a claim was lost: {lost}") from lost
        caught, self._caught = self._caught, None
        return caught

    def forget(self) -> None:
        """The store is about to be told that this worker holds only what it runs."""
        self._caught = self._lost = None
        if self._look is not None:
            self._look.void = True

    async def disown(self) -> None:
        """The store was told so. A look that began meanwhile may have caught something before that, or behind it."""
        if self._look is not None:
            self._look.void = True
        await self.let_go()

    async def let_go(self) -> None:
        """What was caught and is not wanted any more goes back; if that fails, the next to ask hears of it."""
        caught, self._caught = self._caught, None
        if caught is not None:
            try:
                await self._put_back(caught)
            except Exception as error:
                self._lost = error

    async def close(self) -> None:
        """Ends a look that is under way: what it catches goes back."""
        self._wanted.clear()
        with suppress(*LOST, RedisError, QueueAway):
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                if (look := self._look) is not None:
                    look.stopped = True
                    await self._unblock(look)
                    await look.over.wait()
                await self.let_go()

    async def _unblock(self, look: "_ClaimingLook") -> None:
        if look.connection is None:
            return
        await asyncio.wait([look.connection])
        if not look.connection.cancelled() and look.connection.exception() is None:
            with suppress(RedisError):
                await self._store.command("CLIENT", "UNBLOCK", look.connection.result())

    async def _look_for_ever(self) -> None:
        looking, claiming = self._store.looking_out(LOOK_S), self._store.looking_out(CLAIMING_LOOK_S)
        failures = 0
        try:
            while True:
                await self._wanted.wait()
                if not self._wanted.is_set():
                    continue
                try:
                    if self._claiming and isinstance(claiming, Lines):
                        found = await self._look_and_claim(claiming)
                    else:
                        found = await looking.execute_command(*self._looking(LOOK_S)) is not None
                    failures = 0
                except (*LOST, RedisError) as error:
                    failures += 1
                    log.debug("redis_not_listening", error=str(error), failures=failures)
                    await asyncio.sleep(min(RETRY_S * 2 ** min(failures - 1, 8), RETRY_MAX_S))
                    continue
                if found:
                    self._wanted.clear()
                    self.may_ring = False
                    self._rung.set()
        finally:
            await looking.aclose()
            await claiming.aclose()

    def _looking(self, seconds: int) -> tuple[Word, ...]:
        """Moves the oldest to where it is: a look that takes nothing away."""
        return ("BLMOVE", self._key, self._key, "RIGHT", "RIGHT", seconds)

    async def _look_and_claim(self, lines: Lines) -> bool:
        """Whether there is something to be taken, or to be asked about."""
        look = self._look = _ClaimingLook()
        try:
            line = await lines.line()
            if look.stopped:
                return False
            token, asked_at = drawn_token(), time.monotonic()
            asked = [
                line.send(words) for words in (("CLIENT", "ID"), self._looking(CLAIMING_LOOK_S), self._claim(token))
            ]
            look.connection = asked[0]
            try:
                async with asyncio.timeout(CLAIMING_LOOK_S + COMMAND_TIMEOUT_S):
                    _, found, claimed = await asyncio.gather(*asked, return_exceptions=True)
            except TimeoutError as error:
                await lines.aclose()
                found = claimed = error
        finally:
            self._look = None
            look.over.set()
        if isinstance(claimed, LOST):
            self._lost = claimed
            self._rung.set()
        elif isinstance(claimed, list) and claimed[0] == b"OK" and len(claimed) > EMPTY:
            self._caught = Caught(claimed[1:], token, asked_at)
            if look.void:
                await self.let_go()
            return True
        if isinstance(found, Exception):
            raise found
        return found is not None or isinstance(claimed, Exception)


class _ClaimingLook:
    def __init__(self) -> None:
        self.connection: asyncio.Future[int] | None = None
        """By which number the server knows it, so that it can be told to end the look. None while it connects."""
        self.over = asyncio.Event()
        self.stopped = False
        self.void = False
        """What it catches is not to be run: the store was told that this worker does not hold it."""
