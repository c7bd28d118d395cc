"""The connection to Redis: scripts run there with time-outs, and a server that has lost everything is told again."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from hashlib import sha1
from typing import Any, Final
from urllib.parse import urlsplit

import redis.asyncio
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from payonce.engine.database.connections import Database
from payonce.engine.messages.declarations import unknown_queue
from payonce.kit.log import get_logger
from payonce.kit.outcomes import QueueAway, Unavailable
from payonce.queues.redis import scripts
from payonce.queues.redis.codec import PART_MAX_BYTES
from payonce.queues.redis.connections import Lines
from payonce.queues.redis.keys import OWNER, TEST_CLOCK, main_key
from payonce.queues.redis.scripts import TIMELESS, Script

CONNECT_TIMEOUT_S: Final = 3.0
COMMAND_TIMEOUT_S: Final = 5.0
"""A server that is stopped, or lost without a word, holds nobody up for longer."""
SLOW_LINE_BYTES_S: Final = 1024 * 1024
CONNECTIONS_MAX: Final = 16
OLDEST_VERSION: Final = (6, 2)
"""The first with LMOVE, and with RPOP of several at once."""
REPEATS_MAX: Final = 5
"""A script is sent again when the server had forgotten it, the queue or a test's clock: each at most a few times."""
SKEW_MAX_S: Final = 0.5
"""Between the clocks of Redis and PostgreSQL; more is told at start."""
US: Final = 1_000_000
CANCELS_MAX: Final = 5
CANCEL_AGAIN_S: Final = 0.5
LOST: Final = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, asyncio.TimeoutError)
STATES: Final = {
    "READONLY": "it is a replica, or was made one; let REDIS_URL name the primary",
    "OOM": "its memory is full; raise maxmemory or take something out",
    "MISCONF": "it cannot save to its disk; look at its log, and make room there",
    "BUSY": "a script has been running for long; wait, or end it with SCRIPT KILL",
    "LOADING": "it is reading its data; wait",
    "MASTERDOWN": "it is a replica that has lost its primary; let REDIS_URL name the primary",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write asks for; start them",
    "TRYAGAIN": "it is being changed; wait",
}
"""Of a server that refuses every message alike, by how its answers begin, and what is to be done."""
STATE: Final = re.compile(rf"(?:^|[ -])({'|'.join(STATES)}) ")
"""Older servers tell it in the middle, behind the place in the script."""

log = get_logger(__name__)


