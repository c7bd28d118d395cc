"""A client that sends one command at a time, as it is told, and never a second time by itself."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff


class Client:
    def __init__(self, url: str) -> None:
        # Without retries: a dead process does not send again.
        self._redis = Redis.from_url(url, retry=Retry(NoBackoff(), 0))
        self._send: Callable[..., Awaitable[Any]] = self._redis.execute_command

    async def say(self, *words: str | bytes | int | float) -> Any:
        """Answers in bytes, as the server does."""
        return await self._send(*words)

    async def close(self) -> None:
        await self._redis.aclose()


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Client]:
    client = Client(url)
    try:
        yield client
    finally:
        await client.close()
