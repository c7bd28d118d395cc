"""The crossings of a child: every statement outside a transaction, every COMMIT, every request to a vendor.

Statements inside a transaction are not crossings: only whether the COMMIT arrived matters.
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
"""Modules that forward other modules' statements and requests: a crossing is named after its originator."""
NOBODY: Final = "-"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

Answer = TypeVar("Answer")

in_hand: ContextVar[str] = ContextVar("in_hand", default=NOBODY)
"""A name of the current message that is the same in every run."""


transaction_id: int | None = None
"""The id of the transaction open at a server crash. For ablations: nothing else in a child may know it."""
_explorer: ChildEnd | None = None
_asleep_s = 0.0


def report_to(explorer: ChildEnd) -> None:
    """Makes every crossing of this process ask the explorer first."""
    global _explorer
    _explorer = explorer
    awake = time.monotonic
    # A stopped process's clock normally advances; here it is stopped for milliseconds only, so the explorer tells it
    # how far to advance.
    time.monotonic = lambda: awake() + _asleep_s


async def learn_types(connection: PlainConnection) -> None:
    """Runs the driver's type queries for new connections once: children are forked with the result. They were a third
    of a point's cost on the server, measured."""
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
    """Calls `act`, unless the explorer ends or stops the process first.

    `act_again` sends something harmless on the same connection: it raises what the loss of a response raises.
    """
    global transaction_id
    assert _explorer is not None, "a crossing before report_to()"
    message, originator = in_hand.get(), site()
    _explorer.send(AtCrossing(message, originator, channel, reads))
    verdict = _explorer.receive()
    assert isinstance(verdict, Verdict), f"expected a verdict, not {verdict}"
    if verdict.stop:
        _stop_self(verdict.asleep_s)
    if verdict.end is CrossingAction.DIE:
        die()
    if verdict.transaction_id is not None:
        transaction_id = verdict.transaction_id
    if verdict.end is CrossingAction.LOSE_ANSWER:
        assert act_again is not None, "only statements can lose their result in a crash of the server"
        # Any result is lost, errors included.
        with suppress(Exception):
            await act()
        _explorer.send(AtCrossing(message, originator, channel, reads, carried_out=True))
        _explorer.receive()
        await act_again()
        raise AssertionError("the server still responds on a connection that its crash should have ended")
    try:
        return await act()
    finally:
        if verdict.end is CrossingAction.DIE_AFTER:
            die()


def die() -> None:
    """Ends the process by SIGKILL: no `finally` runs, no buffer is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def site() -> str:
    """Module and function that the crossing originates from."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_plumbing(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__", "?")).removeprefix("payonce.")
    return f"{module}:{frame.f_code.co_qualname.replace('.<locals>', '')}"


def only_reads(statement: str) -> bool:
    """Whether a statement surely changes nothing. A select may call a function that does, so only known ones count."""
    text = statement.strip().lower()
    if not text.startswith("select") or _LOCKS.search(text):
        return False
    return all(name in _READING or name in _WORDS for name in _CALLS.findall(text))


class WatchedConnection(PlainConnection):
    """Asks the explorer before every statement that writes or reads committed data."""

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
    """Forwards requests to the vendor's simulator in the explorer, which survives this process."""

    def __init__(self, host: str) -> None:
        self._host = host

    async def exchange(self, outgoing: Outgoing, attempt: Attempt) -> None:
        # A client waits for a connection before it sends: a timeout that expired while the process was stopped ends it
        # here. Two turns of the event loop: one lets the timer fire, one delivers the cancellation.
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
        assert isinstance(answer, VendorResponse), f"expected a vendor's response, not {answer}"
        attempt.may_have_left = answer.may_have_left
        if answer.broken is not None:
            raise Broken(answer.broken)
        attempt.begin(answer.status, answer.headers)
        attempt.feed(answer.body)


def _stop_self(asleep_s: float) -> None:
    global _asleep_s
    os.kill(os.getpid(), signal.SIGSTOP)
    _asleep_s += asleep_s


def _is_plumbing(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in PLUMBING)


def _plain(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Plain strings: header names are case-insensitive types here."""
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
