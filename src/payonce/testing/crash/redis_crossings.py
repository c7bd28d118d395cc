"""Crossings to Redis: every command and every script, which is a single step there."""

from collections.abc import Awaitable, Callable
from functools import cache
from hashlib import sha1
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError

from payonce.queues.redis import scripts
from payonce.queues.redis.connections import ConnectionPool
from payonce.testing.crash.crossings import cross
from payonce.testing.crash.wire import Channel

PLUMBING: Final = frozenset({"CLIENT", "HELLO", "INFO", "PING", "SCRIPT", "SELECT"})
"""Commands that neither change nor return messages."""
READING: Final = frozenset(
    {"EXISTS", "GET", "HGET", "HGETALL", "HKEYS", "HMGET", "LLEN", "LRANGE", "MGET", "ZCARD", "ZCOUNT", "ZRANGE"}
)
READING_SCRIPTS: Final = (scripts.CLOCK, scripts.DEAD, scripts.DEPTH, scripts.LIST)


def watch_redis() -> None:
    """Makes every Redis command of this process ask the explorer first."""
    execute_all: Any = Pipeline.execute

    async def all_watched(pipeline: Any, *arguments: Any, **options: Any) -> Any:
        """A transaction is one crossing: its commands are carried out together."""
        return await cross(Channel.REDIS, False, lambda: execute_all(pipeline, *arguments, **options))

    known: set[str] = set()
    for each in (Redis, ConnectionPool):
        client_class: Any = each
        client_class.execute_command = _watched(client_class.execute_command, known)
    replaced: Any = Pipeline
    replaced.execute = all_watched


def _watched(execute: Callable[..., Awaitable[Any]], known: set[str]) -> Callable[..., Awaitable[Any]]:
    async def watched(client: Any, *arguments: Any, **options: Any) -> Any:
        if str(arguments[0]).upper() in PLUMBING:
            return await execute(client, *arguments, **options)
        if arguments[0] == "EVALSHA" and arguments[1] not in known:
            # A script unknown to the server is sent twice, but crosses once, so that labels stay the same.
            [loaded] = await execute(client, "SCRIPT", "EXISTS", arguments[1])
            if not loaded:
                raise NoScriptError
            known.add(arguments[1])
        return await cross(Channel.REDIS, only_reads(arguments), lambda: execute(client, *arguments, **options))

    return watched


def only_reads(arguments: tuple[Any, ...]) -> bool:
    word = str(arguments[0]).upper()
    return word in READING or (word == "EVALSHA" and arguments[1] in _reading_digests())


@cache
def _reading_digests() -> frozenset[str]:
    texts = map(text_under_test, READING_SCRIPTS)
    return frozenset(sha1(text.encode(), usedforsecurity=False).hexdigest() for text in texts)


def text_under_test(script: scripts.Script) -> str:
    return script.body if script in scripts.TIMELESS else scripts.source("clock_test") + script.body
