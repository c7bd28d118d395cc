"""Where queues lie: the backends by name, and how a process opens one."""

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

MOVED_LOOK_S: Final = 2.0
POSTGRES: Final = "postgres"
REDIS: Final = "redis"

log = get_logger(__name__)


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
    also_known: Sequence[Relay] = ()
    """Relays that take entries here and are carried by others."""
    pushes: CloudTasks | None = None
    """The queues that a task service brings, beside those that lie here."""


def beside(home: Backend, pushes: CloudTasks) -> Backend:
    """Pushed queues are at the task service, all others at home."""
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
        also_known=() if pushes.works_here else (pushes.relay,),
        pushes=pushes,
    )


@asynccontextmanager
async def open_backend(
    name: str, redis_url: str | None, database: Database, notifier: Notifier
) -> AsyncIterator[Backend]:
    """Refuses, with what to do, a Redis server that is away, too old or part of a cluster."""
    if name == POSTGRES:
        yield Backend(
            POSTGRES,
            PostgresFeed(database, notifier),
            PostgresAdmin(database, notifier),
            lambda policy, worker: PostgresQueue(database, notifier, policy, worker),
        )
        return
    # Not at the top: its driver takes a while to load.
    from payonce.queues.redis import RedisAdmin, RedisFeed, RedisQueue, RedisRelay, RedisStore
    from payonce.queues.redis.refill import REFILL_EVERY_S, WAKE_NAME, refill

    if redis_url is None:
        raise Invalid("queues are to lie in Redis and REDIS_URL is not set; set it, such as redis://localhost:6379/0")
    async with RedisStore.open(redis_url, database) as store:
        store.when_forgotten = lambda: notifier.notify({WAKE_NAME})
        yield Backend(
            REDIS,
            RedisFeed(store, notifier),
            RedisAdmin(store, notifier),
            lambda policy, worker: RedisQueue(store, notifier, policy, worker),
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
    if left is None and (row := await database.engine.fetchrow(_AT_TASK_SERVICE, list(queues))) is not None:
        raise Invalid(
            f"{row['count']:,} messages of queue {row['queue']} wait for a task service, and no service here has it "
            "pushed; start the version that pushes it until they have ended"
        )
    if left is None and backend != REDIS and redis_url is not None and queues:
        left = await _left_in_redis(database, redis_url, queues)
    if left is not None:
        where, other = ("PostgreSQL", "Redis") if backend == REDIS else ("Redis", "PostgreSQL")
        raise Invalid(
            f"{left[1]:,} messages of queue {left[0]} lie in {where}, and this process serves queues in "
            f"{other}; move them with: payonce queues move --to {backend}"
        )


async def take_over(database: Database, backend: str, queues: Sequence[str]) -> None:
    """Before a process that works begins: queues that nobody works on, and that left nothing elsewhere, are from now on
    this backend's. Refused while processes run that have ours elsewhere, for these would find their queues empty."""
    elsewhere = await queues_elsewhere(database, backend)
    mine = [queue for queue in queues if queue in elsewhere]
    leader = await leader_of(database) if elsewhere else None
    if mine and leader is not None:
        raise Invalid(
            f"{lies_elsewhere(mine[0], backend)}; process {leader} is running with it there: set REDIS_URL as it has "
            "it, or stop it first"
        )
    if elsewhere and leader is None:
        left = _IN_POSTGRES if backend == REDIS else _IN_REDIS
        empty = [queue for queue in elsewhere if await database.engine.fetchrow(left, [queue]) is None]
        await database.engine.execute("update payonce.queues set backend = $1 where name = any($2)", backend, empty)


async def queues_elsewhere(database: Database, backend: str) -> list[str]:
    """Those that were last declared, or moved, for another backend than this. Pushed ones are at the task service
    wherever the others lie."""
    rows = await database.engine.fetch(
        "select name from payonce.queues where backend not in ($1, 'cloudtasks') order by name", backend
    )
    return [row["name"] for row in rows]


def lies_elsewhere(queue: str, backend: str) -> str:
    where, here = ("PostgreSQL", "Redis") if backend == REDIS else ("Redis", "PostgreSQL")
    return f"queue {queue} lies in {where}, and this process has its queues in {here}"


async def leader_of(database: Database) -> str | None:
    """While any process works, one of them leads: its name."""
    holder: str | None = await database.engine.fetchval(
        "select holder from payonce.leases where name = $1 and expires_at > payonce.lease_now()", LEADER
    )
    return holder


async def refuse_while_led(database: Database) -> None:
    if (leader := await leader_of(database)) is not None:
        raise Invalid(f"process {leader} is running; stop every worker, then try again")


async def until_moved(database: Database, backend: str, queues: Sequence[str]) -> None:
    """Raises when one of these queues lies elsewhere by now: what this process would put there nobody would take."""
    while True:
        await asyncio.sleep(MOVED_LOOK_S)
        try:
            moved = set(queues).intersection(await queues_elsewhere(database, backend))
        except Exception as error:
            if not is_transient(error):
                raise
            continue
        if moved:
            raise Invalid(
                f"{lies_elsewhere(min(moved), backend)}: it was moved; start anew with REDIS_URL as it is now"
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
_AT_TASK_SERVICE: Final = """
    select queue, count(*) from payonce.outbox where relay = 'cloudtasks' and queue = any($1)
    group by queue order by queue limit 1"""
_IN_REDIS: Final = """
    select queue, count(*) from payonce.outbox where relay = 'redis' and queue = any($1)
    group by queue order by queue limit 1"""
