"""Where queues lie: the backends by name, and how a process opens one."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from payonce.engine.bell import Bell
from payonce.engine.database import Database
from payonce.engine.janitors import Janitor
from payonce.engine.outbox import Relay
from payonce.engine.policy import Policy
from payonce.engine.queue import Admin, PullQueue
from payonce.engine.transaction import RingingFeed
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.queues.postgres import PostgresAdmin, PostgresFeed, PostgresQueue

POSTGRES: Final = "postgres"
REDIS: Final = "redis"

log = get_logger(__name__)


class DeclaringFeed(RingingFeed, Protocol):
    async def declare(self, policies: Sequence[Policy]) -> None: ...


@dataclass(frozen=True)
class Backend:
    """A queue backend, opened."""

    name: str
    feed: DeclaringFeed
    admin: Admin
    queue: Callable[[Policy, str], PullQueue]
    relays: Sequence[Relay] = ()
    led: Sequence[Janitor] = ()
    """What the process that leads does for it."""


@asynccontextmanager
async def open_backend(name: str, redis_url: str | None, database: Database, bell: Bell) -> AsyncIterator[Backend]:
    """Refuses, with what to do, a Redis server that is away, too old or part of a cluster."""
    if name == POSTGRES:
        yield Backend(
            POSTGRES,
            PostgresFeed(database, bell),
            PostgresAdmin(database, bell),
            lambda policy, worker: PostgresQueue(database, bell, policy, worker),
        )
        return
    # Not at the top: its driver takes a while to load.
    from payonce.queues.redis import RedisAdmin, RedisFeed, RedisQueue, RedisRelay, RedisStore
    from payonce.queues.redis.refill import REFILL_EVERY_S, WAKE_NAME, refill

    if redis_url is None:
        raise Invalid("queues are to lie in Redis and REDIS_URL is not set; set it, such as redis://localhost:6379/0")
    async with RedisStore.open(redis_url, database) as store:
        store.when_forgotten = lambda: bell.ring({WAKE_NAME})
        yield Backend(
            REDIS,
            RedisFeed(store, bell),
            RedisAdmin(store, bell),
            lambda policy, worker: RedisQueue(store, bell, policy, worker),
            (RedisRelay(store),),
            (Janitor("refill redis", REFILL_EVERY_S, lambda: refill(store), WAKE_NAME),),
        )


async def refuse_if_elsewhere(
    database: Database, backend: str, queues: Sequence[str], redis_url: str | None = None
) -> None:
    """Messages that nobody would take are worse than a start that is refused. What was put straight into Redis is known
    there alone."""
    row = await database.engine.fetchrow(_IN_POSTGRES if backend == REDIS else _IN_REDIS, list(queues))
    left = None if row is None else (row["queue"], row["count"])
    if left is None and backend != REDIS and redis_url is not None and queues:
        left = await _left_in_redis(database, redis_url, queues)
    if left is not None:
        where, other = ("PostgreSQL", "Redis") if backend == REDIS else ("Redis", "PostgreSQL")
        raise Invalid(
            f"{left[1]:,} messages of queue {left[0]} lie in {where}, and this process serves queues in "
            f"{other}; move them with: payonce queues move --to {backend}"
        )


async def _left_in_redis(database: Database, redis_url: str, queues: Sequence[str]) -> tuple[str, int] | None:
    from payonce.queues.redis import RedisStore

    try:
        async with RedisStore.open(redis_url, database) as store:
            for queue in sorted(queues):
                if count := await store.count(queue):
                    return queue, count
    except Unavailable as error:
        # This process does not need it.
        log.warning("redis_not_looked_at", error=str(error))
    return None


_IN_POSTGRES: Final = """
    select queue, count(*) from payonce.messages where queue = any($1) group by queue order by queue limit 1"""
_IN_REDIS: Final = """
    select queue, count(*) from payonce.outbox where relay = 'redis' and queue = any($1)
    group by queue order by queue limit 1"""
