"""Where a child can be struck on its way to Redis: every command and every script, which is one step there."""

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
"""Commands that neither change nor show a message."""
READING: Final = frozenset(
    {"EXISTS", "GET", "HGET", "HGETALL", "HKEYS", "HMGET", "LLEN", "LRANGE", "MGET", "ZCARD", "ZCOUNT", "ZRANGE"}
)
READING_SCRIPTS: Final = (scripts.CLOCK, scripts.DEAD, scripts.DEPTH, scripts.LIST)


def watch_redis() -> None:
    """From now on every command of this process asks the explorer first."""
    execute_all: Any = Pipeline.execute

    async def all_watched(pipeline: Any, *arguments: Any, **options: Any) -> Any:
        """As one: what is sent in a transaction is carried out together."""
        return await cross(Channel.REDIS, False, lambda: execute_all(pipeline, *arguments, **options))

    known: set[str] = set()
    for each in (Redis, ConnectionPool):
        speaker: Any = each
        speaker.execute_command = _watched(speaker.execute_command, known)
    replaced: Any = Pipeline
    replaced.execute = all_watched


def _watched(execute: Callable[..., Awaitable[Any]], known: set[str]) -> Callable[..., Awaitable[Any]]:
    async def watched(speaker: Any, *words: Any, **options: Any) -> Any:
        if str(words[0]).upper() in PLUMBING:
            return await execute(speaker, *words, **options)
        if words[0] == "EVALSHA" and words[1] not in known:
            # A script that the server does not know is asked for twice, but crossed once: labels stay the same.
            [there] = await execute(speaker, "SCRIPT", "EXISTS", words[1])
            if not there:
                raise NoScriptError
            known.add(words[1])
        return await cross(Channel.REDIS, only_looks(words), lambda: execute(speaker, *words, **options))

    return watched


def only_looks(words: tuple[Any, ...]) -> bool:
    word = str(words[0]).upper()
    return word in READING or (word == "EVALSHA" and words[1] in _looking())


@cache
def _looking() -> frozenset[str]:
    texts = map(text_under_test, READING_SCRIPTS)
    return frozenset(sha1(text.encode(), usedforsecurity=False).hexdigest() for text in texts)


def text_under_test(script: scripts.Script) -> str:
    return script.body if script in scripts.TIMELESS else scripts.source("clock_test") + script.body
