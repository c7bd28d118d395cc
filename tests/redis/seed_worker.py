"""The wrapper of the billing design's sections 6 and 17, command by command: what our scripts are held against.

Its order is kept as written, flaws included. Nothing but tests may use it.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.redis.client import Client

Handler = Callable[[dict[str, Any]], Awaitable[None]]

CLAIM_WAIT_S = 0.01
LOCK_TTL_MS = 120_000
RETRY_DELAY_MS = 60_000


@dataclass
class SeedWorker:
    """One process' worth of it."""

    redis: Client
    queue: str
    name: str
    now_ms: Callable[[], int]
    max_attempts: int = 2

    async def tick(self, handle: Handler) -> str:
        body: bytes | None = await self.redis.say("BRPOPLPUSH", self.queue, self.processing, CLAIM_WAIT_S)
        if body is None:
            return "no_message"
        lock = self._lock(body)
        if not await self.redis.say("SET", lock, self.name, "NX", "PX", LOCK_TTL_MS):
            await self.redis.say("LREM", self.processing, 1, body)
            await self.redis.say("LPUSH", self.queue, body)
            return "busy"
        try:
            return await self._run(body, handle)
        finally:
            await self.redis.say("DEL", lock)

    async def _run(self, body: bytes, handle: Handler) -> str:
        try:
            await handle(json.loads(body))
        except ArithmeticError:
            tried = with_one_attempt_more(body)
            if attempts_of(tried) < self.max_attempts:
                await self.redis.say("ZADD", self.delayed, self.now_ms() + RETRY_DELAY_MS, tried)
                await self.redis.say("LREM", self.processing, 1, body)
                return "retry"
            await self.redis.say("LPUSH", self.failed, tried)
            await self.redis.say("LREM", self.processing, 1, body)
            return "failed"
        await self.redis.say("LREM", self.processing, 1, body)
        return "success"

    async def pump(self) -> int:
        """Beat: due messages in `:delayed` go back to the main list."""
        due = await self.redis.say("ZRANGEBYSCORE", self.delayed, "-inf", self.now_ms())
        for body in due:
            await self.redis.say("ZREM", self.delayed, body)
            await self.redis.say("LPUSH", self.queue, body)
        return len(due)

    async def sweep(self) -> int:
        """Beat: messages in `:processing` without a lock go to `:delayed` or `:failed`."""
        swept = 0
        for body in await self.redis.say("LRANGE", self.processing, 0, -1):
            if await self.redis.say("EXISTS", self._lock(body)):
                continue
            await self.redis.say("LREM", self.processing, 1, body)
            tried = with_one_attempt_more(body)
            if attempts_of(tried) < self.max_attempts:
                await self.redis.say("ZADD", self.delayed, self.now_ms() + RETRY_DELAY_MS, tried)
            else:
                await self.redis.say("LPUSH", self.failed, tried)
            swept += 1
        return swept

    @property
    def processing(self) -> str:
        return f"{self.queue}:processing"

    @property
    def delayed(self) -> str:
        return f"{self.queue}:delayed"

    @property
    def failed(self) -> str:
        return f"{self.queue}:failed"

    def _lock(self, body: bytes) -> str:
        found = json.loads(body).get("id") or hashlib.sha256(body).hexdigest()
        return f"lock:{self.queue}:{found}"


def attempts_of(body: bytes) -> int:
    return int(json.loads(body).get("attempts", 0))


def with_one_attempt_more(body: bytes) -> bytes:
    message = json.loads(body)
    return json.dumps({**message, "attempts": attempts_of(body) + 1}).encode()
