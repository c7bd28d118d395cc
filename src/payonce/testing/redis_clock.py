"""Moves the clocks of PostgreSQL and Redis together, for tests with queues in Redis."""

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
    """Moves the clocks of one database and its Redis server."""

    def __init__(self, clock: Clock, redis_url: str) -> None:
        super().__init__(clock._connection)
        self._redis_url = redis_url

    async def next_due(self) -> datetime | None:
        """Includes what waits in Redis."""
        moments = [await super().next_due()]
        later = f"({(await self.now() - EPOCH) / timedelta(milliseconds=1)!r}"
        keys = [f"{main}:{part}" for main in await self._queues() for part in ("delayed", "alone")]
        commands = [("ZRANGEBYSCORE", key, later, "+inf", "WITHSCORES", "LIMIT", "0", "1") for key in keys]
        for found in await self._execute_atomically(*commands):
            moments += [EPOCH + timedelta(microseconds=round(float(due_ms) * 1_000)) for _, due_ms in found]
        return min((moment for moment in moments if moment is not None), default=None)

    async def idle(self) -> bool:
        """Includes Redis: nothing runs there, and nothing that could run is due."""
        due = ("-inf", repr((await self.now() - EPOCH) / timedelta(milliseconds=1)))
        for keys in await self._queues():
            # Read atomically: a message moving between two keys would be seen in neither.
            if any(
                await self._execute_atomically(
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
        await self._execute("HSET", TEST_CLOCK, *await clock_fields(self._connection))
        # A process woken by PostgreSQL's change may have read Redis too early.
        await self._connection.execute("select pg_notify($1, $2)", CHANNEL, EVERYBODY)
        return moved

    async def _queues(self) -> list[str]:
        """The main lists of queues that are not paused."""
        rows = await self._connection.fetch("select name from payonce.queues where not paused")
        return [main_key(row["name"]) for row in rows]

    async def _execute_atomically(self, *commands: Sequence[str]) -> list[Any]:
        client: Any = redis.asyncio.Redis.from_url(self._redis_url)
        async with client, client.pipeline(transaction=True) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            answers: list[Any] = await pipeline.execute()
        return answers

    async def _execute(self, *command: str | int) -> Any:
        client: Any = redis.asyncio.Redis.from_url(self._redis_url)
        async with client:
            return await client.execute_command(*command)
