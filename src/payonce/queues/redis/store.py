"""The connection to Redis: runs scripts with timeouts, and restores declarations to a server that has lost its data."""

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
from payonce.queues.redis.connections import ConnectionPool
from payonce.queues.redis.keys import OWNER, TEST_CLOCK, main_key
from payonce.queues.redis.scripts import TIMELESS, Script

CONNECT_TIMEOUT_S: Final = 3.0
COMMAND_TIMEOUT_S: Final = 5.0
"""An unresponsive server delays callers by no more than this."""
SLOW_LINE_BYTES_S: Final = 1024 * 1024
CONNECTIONS_MAX: Final = 16
OLDEST_VERSION: Final = (6, 2)
"""The first version with LMOVE, and with RPOP of several elements."""
REPEATS_MAX: Final = 5
"""A script is sent again after the server lost it, its queue or a test clock, each a few times at most."""
SKEW_MAX_S: Final = 0.5
"""Clock difference between Redis and PostgreSQL above which a warning is logged at start."""
US: Final = 1_000_000
CANCELS_MAX: Final = 5
CANCEL_AGAIN_S: Final = 0.5
LOST: Final = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, asyncio.TimeoutError)
STATES: Final = {
    "READONLY": "it is a replica, or has become one; let REDIS_URL name the primary",
    "OOM": "its memory is full; raise maxmemory or delete data",
    "MISCONF": "it cannot write to its disk; read its log, and free disk space",
    "BUSY": "a script has been running for too long; wait, or end it with SCRIPT KILL",
    "LOADING": "it is loading its data; wait",
    "MASTERDOWN": "it is a replica that has lost its primary; let REDIS_URL name the primary",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write requires; start them",
    "TRYAGAIN": "its slots are being moved; wait",
}
"""Error prefixes of a server that refuses all commands, with their cause and remedy."""
STATE: Final = re.compile(rf"(?:^|[ -])({'|'.join(STATES)}) ")
"""Older servers report it mid-text, after the position in the script."""

log = get_logger(__name__)


