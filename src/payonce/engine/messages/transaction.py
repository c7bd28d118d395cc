"""The transactions and readers through which handlers and HTTP routes access the store."""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

import asyncpg

from payonce.engine.audit.log import Severity, note
from payonce.engine.database.commits import settled_transaction, transaction_of
from payonce.engine.database.connections import Connection, Database
from payonce.engine.database.leases import fence
from payonce.engine.ledger import Posting, PostingId, post, post_all
from payonce.engine.messages.contract import plain_payload
from payonce.engine.messages.declarations import pause_loudly
from payonce.engine.messages.model import Lease, Message
from payonce.engine.messages.policy import PayloadT, Policy
from payonce.engine.messages.ports import Feed
from payonce.engine.outbox.entries import put_out
from payonce.engine.outbox.model import EVENTS, wake_name
from payonce.kit.log import get_logger

log = get_logger(__name__)

_ENDS_A_TRANSACTION: Final = re.compile(
    r"\s*+(?:begin|start|commit|end|abort|prepare\s+transaction|rollback(?!\s+(?:work\s+|transaction\s+)?to\b))\b",
    re.IGNORECASE,
)


class NotifyingFeed(Feed, Protocol):
    """A feed that takes part in a transaction; its waiters are notified after the commit."""

    def notify(self, queues: set[str]) -> None: ...


class Reader:
    """Reads by single statements. Inside a transaction of the same database they use its connection and see its writes:
    if each took a connection of its own, many concurrent transactions would wait for each other."""

    def __init__(self, database: Database, pool: asyncpg.Pool | None = None) -> None:
        self._database = database
        self._pool = database.work if pool is None else pool

    async def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        with _one_after_the_other():
            rows: list[Any] = await self._source.fetch(sql, *arguments)
        return rows

    async def fetchrow(self, sql: str, *arguments: Any) -> Any:
        with _one_after_the_other():
            return await self._source.fetchrow(sql, *arguments)

    async def fetchval(self, sql: str, *arguments: Any) -> Any:
        with _one_after_the_other():
            return await self._source.fetchval(sql, *arguments)

    @property
    def _source(self) -> asyncpg.Pool | Connection:
        return transaction_of(self._database) or self._pool


@contextmanager
def _one_after_the_other() -> Iterator[None]:
    """Concurrent reads in one transaction are a bug of the caller, which the driver reports like a lost connection."""
    try:
        yield
    except asyncpg.InterfaceError as error:
        if "another operation is in progress" in str(error):
            raise RuntimeError(
                "two concurrent reads inside one transaction: they share its connection, so await one after the other"
            ) from error
        raise


