"""The clocks of a test whose queues lie in Redis: PostgreSQL's and Redis' are moved together."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import redis.asyncio

from payonce.engine.database.notifier import CHANNEL, EVERYBODY
from payonce.queues.redis.keys import TEST_CLOCK, main_key
from payonce.queues.redis.store import clock_fields
from payonce.testing.clock import Clock

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class RedisClock(Clock):
    """Moves the clocks of one database and of the Redis server beside it."""

    def __init__(self, clock: Clock, redis_url: str) -> None:
        super().__init__(clock._connection)
        self._redis_url = redis_url

    async def next_due(self) -> datetime | None:
        """Also of what waits in Redis."""
        moments = [await super().next_due()]
        later = f"({(await self.now() - EPOCH) / timedelta(milliseconds=1)!r}"
        places = [f"{keys}:{part}" for keys in await self._queues() for part in ("delayed", "alone")]
        asked = [("ZRANGEBYSCORE", key, later, "+inf", "WITHSCORES", "LIMIT", "0", "1") for key in places]
        for found in await self._ask_together(*asked):
            moments += [EPOCH + timedelta(microseconds=round(float(due_ms) * 1_000)) for _, due_ms in found]
        return min((moment for moment in moments if moment is not None), default=None)

    async def idle(self) -> bool:
        """Also in Redis nothing runs, and nothing that could run is due."""
        due = ("-inf", repr((await self.now() - EPOCH) / timedelta(milliseconds=1)))
        for keys in await self._queues():
            # Asked together: a message that is on its way from one place to the next would be seen in neither.
            if any(
                await self._ask_together(
                    ("LLEN", f"{keys}:processing"),
                    ("LLEN", keys),
                    ("ZCOUNT", f"{keys}:delayed", *due),
                    ("ZCOUNT", f"{keys}:alone", *due),
                )
            ):
                return False
        return await super().idle()

    async def _move(self, change: str, *by: object) -> datetime:
        moved = await super()._move(change, *by)
        await self._ask("HSET", TEST_CLOCK, *await clock_fields(self._connection))
        # Whoever was woken by PostgreSQL's move may have looked at Redis too early.
        await self._connection.execute("select pg_notify($1, $2)", CHANNEL, EVERYBODY)
        return moved

    async def _queues(self) -> list[str]:
        """The main lists of queues that are not paused."""
        rows = await self._connection.fetch("select name from payonce.queues where not paused")
        return [main_key(row["name"]) for row in rows]

    async def _ask_together(self, *commands: Sequence[str]) -> list[Any]:
        client: Any = redis.asyncio.Redis.from_url(self._redis_url)
        async with client, client.pipeline(transaction=True) as together:
            for words in commands:
                together.execute_command(*words)
            answers: list[Any] = await together.execute()
        return answers

    async def _ask(self, *words: str | int) -> Any:
        client: Any = redis.asyncio.Redis.from_url(self._redis_url)
        async with client:
            return await client.execute_command(*words)