class RedisStore:
    """One process' access to a Redis server. Queues, limits and pauses that the server loses are restored from
    PostgreSQL."""

    def __init__(self, url: str, database: Database, *, test: bool) -> None:
        self.database = database
        self._where = described(url)
        self._clock = scripts.source("clock_test" if test else "clock")
        self._client: Any = self._open_client(url, COMMAND_TIMEOUT_S)
        self._url = url
        self._commands: Any = self._for_commands(COMMAND_TIMEOUT_S, CONNECTIONS_MAX)
        self._loaded: dict[str, tuple[str, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen: set[str] = set()
        """Queues that the server has known: for a new one, no loss is reported."""
        self.on_data_loss: Callable[[], None] = lambda: None
        """Called when Redis turns out to have lost a queue, and so perhaps other data."""

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, database: Database) -> AsyncIterator["RedisStore"]:
        """Raises Unavailable, with the remedy, for a server that is unreachable, too old or part of a cluster."""
        purpose = await database.engine.fetchval("select purpose from payonce.installation")
        store = cls(url, database, test=purpose == "test")
        try:
            await store._check_server()
            await store._mark_as_ours()
            await store._compare_clocks()
            yield store
        finally:
            await store._end_tasks()
            await store._commands.aclose()
            await store._client.aclose()

    async def run(self, script: Script, queue: str, *arguments: str | bytes | int) -> list[Any]:
        """Runs one atomic step on one queue; returns the script's answer without the leading OK."""
        for _ in range(REPEATS_MAX):
            try:
                answer = await self.command(*self.evalsha(script, queue, *arguments))
            except exceptions.NoScriptError:
                await self.command("SCRIPT", "LOAD", self._text(script)[0])
                continue
            if await self._succeeded(queue, answer[0]):
                return list(answer[1:])
        raise QueueAway(f"{self._where} keeps losing its data; is another client flushing it repeatedly?")

    def evalsha(self, script: Script, queue: str, *arguments: str | bytes | int) -> tuple[str | bytes | int, ...]:
        """The command that runs a script the server has loaded."""
        return ("EVALSHA", self._text(script)[1], 1, main_key(queue), *arguments)

    async def run_all(
        self, script: Script, calls: Sequence[tuple[str, Sequence[str | bytes | int]]]
    ) -> list[list[Any]]:
        """Runs several steps atomically. Large ones get the time that a slow connection takes."""
        size = sum(len(each) for _, arguments in calls for each in arguments if isinstance(each, bytes))
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
                # A script missing inside the transaction would fail on its own.
                await client.execute_command("SCRIPT", "LOAD", text)
                async with client.pipeline(transaction=True) as pipeline:
                    # With one queue undeclared, the other queues' messages would be put, and put again on the next
                    # attempt.
                    policies = {f"{main_key(queue)}:policy": queue for queue, _ in calls}
                    await pipeline.watch(*policies)
                    for key, queue in policies.items():
                        if not await pipeline.execute_command("HEXISTS", key, "lease"):
                            await self._succeeded(queue, b"UNDECLARED")
                    pipeline.multi()
                    for queue, arguments in calls:
                        pipeline.execute_command("EVALSHA", digest, 1, main_key(queue), *arguments)
                    answers = await pipeline.execute()
            except exceptions.WatchError:
                # A queue was lost or declared meanwhile: nothing was put.
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
            await self._succeeded(*missing[0])
        raise QueueAway(f"{self._where} keeps losing its data; is another client flushing it repeatedly?")

    async def command(self, *arguments: str | bytes | int | float) -> Any:
        try:
            return await self._commands.execute_command(*arguments)
        except LOST as error:
            raise await self._lost(error) from error
        except exceptions.ResponseError as error:
            raise self._refused(error) from error

    async def count(self, queue: str) -> int:
        """The number of a queue's messages in any state, also if Redis has no declaration of it."""
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

    def blocking_connection(self, timeout_s: float) -> Any:
        """A dedicated connection for a command that blocks on the server for up to `timeout_s`."""
        return self._for_commands(timeout_s + COMMAND_TIMEOUT_S, 1)

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a background task for as long as this store is open."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def declare(self, queue: str, connection: Any = None, *, unused_limit: bool = False) -> None:
        """Declares a queue in Redis as PostgreSQL has it. Pauses and declarations of one queue are serialised.

        A limit unknown to Redis is taken for lost and grants nothing for one lease, unless `unused_limit` says that
        nothing can be in progress under it.
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

    async def send_clocks(self) -> None:
        """Under test: sets the clocks as PostgreSQL has them, if Redis has none."""
        fields = await clock_fields(self.database.engine)
        await self.run(scripts.SET_CLOCK, TEST_CLOCK, *fields)

    async def _mark_as_ours(self) -> None:
        """Raises Unavailable if another database uses this Redis: the two would claim each other's messages."""
        ours = await self.database.installation()
        await self.command("SET", OWNER, ours, "NX")
        owner = ((await self.command("GET", OWNER)) or b"").decode("utf-8", "replace")
        if owner != ours:
            raise Unavailable(
                f"{self._where} holds the queues of another database (installation {owner}, this one is {ours}); set "
                "REDIS_URL another server or database number. If the other one is gone for good, and what it left may "
                f"run here: redis-cli DEL {OWNER}"
            )

    async def _compare_clocks(self) -> None:
        """Warns if the clocks differ: Redis' clock counts delays, PostgreSQL's times are displayed next to them."""
        begun = time.monotonic()
        [redis_us] = await self.run(scripts.CLOCK, TEST_CLOCK)
        postgres: datetime = await self.database.engine.fetchval("select payonce.due_now()")
        ahead_s = int(redis_us) / US - postgres.timestamp()
        # The two reads are apart by up to their own duration.
        if not -SKEW_MAX_S - (time.monotonic() - begun) <= ahead_s <= SKEW_MAX_S:
            log.warning(
                "clocks_differ",
                redis=self._where,
                ahead_of_postgres_s=round(ahead_s, 3),
                remedy="synchronise both machines' clocks by NTP",
            )

    async def _end_tasks(self) -> None:
        """Cancels the background tasks, repeatedly: a connecting driver may swallow a cancellation."""
        for _ in range(CANCELS_MAX):
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=CANCEL_AGAIN_S)

    async def _succeeded(self, queue: str, status: bytes) -> bool:
        """Returns whether the script did its work; if it lacked a declaration or clock, sends that now."""
        if status == b"UNDECLARED":
            if queue in self._seen:
                log.warning("redis_forgot_queue", queue=queue, redis=self._where)
            await self._mark_as_ours()
            await self.declare(queue)
            self.on_data_loss()
        elif status == b"CLOCK":
            await self.send_clocks()
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
        if ConnectionPool.supports(self._url):
            return ConnectionPool(self._url, most=connections, connect_timeout_s=CONNECT_TIMEOUT_S, timeout_s=timeout_s)
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
                # No retries by the driver: a repeated claim would leave the lost one held until its lease ends.
                retry=Retry(NoBackoff(), 0),
                **_without_notifications(),
            )
        except ValueError as error:
            raise Unavailable(f"REDIS_URL is invalid: {self._where}; its form is redis://host:6379/0") from error
        # Overrides the URL: bodies are bytes.
        pool.connection_kwargs["decode_responses"] = False
        return redis.asyncio.Redis.from_pool(pool)

    async def _lost(self, error: BaseException) -> QueueAway:
        """The error for a lost connection. Closes the idle ones: most likely they are lost, too, and each would cost an
        error."""
        with suppress(*LOST):
            await self._client.connection_pool.disconnect(inuse_connections=False)
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return QueueAway(f"{self._where} does not answer: {text[:200]}; is it running, and does REDIS_URL name it?")

    def _refused(self, error: exceptions.ResponseError) -> Exception:
        """A temporary refusal becomes QueueAway: it is no fault of the message. Other errors are returned unchanged."""
        state = getattr(error, "status_code", None) or ""
        if state not in STATES:
            found = STATE.search(str(error))
            state = "" if found is None else found[1]
        if not state:
            return error
        return QueueAway(f"{self._where} refuses commands: {state}, {STATES[state]}")

    async def _check_server(self) -> None:
        try:
            info = await self._client.info()
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
        if info.get("role") in ("slave", "replica"):
            raise Unavailable(f"{self._where} is a replica, which refuses writes; let REDIS_URL name the primary")
        version = tuple(map(int, str(info["redis_version"]).split(".")[:2]))
        if version < OLDEST_VERSION:
            raise Unavailable(
                f"{self._where} is version {info['redis_version']}; payonce needs 6.2 or newer: upgrade the server"
            )
        if info.get("maxmemory") and info.get("maxmemory_policy") != "noeviction":
            raise Unavailable(
                f"{self._where} evicts keys when its memory is full ({info['maxmemory_policy']}), messages "
                "included; set maxmemory-policy to noeviction"
            )
        if info.get("cluster_enabled"):
            raise Unavailable(
                f"{self._where} is part of a cluster, where a script cannot reach all keys of a queue; "
                "use a single server, with Sentinel for failover"
            )


def _without_notifications() -> dict[str, Any]:
    """Turns off maintenance notifications: with them the driver returns connections that the server has closed, and
    after a restart the command on each would fail. Older drivers have none."""
    if not hasattr(redis.asyncio.BlockingConnectionPool, "maint_notifications_enabled"):
        return {}
    from redis.maint_notifications import MaintNotificationsConfig

    return {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}


async def clock_fields(source: Any) -> list[str]:
    """The test clocks in microseconds, as names and values."""
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
    """The URL's host and port for display, without its password."""
    parts = urlsplit(url)
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "Redis at an unreadable address"
    return f"Redis at {parts.hostname or 'an unreadable address'}{port}"