class Tx:
    """One open transaction: business rows and the messages that follow from them commit together."""

    def __init__(self, connection: Connection, feed: Feed, trace_id: str | None = None) -> None:
        self._connection = connection
        self._feed = feed
        self._trace_id = trace_id
        self.sent_to: set[str] = set()
        self._failed = False
        self._lines: list[tuple[str, str, dict[str, Any]]] = []

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def trace_id(self) -> str | None:
        """The original request, passed on to everything sent from here."""
        return self._trace_id

    async def execute(self, sql: str, *arguments: Any) -> str:
        _refuse_ends(sql)
        with self._noticing_errors():
            answer: str = await self._connection.execute(sql, *arguments)
        return answer

    async def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        _refuse_ends(sql)
        with self._noticing_errors():
            rows: list[Any] = await self._connection.fetch(sql, *arguments)
        return rows

    async def fetchrow(self, sql: str, *arguments: Any) -> Any:
        _refuse_ends(sql)
        with self._noticing_errors():
            return await self._connection.fetchrow(sql, *arguments)

    async def fetchval(self, sql: str, *arguments: Any) -> Any:
        _refuse_ends(sql)
        with self._noticing_errors():
            return await self._connection.fetchval(sql, *arguments)

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        _refuse_ends(sql)
        with self._noticing_errors():
            await self._connection.executemany(sql, rows)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """An error that leaves the block undoes only the block, and is raised again."""
        async with self._connection.transaction():
            failed = self._failed
            try:
                yield
            except BaseException:
                self._failed = failed
                raise

    async def fence(self, lease: Lease) -> None:
        """Raises Stale unless the lease is held; nobody can take it over before this transaction ends."""
        with self._noticing_errors():
            await fence(self._connection, lease)

    async def audit(
        self, location: str, reference: str, text: str, *, actor: str, severity: Severity = Severity.INFO
    ) -> None:
        """Adds an entry to the audit log, if and only if this transaction commits. `location` names the place in the
        service, such as `giftcards.refunds`; `reference` is the id of the object."""
        with self._noticing_errors():
            await note(self._connection, location, reference, text, actor=actor, severity=severity)

    async def post(self, posting: Posting) -> PostingId:
        """Writes to the ledger, if and only if this transaction commits."""
        with self._noticing_errors():
            return await post(self._connection, posting, self._trace_id)

    async def post_all(self, postings: Sequence[Posting]) -> list[PostingId]:
        """Writes several postings in one statement, each checked as if those before it were written."""
        with self._noticing_errors():
            return await post_all(self._connection, postings, self._trace_id)

    async def pause(self, queue: str, reason: str, by: str) -> bool:
        """Pauses a queue that cannot continue until a person has intervened, if and only if this transaction commits.
        False when it is already paused."""
        with self._noticing_errors():
            return await pause_loudly(self._connection, queue, reason, by)

    def log(self, event: str, *, level: str = "info", **values: object) -> None:
        """A line for the process log, written if and only if this transaction commits."""
        self._lines.append((level, event, {**values, "trace_id": self._trace_id}))

    def write_lines(self) -> None:
        """To be called after the commit."""
        lines, self._lines = self._lines, []
        for level, event, values in lines:
            getattr(log, level)(event, **values)

    async def check_alive(self) -> None:
        """PostgreSQL answers the COMMIT of a failed transaction with a silent ROLLBACK. A caller that swallowed the
        error must get it instead of believing that something was written."""
        if self._failed:
            await self._connection.execute("select")

    @contextmanager
    def _noticing_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._failed = True
            raise

    async def send(
        self,
        to: Policy[PayloadT],
        payload: PayloadT,
        *,
        action: str = "",
        key: str | None = None,
        correlation_id: str | None = None,
        trace_id: str | None = None,
        lane: str | None = None,
        delay_s: float = 0.0,
        not_before: datetime | None = None,
        max_attempts: int | None = None,
    ) -> UUID:
        """Puts a message that exists if and only if this transaction commits."""
        message = Message(
            queue=to.queue,
            action=action,
            payload=plain_payload(payload),
            idempotency_key=key,
            correlation_id=correlation_id,
            trace_id=trace_id or self._trace_id,
            lane=lane,
            delay_s=delay_s,
            not_before=not_before,
            max_attempts=max_attempts,
        )
        [message_id] = await self.send_all([message])
        return message_id

    async def send_all(self, messages: Sequence[Message]) -> list[UUID]:
        """Puts many messages in a few statements, if and only if this transaction commits."""
        with self._noticing_errors():
            ids = await self._feed.put(messages, within=self._connection)
        self.sent_to.update(message.queue for message in messages)
        return ids

    async def publish(
        self,
        topic: str,
        payload: dict[str, Any],
        *,
        to: str = EVENTS,
        action: str = "",
        key: str | None = None,
        correlation_id: str | None = None,
        trace_id: str | None = None,
        lane: str | None = None,
        delay_s: float = 0.0,
        not_before: datetime | None = None,
    ) -> UUID:
        """Publishes an event through the relay `to`, at least once, if and only if this transaction commits. Receivers
        recognise repetitions by the id."""
        message = Message(
            queue=topic,
            action=action,
            payload=payload,
            idempotency_key=key,
            correlation_id=correlation_id,
            trace_id=trace_id or self._trace_id,
            lane=lane,
            delay_s=delay_s,
            not_before=not_before,
        )
        with self._noticing_errors():
            await put_out(self._connection, to, [message])
        self.sent_to.add(wake_name(to))
        return message.id


def _refuse_ends(sql: str) -> None:
    """COMMIT would acknowledge the message of a run that then fails."""
    if _ENDS_A_TRANSACTION.match(sql):
        raise RuntimeError(
            f"{sql.strip()!r} inside a transaction: leave BEGIN, COMMIT and ROLLBACK to the engine; use a savepoint to "
            "undo a part, and raise an error to undo all"
        )


@asynccontextmanager
async def begin(database: Database, feed: NotifyingFeed, trace_id: str | None = None) -> AsyncIterator[Tx]:
    """A transaction outside any run: an HTTP request, a schedule."""
    async with database.work.acquire() as connection, settled_transaction(database, connection):
        tx = Tx(connection, feed, trace_id)
        yield tx
    feed.notify(tx.sent_to)
    tx.write_lines()
