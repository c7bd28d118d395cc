"""Where a child can be struck: every statement outside a transaction, every COMMIT, every request to a vendor.

Statements inside a transaction are none: whatever happens there, what counts is whether its COMMIT arrived.
"""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from payonce.engine.database.sessions import PlainConnection
from payonce.kit.http.failures import Broken
from payonce.kit.http.response import Attempt
from payonce.kit.http.transport import Outgoing
from payonce.testing.crash.wire import (
    AtCrossing,
    Channel,
    ChildEnd,
    CrossingAction,
    VendorRequest,
    VendorResponse,
    Verdict,
)

PLUMBING: Final = (
    "asyncio",
    "asyncpg",
    "contextlib",
    "functools",
    "payonce.engine.database.commits",
    "payonce.engine.database.connections",
    "payonce.engine.messages.transaction",
    "payonce.queues.redis.connections",
    "payonce.queues.redis.store",
    "redis",
    "payonce.testing.crash.redis_crossings",
    "payonce.kit",
    "payonce.testing.crash.child",
    "payonce.testing.crash.crossings",
    "google",
    "grpc",
    "payonce.testing.crash.on_cloudtasks",
    "payonce.testing.crash.tasks_wire",
    "payonce.engine.effects.writes",
)
"""Modules that carry other modules' statements and requests: a crossing is named for whoever wanted it."""
NOBODY: Final = "-"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

Answer = TypeVar("Answer")

in_hand: ContextVar[str] = ContextVar("in_hand", default=NOBODY)
"""The message that is being worked on, by a name that is the same in every run."""


transaction_id: int | None = None
"""Of the transaction that was open when the server crashed. For ablations: nothing else in a child may know it."""
_explorer: ChildEnd | None = None
_asleep_s = 0.0


def report_to(explorer: ChildEnd) -> None:
    """From now on every crossing of this process asks the explorer first."""
    global _explorer
    _explorer = explorer
    awake = time.monotonic
    # A stopped process finds its own clock gone on when it wakes; here it slept for milliseconds, and is told how long.
    time.monotonic = lambda: awake() + _asleep_s


async def learn_types(connection: PlainConnection) -> None:
    """What a driver asks the server on every new connection, asked once: children are forked with the answer.
    A third of what a point cost the server, measured."""
    rows = await connection.fetch(
        "select oid from pg_type where typcategory = 'A' and typnamespace = 'pg_catalog'::regnamespace"
    )
    await connection._introspect_types([row["oid"] for row in rows], None)


async def cross(
    channel: Channel,
    reads: bool,
    act: Callable[[], Awaitable[Answer]],
    act_again: Callable[[], Awaitable[object]] | None = None,
) -> Answer:
    """Acts, unless the explorer wants the process to end or to stand still first.

    `act_again` sends something without effect on the same connection: it raises what the loss of an answer raises.
    """
    global transaction_id
    assert _explorer is not None, "a crossing before report_to()"
    message, wanted_by = in_hand.get(), site()
    _explorer.send(AtCrossing(message, wanted_by, channel, reads))
    verdict = _explorer.receive()
    assert isinstance(verdict, Verdict), f"a verdict was wanted, not {verdict}"
    if verdict.stop:
        _stand_still(verdict.asleep_s)
    if verdict.end is CrossingAction.DIE:
        die()
    if verdict.transaction_id is not None:
        transaction_id = verdict.transaction_id
    if verdict.end is CrossingAction.LOSE_ANSWER:
        assert act_again is not None, "only what goes to the store can lose its answer in a crash of the server"
        # Whatever the answer is: an error is lost as well.
        with suppress(Exception):
            await act()
        _explorer.send(AtCrossing(message, wanted_by, channel, reads, carried_out=True))
        _explorer.receive()
        await act_again()
        raise AssertionError("the server still answers on a connection that its crash should have ended")
    try:
        return await act()
    finally:
        if verdict.end is CrossingAction.DIE_AFTER:
            die()


def die() -> None:
    """No `finally` runs after this, no buffer is flushed: a crash."""
    os.kill(os.getpid(), signal.SIGKILL)