class RedisStore:
    """One process' way to one Redis server. Queues, limits and pauses that it forgets come back from PostgreSQL."""

    def __init__(self, url: str, database: Database, *, test: bool) -> None:
        self.database = database
        self._where = described(url)
        self._clock = scripts.source("clock_test" if test else "clock")
        self._client: Any = self._open_client(url, COMMAND_TIMEOUT_S)
        self._url = url
        self._short: Any = self._for_commands(COMMAND_TIMEOUT_S, CONNECTIONS_MAX)
        self._loaded: dict[str, tuple[str, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen: set[str] = set()
        """Queues that the server has known: of a new one nobody says that it forgot."""
        self.when_forgotten: Callable[[], None] = lambda: None
        """Called when Redis turns out to have forgotten a queue: much else may be gone."""

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, database: Database) -> AsyncIterator["RedisStore"]:
        """Refuses, with what to do, a server that is away, too old or part of a cluster."""
        purpose = await database.engine.fetchval("select purpose from payonce.installation")
        store = cls(url, database, test=purpose == "test")
        try:
            await store._check_server()
            await store._mark_as_ours()
            await store._compare_clocks()
            yield store
        finally:
            await store._end_tasks()
            await store._short.aclose()
            await store._client.aclose()

    async def run(self, script: Script, queue: str, *arguments: str | bytes | int) -> list[Any]:
        """One atomic step on one queue. Its answer without the leading OK."""
        for _ in range(REPEATS_MAX):
            try:
                answer = await self.command(*self.asking(script, queue, *arguments))
            except exceptions.NoScriptError:
                await self.command("SCRIPT", "LOAD", self._text(script)[0])
                continue
            if await self._settled(queue, answer[0]):
                return list(answer[1:])
        raise QueueAway(f"{self._where} forgets what it is told; is somebody flushing it over and over?")

    def asking(self, script: Script, queue: str, *arguments: str | bytes | int) -> tuple[str | bytes | int, ...]:
        """The command that runs a script, if the server has it."""
        return ("EVALSHA", self._text(script)[1], 1, main_key(queue), *arguments)

    async def run_all(
        self, script: Script, calls: Sequence[tuple[str, Sequence[str | bytes | int]]]
    ) -> list[list[Any]]:
        """Several steps as one: all of them, or none. What is large is given the time that a slow line takes for it."""
        size = sum(len(word) for _, words in calls for word in words if isinstance(word, bytes))
        if size > PART_MAX_BYTES:
            seconds = size / SLOW_LINE_BYTES_S + COMMAND_TIMEOUT_S
            async with self._open_client(self._url, seconds, connections=1) as patient:
                return await self._run_all(patient, script, calls)
        return await self._run_all(self._client, script, calls)

    async def _run_all(
        self, client: Any, script: Script, calls: Sequence[tuple[str, Sequence[str | bytes | int]]]
    ) -> list[list[Any]]:
        for _ in range(REPEATS_MAX):
            text, digest = self._text(script)
            try:
                # Inside the transaction a script that is missing would fail by itself.
                await client.execute_command("SCRIPT", "LOAD", text)
                async with client.pipeline(transaction=True) as together:
                    # A queue that is missing would leave the others' messages there, to be put and run again.
                    policies = {f"{main_key(queue)}:policy": queue for queue, _ in calls}
                    await together.watch(*policies)
                    for key, queue in policies.items():
                        if not await together.execute_command("HEXISTS", key, "lease"):
                            await self._settled(queue, b"UNDECLARED")
                    together.multi()
                    for queue, arguments in calls:
                        together.execute_command("EVALSHA", digest, 1, main_key(queue), *arguments)
                    answers = await together.execute()
            except exceptions.WatchError:
                # Forgotten, or declared, in between: nothing was put.
                continue
            except LOST as error:
                raise await self._lost(error) from error
            except exceptions.ResponseError as error:
                raise self._refused(error) from error
            missing = [
                (queue, answer[0]) for (queue, _), answer in zip(calls, answers, strict=True) if answer[0] != b"OK"
            ]
            if not missing:
                return [list(answer[1:]) for answer in answers]
            await self._settled(*missing[0])
        raise QueueAway(f"{self._where} forgets what it is told; is somebody flushing it over and over?")

    async def command(self, *words: str | bytes | int | float) -> Any:
        try:
            return await self._short.execute_command(*words)
        except LOST as error:
            raise await self._lost(error) from error
        except exceptions.ResponseError as error:
            raise self._refused(error) from error

    async def count(self, queue: str) -> int:
        """How many messages of a queue lie there, in whatever state, also if it is not declared there."""
        key, count = main_key(queue), 0
        for command, name in (
            ("LLEN", ""),
            ("LLEN", ":processing"),
            ("LLEN", ":failed"),
            ("ZCARD", ":delayed"),
            ("ZCARD", ":alone"),
        ):
            count += await self.command(command, f"{key}{name}")
        return count

    def looking_out(self, timeout_s: float) -> Any:
        """A connection of its own, for a command that waits on the server for so long."""
        return self._for_commands(timeout_s + COMMAND_TIMEOUT_S, 1)

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs in the background for as long as this store is open."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def declare(self, queue: str, connection: Any = None, *, unused_limit: bool = False) -> None:
        """Tells Redis what PostgreSQL says of a queue. Pauses and declarations of one queue wait for each other.

        A limit that Redis does not know is taken for lost and gives out nothing for one lease, unless it is
        `unused_limit`: nothing can be in work under it.
        """
        if connection is None:
            async with self.database.engine.acquire() as own, own.transaction():
                await self.declare(queue, own, unused_limit=unused_limit)
            return
        row = await connection.fetchrow(
            """
            select coalesce((q.policy->>'lanes')::boolean, false) as lanes, q.paused, q.paused_reason, q.lease_s,
                   l.name as limit, l.concurrency, l.rate, l.burst,
                   (select max(lease_s) from payonce.queues where limit_name = l.name) as longest_lease_s
            from payonce.queues q left join payonce.limits l on l.name = q.limit_name
            where q.name = $1 for update of q
            """,
            queue,
        )
        if row is None:
            raise await unknown_queue(connection, queue)
        paused = (row["paused_reason"] or "paused") if row["paused"] else ""
        limit = row["limit"] or ""
        numbers = ["" if row[name] is None else repr(row[name]) for name in ("concurrency", "rate", "burst")]
        lease_us, longest_us = round(row["lease_s"] * US), round((row["longest_lease_s"] or row["lease_s"]) * US)
        await self.run(
            scripts.DECLARE, queue, int(row["lanes"]), paused, lease_us, limit, *numbers, longest_us, int(unused_limit)
        )

    async def tell_clocks(self) -> None:
        """Under test: the clocks as PostgreSQL has them, if Redis has none."""
        fields = await clock_fields(self.database.engine)
        await self.run(scripts.SET_CLOCK, TEST_CLOCK, *fields)

    async def _mark_as_ours(self) -> None:
        """Two databases in one Redis would take each other's messages."""
        ours = await self.database.installation()
        await self.command("SET", OWNER, ours, "NX")
        owner = ((await self.command("GET", OWNER)) or b"").decode("utf-8", "replace")
        if owner != ours:
            raise Unavailable(
                f"{self._where} holds the queues of another database (installation {owner}, this one is {ours}); give "
                "REDIS_URL another server or database number. If the other one is gone for good, and what it left may "
                f"run here: redis-cli DEL {OWNER}"
            )

    async def _compare_clocks(self) -> None:
        """Delays are counted by Redis' clock, and what people are shown beside them by PostgreSQL's."""
        begun = time.monotonic()
        [there_us] = await self.run(scripts.CLOCK, TEST_CLOCK)
        here: datetime = await self.database.engine.fetchval("select payonce.due_now()")
        ahead_s = int(there_us) / US - here.timestamp()
        # What the two questions took may lie between the two answers.
        if not -SKEW_MAX_S - (time.monotonic() - begun) <= ahead_s <= SKEW_MAX_S:
            log.warning(
                "clocks_differ",
                redis=self._where,
                ahead_of_postgres_s=round(ahead_s, 3),
                way_out="set both machines' clocks by NTP",
            )

    async def _end_tasks(self) -> None:
        """A driver that is just connecting may swallow a cancellation: it gets another."""
        for _ in range(CANCELS_MAX):
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=CANCEL_AGAIN_S)

    async def _settled(self, queue: str, status: bytes) -> bool:
        """Whether the script did its work; if it was told too little, the rest is told now."""
        if status == b"UNDECLARED":
            if queue in self._seen:
                log.warning("redis_forgot_queue", queue=queue, redis=self._where)
            await self._mark_as_ours()
            await self.declare(queue)
            self.when_forgotten()
        elif status == b"CLOCK":
            await self.tell_clocks()
        else:
            self._seen.add(queue)
        return status == b"OK"

    def _text(self, script: Script) -> tuple[str, str]:
        known = self._loaded.get(script.body)
        if known is None:
            text = script.body if script in TIMELESS else self._clock + script.body
            known = self._loaded[script.body] = text, sha1(text.encode(), usedforsecurity=False).hexdigest()
        return known

    def _for_commands(self, timeout_s: float, connections: int) -> Any:
        if Lines.fit(self._url):
            return Lines(self._url, most=connections, connect_timeout_s=CONNECT_TIMEOUT_S, timeout_s=timeout_s)
        return self._open_client(self._url, timeout_s, connections)

    def _open_client(self, url: str, timeout_s: float, connections: int = CONNECTIONS_MAX) -> "redis.asyncio.Redis":
        try:
            pool = redis.asyncio.BlockingConnectionPool.from_url(
                url,
                max_connections=connections,
                timeout=timeout_s,
                socket_timeout=timeout_s,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                socket_keepalive=True,
                # Sent again by the driver, a claim whose answer was lost would be held by nobody until its lease ends.
                retry=Retry(NoBackoff(), 0),
                **_without_notifications(),
            )
        except ValueError as error:
            raise Unavailable(
                f"REDIS_URL cannot be read: {self._where}; it has the form redis://host:6379/0"
            ) from error
        # Whatever the URL asks for: bodies are bytes.
        pool.connection_kwargs["decode_responses"] = False
        return redis.asyncio.Redis.from_pool(pool)

    async def _lost(self, error: BaseException) -> QueueAway:
        """The other idle connections are most likely lost as well; each would cost somebody an error."""
        with suppress(*LOST):
            await self._client.connection_pool.disconnect(inuse_connections=False)
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return QueueAway(f"{self._where} does not answer: {text[:200]}; is it running, and does REDIS_URL name it?")

    def _refused(self, error: exceptions.ResponseError) -> Exception:
        """What passes by itself, or when an operator helps, is no fault of the message that met it."""
        state = getattr(error, "status_code", None) or ""
        if state not in STATES:
            found = STATE.search(str(error))
            state = "" if found is None else found[1]
        if not state:
            return error
        return QueueAway(f"{self._where} takes nothing now: {state}, {STATES[state]}")

    async def _check_server(self) -> None:
        try:
            told = await self._client.info()
        except exceptions.AuthenticationError as error:
            raise Unavailable(
                f"{self._where} refuses the login: {error}; check the user and password in REDIS_URL"
            ) from error
        except LOST as error:
            raise await self._lost(error) from error
        except exceptions.ResponseError as error:
            raise Unavailable(
                f"{self._where} refuses this client: {error}; check the user and the database number in REDIS_URL"
            ) from error
        if told.get("role") in ("slave", "replica"):
            raise Unavailable(f"{self._where} is a replica, which takes no writes; let REDIS_URL name the primary")
        version = tuple(map(int, str(told["redis_version"]).split(".")[:2]))
        if version < OLDEST_VERSION:
            raise Unavailable(
                f"{self._where} is version {told['redis_version']}; payonce needs 6.2 or newer: upgrade the server"
            )
        if told.get("maxmemory") and told.get("maxmemory_policy") != "noeviction":
            raise Unavailable(
                f"{self._where} throws keys away when its memory is full ({told['maxmemory_policy']}), messages among "
                "them; set maxmemory-policy to noeviction"
            )
        if told.get("cluster_enabled"):
            raise Unavailable(
                f"{self._where} is part of a cluster, where a script cannot reach all keys of a queue; "
                "use a single server, with Sentinel for fail-over"
            )


def _without_notifications() -> dict[str, Any]:
    """With them the driver hands out connections that the server has closed: after a restart, somebody's command would
    be sent on each of them, and fail. Older drivers have none."""
    if not hasattr(redis.asyncio.BlockingConnectionPool, "maint_notifications_enabled"):
        return {}
    from redis.maint_notifications import MaintNotificationsConfig

    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}


async def clock_fields(source: Any) -> list[str]:
    """The test's clocks in microseconds, as names and values."""
    row = await source.fetchrow(
        """
        select (extract(epoch from due_frozen) * 1000000)::bigint as due_frozen,
               (extract(epoch from due_offset) * 1000000)::bigint as due_offset,
               (extract(epoch from lease_frozen) * 1000000)::bigint as lease_frozen,
               (extract(epoch from lease_offset) * 1000000)::bigint as lease_offset
        from payonce.test_clock
        """
    )
    return [text for name, value in row.items() for text in (name, "" if value is None else str(value))]


def described(url: str) -> str:
    """A URL as it may be shown: without its password."""
    parts = urlsplit(url)
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "Redis at an unreadable address"
    return f"Redis at {parts.hostname or 'an unreadable address'}{port}"
