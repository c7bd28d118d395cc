"""How a worker learns that something was put: a blocking look at the main list, on a connection of its own."""

import asyncio
from typing import Final

from redis.exceptions import RedisError

from payonce.kit.log import get_logger
from payonce.queues.redis.keys import main_key
from payonce.queues.redis.store import LOST, RedisStore

LOOK_S: Final = 5
"""How long one look lasts; the server ends it then, so that none is left behind on a lost connection."""
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 2.0

log = get_logger(__name__)


class Doorbell:
    """Rings when the main list has something. It looks only while nothing is known to lie there, or it would spin."""

    def __init__(self, store: RedisStore, queue: str, rung: asyncio.Event) -> None:
        self._store = store
        self._key = main_key(queue)
        self._rung = rung
        self._wanted = asyncio.Event()
        self._started = False
        self.may_ring = True
        """False while what lies there may not be claimed: the queue is paused or limited, or its worker is full."""

    def listen(self) -> None:
        """A look that is under way from an earlier wait goes on."""
        if self.may_ring:
            if not self._started:
                self._started = True
                self._store.keep(self._look_for_ever())
            self._wanted.set()

    async def _look_for_ever(self) -> None:
        client = self._store.looking_out(LOOK_S)
        failures = 0
        try:
            while True:
                await self._wanted.wait()
                try:
                    # Moves the oldest to where it is: a look that takes nothing away.
                    found = await client.execute_command("BLMOVE", self._key, self._key, "RIGHT", "RIGHT", LOOK_S)
                    failures = 0
                except (*LOST, RedisError) as error:
                    failures += 1
                    log.debug("redis_not_listening", error=str(error), failures=failures)
                    await asyncio.sleep(min(RETRY_S * 2 ** min(failures - 1, 8), RETRY_MAX_S))
                    continue
                self._wanted.clear()
                if found is not None:
                    self.may_ring = False
                    self._rung.set()
        finally:
            await client.aclose()