def site() -> str:
    """Module and function of whoever wanted the crossing."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_plumbing(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__", "?")).removeprefix("payonce.")
    return f"{module}:{frame.f_code.co_qualname.replace('.<locals>', '')}"


def only_reads(statement: str) -> bool:
    """Whether it surely changes nothing. A select may call a function that does, so only known ones count."""
    text = statement.strip().lower()
    if not text.startswith("select") or _LOCKS.search(text):
        return False
    return all(name in _READING or name in _WORDS for name in _CALLS.findall(text))


class WatchedConnection(PlainConnection):
    """Asks before everything that changes or shows what is committed."""

    async def execute(self, query: str, *arguments: Any, **options: Any) -> Any:
        return await self._carry(query, lambda: PlainConnection.execute(self, query, *arguments, **options))

    async def executemany(self, command: str, *arguments: Any, **options: Any) -> Any:
        return await self._carry(command, lambda: PlainConnection.executemany(self, command, *arguments, **options))

    async def fetch(self, query: str, *arguments: Any, **options: Any) -> Any:
        return await self._carry(query, lambda: PlainConnection.fetch(self, query, *arguments, **options))

    async def fetchmany(self, query: str, *arguments: Any, **options: Any) -> Any:
        return await self._carry(query, lambda: PlainConnection.fetchmany(self, query, *arguments, **options))

    async def fetchval(self, query: str, *arguments: Any, **options: Any) -> Any:
        return await self._carry(query, lambda: PlainConnection.fetchval(self, query, *arguments, **options))

    async def fetchrow(self, query: str, *arguments: Any, **options: Any) -> Any:
        return await self._carry(query, lambda: PlainConnection.fetchrow(self, query, *arguments, **options))

    async def copy_records_to_table(self, table_name: str, **options: Any) -> Any:
        return await self._carry("copy", lambda: PlainConnection.copy_records_to_table(self, table_name, **options))

    async def _carry(self, statement: str, act: Callable[[], Awaitable[Any]]) -> Any:
        word = statement.lstrip()[:8].upper().rstrip("; ")
        if word.startswith("BEGIN") or (self.is_in_transaction() and word != "COMMIT"):
            return await act()
        return await cross(Channel.STORE, only_reads(statement), act, lambda: PlainConnection.execute(self, "select 1"))


class ForwardingTransport:
    """Carries requests to the vendor's simulator in the explorer, which lives on when this process is killed."""

    def __init__(self, host: str) -> None:
        self._host = host

    async def exchange(self, outgoing: Outgoing, attempt: Attempt) -> None:
        # A client waits for a connection before it sends: what ran out while the process stood still ends it here.
        # Two turns of the loop: the first lets a timer fire, the second lets its cancellation arrive.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await cross(Channel.VENDOR, outgoing.method in SAFE_METHODS, lambda: self._send(outgoing, attempt))

    async def close(self) -> None:
        return None

    async def _send(self, outgoing: Outgoing, attempt: Attempt) -> None:
        assert _explorer is not None
        target = outgoing.target
        url = f"{target.origin}{target.path}" + (f"?{target.query}" if target.query else "")
        _explorer.send(VendorRequest(self._host, outgoing.method, url, _plain(outgoing.headers), outgoing.body))
        answer = _explorer.receive()
        assert isinstance(answer, VendorResponse), f"a vendor's answer was wanted, not {answer}"
        attempt.may_have_left = answer.may_have_left
        if answer.broken is not None:
            raise Broken(answer.broken)
        attempt.begin(answer.status, answer.headers)
        attempt.feed(answer.body)


def _stand_still(asleep_s: float) -> None:
    global _asleep_s
    os.kill(os.getpid(), signal.SIGSTOP)
    _asleep_s += asleep_s


def _is_plumbing(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in PLUMBING)


def _plain(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """As plain text, which names of headers are not while they are compared without regard to case."""
    return [(str(name), str(value)) for name, value in headers]


_LOCKS: Final = re.compile(r"\bfor\s+(no\s+key\s+update|update|key\s+share|share)\b")
_CALLS: Final = re.compile(r"([a-z_][a-z0-9_.]*)\s*\(")
_WORDS: Final = frozenset(
    {"select", "from", "where", "and", "or", "not", "in", "any", "all", "exists", "over", "values"} | {"lateral"}
)
_READING: Final = frozenset(
    {"payonce.due_now", "payonce.lease_now", "array", "array_agg", "coalesce", "count", "date_trunc", "extract"}
    | {"generate_series", "greatest", "least", "max", "min", "sum", "to_char", "to_regclass", "unnest"}
)
