"""Queue backends by name, and how a process opens one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from payonce.engine.database.connections import Database, is_transient
from payonce.engine.database.notifier import Notifier
from payonce.engine.janitors import LEADER, Janitor
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Admin, PullQueue
from payonce.engine.outbox import Relay
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.queues.cloudtasks.assembly import CloudTasks
from payonce.queues.postgres import PostgresAdmin, PostgresFeed, PostgresQueue
from payonce.queues.routing import DeclaringFeed, RoutedAdmin, RoutedFeed

MOVED_CHECK_S: Final = 2.0
POSTGRES: Final = "postgres"
REDIS: Final = "redis"

log = get_logger(__name__)


@dataclass(frozen=True)
class Backend:
    """An open queue backend."""

    name: str
    feed: DeclaringFeed
    admin: Admin
    queue: Callable[[Policy, str], PullQueue]
    relays: Sequence[Relay] = ()
    janitors: Sequence[Janitor] = ()
    """Run by the leading process."""
    known_relays: Sequence[Relay] = ()
    """Relays whose entries are stored here and delivered by other processes."""
    pushes: CloudTasks | None = None
    """The queues that a task service pushes, in addition to those of this backend."""


def with_pushed_queues(home: Backend, pushes: CloudTasks) -> Backend:
    """Returns the home backend with pushed queues routed to the task service."""
    names = frozenset(pushes.pushed)

    def queue(policy: Policy, worker: str) -> PullQueue:
        return pushes.queue(policy, worker) if policy.queue in names else home.queue(policy, worker)

    carried = (*home.relays, pushes.relay) if pushes.works_here else home.relays
    return replace(
        home,
        feed=RoutedFeed(home.feed, pushes.feed, names),
        admin=RoutedAdmin(home.admin, pushes.admin, names),
        queue=queue,
        relays=carried,
        known_relays=() if pushes.works_here else (pushes.relay,),
        pushes=pushes,
    )


@asynccontextmanager
async def open_backend(
    name: str, redis_url: str | None, database: Database, notifier: Notifier
) -> AsyncIterator[Backend]:
    """Raises Unavailable, with the remedy, for a Redis server that is unreachable, too old or part of a cluster."""
    if name == POSTGRES:
        yield Backend(
            POSTGRES,
            PostgresFeed(database, notifier),
            PostgresAdmin(database, notifier),
            lambda policy, worker: PostgresQueue(database, notifier, policy, worker),
        )
        return
    # Imported late: the Redis driver is slow to load.
    from payonce.queues.redis import RedisAdmin, RedisFeed, RedisQueue, RedisRelay, RedisStore
    from payonce.queues.redis.refill import REFILL_EVERY_S, WAKE_NAME, refill

    if redis_url is None:
        raise Invalid(
            "the queues are kept in Redis, but REDIS_URL is not set; set it, for example to redis://localhost:6379/0"
        )
    async with RedisStore.open(redis_url, database) as store:
        store.on_data_loss = lambda: notifier.notify({WAKE_NAME})
        yield Backend(
            REDIS,
            RedisFeed(store, notifier),
            RedisAdmin(store, notifier),
            lambda policy, worker: RedisQueue(store, notifier, policy, worker),
            (RedisRelay(store),),
            (Janitor("refill redis", REFILL_EVERY_S, lambda: refill(store), WAKE_NAME),),
        )


async def refuse_stranded_messages(
    database: Database, backend: str, queues: Sequence[str], redis_url: str | None = None
) -> None:
    """Raises Invalid if these queues still have messages in another backend, where no worker would claim them. Messages
    put directly into Redis are known to Redis alone."""
    row = await database.engine.fetchrow(_IN_POSTGRES if backend == REDIS else _IN_REDIS, list(queues))
    left = None if row is None else (row["queue"], row["count"])
    if left is None and (row := await database.engine.fetchrow(_AT_TASK_SERVICE, list(queues))) is not None:
        raise Invalid(
            f"{row['count']:,} messages of queue {row['queue']} wait for a task service, but no service here pushes "
            "this queue; start a version that does, until they are settled"
        )
    if left is None and backend != REDIS and redis_url is not None and queues:
        left = await _left_in_redis(database, redis_url, queues)
    if left is not None:
        where, other = ("PostgreSQL", "Redis") if backend == REDIS else ("Redis", "PostgreSQL")
        raise Invalid(
            f"{left[1]:,} messages of queue {left[0]} are in {where}, but this process serves queues in "
            f"{other}; move them with: payonce queues move --to {backend}"
        )


async def adopt_queues(database: Database, backend: str, queues: Sequence[str]) -> None:
    """Assigns idle and empty queues to this backend before a process starts working. Raises Invalid while another
    process is running with the queues in the other backend: it would find them empty."""
    elsewhere = await queues_of_other_backends(database, backend)
    mine = [queue for queue in queues if queue in elsewhere]
    leader = await current_leader(database) if elsewhere else None
    if mine and leader is not None:
        raise Invalid(
            f"{other_backend(mine[0], backend)}; process {leader} is running with that backend: set REDIS_URL to "
            "the same value, or stop that process first"
        )
    if elsewhere and leader is None:
        left = _IN_POSTGRES if backend == REDIS else _IN_REDIS
        empty = [queue for queue in elsewhere if await database.engine.fetchrow(left, [queue]) is None]
        await database.engine.execute("update payonce.queues set backend = $1 where name = any($2)", backend, empty)


async def queues_of_other_backends(database: Database, backend: str) -> list[str]:
    """Queues last declared in, or moved to, another backend than this one. Pushed queues are not counted."""
    rows = await database.engine.fetch(
        "select name from payonce.queues where backend not in ($1, 'cloudtasks') order by name", backend
    )
    return [row["name"] for row in rows]


def other_backend(queue: str, backend: str) -> str:
    where, here = ("PostgreSQL", "Redis") if backend == REDIS else ("Redis", "PostgreSQL")
    return f"queue {queue} is in {where}, but this process keeps its queues in {here}"


async def current_leader(database: Database) -> str | None:
    """The name of the leading process; None if no process is running."""
    holder: str | None = await database.engine.fetchval(
        "select holder from payonce.leases where name = $1 and expires_at > payonce.lease_now()", LEADER
    )
    return holder


async def refuse_while_running(database: Database) -> None:
    if (leader := await current_leader(database)) is not None:
        raise Invalid(f"process {leader} is running; stop every worker, then try again")


async def watch_for_moves(database: Database, backend: str, queues: Sequence[str]) -> None:
    """Raises Invalid when one of these queues has been moved to another backend: no worker would claim what this
    process put."""
    while True:
        await asyncio.sleep(MOVED_CHECK_S)
        try:
            moved = set(queues).intersection(await queues_of_other_backends(database, backend))
        except Exception as error:
            if not is_transient(error):
                raise
            continue
        if moved:
            raise Invalid(f"{other_backend(min(moved), backend)}: it was moved; restart with the current REDIS_URL")


async def _left_in_redis(database: Database, redis_url: str, queues: Sequence[str]) -> tuple[str, int] | None:
    from payonce.queues.redis import RedisStore

    try:
        async with RedisStore.open(redis_url, database) as store:
            for queue in sorted(queues):
                if count := await store.count(queue):
                    return queue, count
    except Unavailable as error:
        # Redis is not required by this process.
        log.warning("redis_check_skipped", error=str(error))
    return None


_IN_POSTGRES: Final = """
    select queue, count(*) from payonce.messages where queue = any($1) group by queue order by queue limit 1"""
_AT_TASK_SERVICE: Final = """
    select queue, count(*) from payonce.outbox where relay = 'cloudtasks' and queue = any($1)
    group by queue order by queue limit 1"""
_IN_REDIS: Final = """
    select queue, count(*) from payonce.outbox where relay = 'redis' and queue = any($1)
    group by queue order by queue limit 1"""
