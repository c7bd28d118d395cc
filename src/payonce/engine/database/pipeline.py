"""Statements that share the round trip of the next statement.

The driver waits for the answer to every statement, which PostgreSQL does not require: it accepts messages one after the
other and answers in order. So a statement whose answer nobody reads is kept as bytes and written to the connection just
before the driver writes its next statement. The driver skips its answer and reports its error as that of its own
statement; after an error the server skips what follows.
"""

import struct
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import cached_property, partial
from typing import Any, Final

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement

from payonce.kit.outcomes import Stale

STALE_SQLSTATE: Final = "PO001"
"""Raised by payonce.refuse_stale."""
_NOTHING: Final = "select where false"
_NULL: Final = struct.pack("!i", -1)
_EXECUTE: Final = b"E" + struct.pack("!iBi", 9, 0, 0)
"""Executes the unnamed portal without a row limit."""

Executor = Callable[[Any, float | None], Awaitable[Any]]


class _Begin(Enum):
    """A BEGIN whose answer is not known yet."""

    WAITS = "in front of the statements sent ahead"
    SENT = "sent, and in flight, failed, or cancelled with the following statement"


class PipeliningConnection(asyncpg.Connection):
    """A connection on which BEGIN and statements sent ahead cost no round trip."""

    _begins_late = False
    _ahead = b""
    _begin: _Begin | None = None

    def begin_late(self) -> None:
        """Sends the next BEGIN ahead of the first statement of its transaction."""
        self._begins_late = True

    async def send_ahead(self, query: str, *values: object) -> None:
        """Sends the statement in the round trip of the next one, which is not executed if this one fails. It must
        return no rows and raise if anything is wrong."""
        self._ahead += _bind_and_execute(await self.prepare_ahead(query), values)

    async def prepare_ahead(self, query: str) -> bytes:
        """The statement's name in this session. It is prepared once, preferably outside a transaction: the driver
        prepares without a Sync, and the server does not see a client that then stops as idle."""
        if query not in self._statements_ahead:
            # Runs before the waiting statements are sent, so that errors of the two are not confused.
            ahead, self._ahead = self._ahead, b""
            try:
                statement = await self.prepare(query)
            finally:
                self._ahead = ahead
            self._statements_ahead[query] = statement.get_name().encode(), statement
        return self._statements_ahead[query][0]

    def is_in_transaction(self) -> bool:
        """Also true while the answer to BEGIN is not known, and while the server has not answered a cancelled
        statement."""
        if self.is_closed():
            return False
        driver: Any = self
        return bool(self._ahead or self._begin) or super().is_in_transaction() or driver._protocol._is_cancelling()

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:  # noqa: ASYNC109 - the driver's
        if query == "BEGIN;" and self._begins_late:
            self._begins_late = False
            await self.send_ahead("begin")
            self._begin = _Begin.WAITS
            return "BEGIN"
        if query == "ROLLBACK;" and self._forget_ahead():
            return "ROLLBACK"
        if (self._ahead or self._begin) and not args:
            if query == "COMMIT;" and self._begin is not _Begin.SENT:
                await super().fetch("commit", timeout=timeout)
                return "COMMIT"
            # The driver sends it as a text of possibly several statements, for which the server does not skip after an
            # error.
            await self._catch_up()
        answer = await super().execute(query, *args, timeout=timeout)
        if query == "COMMIT;" and answer == "ROLLBACK":
            raise asyncpg.InFailedSQLTransactionError(
                "nothing was committed: a statement of the transaction failed or was cancelled, and its error "
                "was swallowed; let the error pass, or put the statement into a savepoint"
            )
        return answer

    def _forget_ahead(self) -> bool:
        """Whether the server has seen nothing of the transaction, so that forgetting it suffices."""
        waited = self._begin is _Begin.WAITS
        if self._ahead:
            driver: Any = self
            # Refuses while another task prepares the first statement, which would then be executed without a
            # transaction.
            with driver._stmt_exclusive_section:
                self._ahead = b""
        self._begin = None
        return waited

    async def _executemany(self, *args: Any, **options: Any) -> Any:
        # For no rows the driver sends nothing, and for values that it refuses it sends ROLLBACK: BEGIN must be answered
        # before.
        await self._catch_up()
        driver: Any = super()
        return await driver._executemany(*args, **options)

    async def _copy_in(self, *args: Any, **options: Any) -> Any:
        await self._catch_up()
        driver: Any = super()
        return await driver._copy_in(*args, **options)

    async def _copy_out(self, *args: Any, **options: Any) -> Any:
        await self._catch_up()
        driver: Any = super()
        return await driver._copy_out(*args, **options)

    async def _get_statement(self, query: str, timeout: float | None, **options: Any) -> Any:  # noqa: ASYNC109 - the driver's
        if options.get("named"):
            # Cursors and prepared statements reach the server by other ways than _do_execute.
            await self._catch_up()
        driver: Any = super()
        return await driver._get_statement(query, timeout, **options)

    async def _do_execute(self, query: str, executor: Executor, *args: Any, **options: Any) -> Any:
        driver: Any = super()
        if self._begin is _Begin.SENT:
            await self._hear_begin()
        if not self._ahead:
            return await driver._do_execute(query, executor, *args, **options)
        try:
            return await driver._do_execute(query, partial(self._execute_behind, executor), *args, **options)
        except asyncpg.PostgresError:
            if not self._ahead or query == _NOTHING:
                raise
        except BaseException:
            if self._ahead:
                # Abandoned while it was prepared. Inside the transaction that would have ended the transaction.
                self.terminate()
            raise
        # It could not be prepared, and BEGIN has not been sent. It must fail inside the transaction, and with it.
        await self._catch_up()
        return await driver._do_execute(query, executor, *args, **options)

    async def _execute_behind(self, executor: Executor, statement: Any, timeout: float | None) -> Any:  # noqa: ASYNC109
        if not self._ahead:
            return await executor(statement, timeout)
        driver: Any = self
        # As the driver does before it sends a statement: answers that it does not expect yet are errors to it.
        timeout = await self._wait_for_cancellation(timeout)
        ahead, self._ahead = self._ahead, b""
        if self._begin is not None:
            self._begin = _Begin.SENT
        protocol = driver._protocol
        sent = protocol.queries_count
        try:
            driver._transport.write(ahead)
            answer = await executor(statement, timeout)
            self._begin = None
            return answer
        except asyncpg.InvalidSQLStatementNameError:
            # DISCARD or DEALLOCATE removed the prepared statements.
            self._statements_ahead.clear()
            raise
        except asyncpg.PostgresError as error:
            if error.sqlstate == STALE_SQLSTATE:
                raise Stale(str(error)) from None
            raise
        finally:
            if protocol.queries_count == sent:
                # The driver refused the values and sent nothing. After an error of a statement sent ahead, the server
                # would skip everything up to the end of a statement that never arrives.
                self.terminate()

    async def _catch_up(self) -> None:
        if self._ahead or self._begin is _Begin.SENT:
            await super().fetch(_NOTHING)

    async def _hear_begin(self) -> None:
        """Raises if the server is not in a transaction. After an error of BEGIN itself it is idle: it would execute the
        next statement without a transaction and answer COMMIT with a mere warning."""
        driver: Any = self
        await self._wait_for_cancellation(driver._protocol._get_timeout(None))
        if not super().is_in_transaction():
            self.terminate()
            raise asyncpg.InterfaceError(
                "the transaction did not begin: BEGIN failed or was cancelled with the first statement, and that "
                "error was swallowed; nothing was written, so let the error pass and run it again"
            )
        self._begin = None

    async def _wait_for_cancellation(self, timeout: float | None) -> float | None:  # noqa: ASYNC109 - the driver's
        """Waits until the server has answered a cancelled statement; returns the remaining time."""
        driver: Any = self
        if not self.is_closed():
            timeout = await driver._protocol._wait_for_cancellation(timeout)
        if self.is_closed():
            raise asyncpg.InterfaceError("connection is closed")
        return timeout

    @cached_property
    def _statements_ahead(self) -> dict[str, tuple[bytes, PreparedStatement]]:
        """Prepared names by text, for the lifetime of the session. The driver closes statements without a reference."""
        return {}


def _bind_and_execute(name: bytes, values: tuple[object, ...]) -> bytes:
    """The messages that bind the values, as text, to a prepared statement and execute it."""
    parts = [b"\0", name, b"\0", struct.pack("!HH", 0, len(values))]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            text = str(value).encode()
            parts += struct.pack("!i", len(text)), text
    parts.append(b"\0\0")
    bind = b"".join(parts)
    return b"B" + struct.pack("!i", len(bind) + 4) + bind + _EXECUTE
