"""A transaction that several runs share.

Each run writes its part as if it had a transaction of its own. When all of them wait for an answer, the same statements
of several are sent at once; when all have ended, one commit ends them. If anything goes wrong in one of them, all is
undone, and each does its part again, alone.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn, cast

import asyncpg

from payonce.engine import metrics
from payonce.engine.company.apart import Apart
from payonce.engine.company.asking import Fetching, Question, grouped
from payonce.engine.company.deeds import Deed, Item, Result
from payonce.engine.company.locks import Asked, Lock, Locks
from payonce.engine.company.telling import Answer, ask, shape_of
from payonce.engine.database import Connection, Database, Fence, settled_transaction
from payonce.kit.log import get_logger
from payonce.kit.redact import redact

MOST: Final = 64
"""Runs of one transaction: what it has locked, others wait for."""

PATIENCE_S: Final = 5.0
"""For a run that neither asks nor ends. Those beside it are as old as it is, and the limit that ends it would end them
too."""

log = get_logger(__name__)


class Sharing:
    """Where runs of one kind come together: those that come while a transaction is under way make up the next."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[Member] = deque()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def join(self, fence: Fence) -> AsyncIterator[Connection | None]:
        """Given in place of a connection, until the block ends; behind it, what was written is committed. None when the
        fence found nothing to hold: then nothing is written. Raises Apart when it has to be done alone."""
        member = Member()
        self._waiting.append(member)
        if self._task is None:
            self._task = asyncio.create_task(self._take_turns())
        try:
            await member.begun
            connection = cast(Connection, member)
            if not await fence(connection):
                member.leave()
                yield None
                return
            yield connection
            await member.end()
        except Exception as error:
            if member.fail(error):
                # What it saw of the others may be why. Alone it will tell.
                raise Apart(f"{type(error).__name__}: {error}") from error
            raise
        except BaseException as error:
            member.fail(error)
            raise

    async def _take_turns(self) -> None:
        try:
            while self._waiting:
                try:
                    async with self._database.shared.acquire() as connection:
                        # Only now: those that came while there was no connection are in.
                        members = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
                        await _Shared(members).take_place(self._database, connection)
                except Exception as error:
                    self._part(error)
        finally:
            self._task = None
            self._part(Apart("the process stops"))

    def _part(self, error: Exception) -> None:
        """Of those that wait for a connection none comes."""
        while self._waiting:
            self._waiting.popleft().undo(Apart(f"{type(error).__name__}: {error}"))


class Member(Fetching):
    """One run's part of a shared transaction, given to it in place of a connection."""

    def __init__(self) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._shared: _Shared | None = None
        self._asks = False

    def begin(self, shared: "_Shared") -> bool:
        """False when it is gone: it was cancelled while it waited for the transaction."""
        if self.begun.done():
            return False
        self._shared = shared
        self.begun.set_result(None)
        return True

    async def fetch(self, sql: str, *arguments: Any) -> Answer:
        return await self._asked(sql, arguments)

    async def execute(self, sql: str, *arguments: Any) -> str:
        await self.fetch(sql, *arguments)
        return ""

    async def gather(self, deed: Deed[Item, Result], item: Item, lock: Lock = None) -> Result:
        """What several of them do at once in a way of its own, instead of each statement by itself. `lock` is the id of
        the row that it changes, if it does."""
        rows: list[Any] = await self._asked(deed, (item, lock))
        result: Result = rows[0]
        return result

    @property
    def connection(self) -> "Member":
        return self

    def is_in_transaction(self) -> bool:
        return True

    def __getattr__(self, name: str) -> NoReturn:
        raise Apart(f"{name} of a connection is for one run alone")

    async def _asked(self, what: str | Deed[Any, Any], arguments: tuple[Any, ...]) -> Answer:
        assert self._shared is not None
        if self._asks:
            raise asyncpg.InterfaceError("a run of a shared transaction asks one thing after the other")
        question = Question(what, arguments, asyncio.get_running_loop().create_future())
        self._shared.put(self, question)
        self._asks = True
        try:
            return await question.answer
        except asyncio.CancelledError as error:
            # Also where its caller goes on, after a time-out of its own: the statement may have happened or not.
            self.fail(error)
            raise
        finally:
            self._asks = False

    def leave(self) -> None:
        """It has written nothing, and does not wait for the others."""
        assert self._shared is not None
        self._shared.leave(self)
        self.settle()

    async def end(self) -> None:
        """Returns when everything is committed."""
        assert self._shared is not None
        self._shared.leave(self)
        # Who is cancelled here has not ended yet, and undoes what is not being committed.
        await asyncio.shield(self._ended)

    def fail(self, error: BaseException) -> bool:
        """Undoes the transaction of all, unless it has ended for this one. Whether others may have misled it."""
        if self._shared is None or (self._ended.done() and self._ended.exception() is None):
            return False
        self._shared.fail(error)
        return self._shared.has_company

    def settle(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def undo(self, why: Apart) -> None:
        refuse(self.begun, why)
        refuse(self._ended, why)


class _Shared:
    def __init__(self, members: list[Member]) -> None:
        self._members = members
        self._asked: list[Asked] = []
        self._at_work = 0
        """Who neither waits for an answer nor has ended."""
        self._quiet = asyncio.Event()
        self._locks = Locks()
        self._error: Apart | None = None

    @property
    def has_company(self) -> bool:
        return len(self._members) > 1

    async def take_place(self, database: Database, connection: Connection) -> None:
        try:
            async with settled_transaction(database, connection):
                self._begin()
                while await self._all_wait():
                    await self._answer(connection)
            metrics.SHARED_TRANSACTIONS.labels("committed").inc()
            metrics.SHARING_RUNS.labels("committed").inc(len(self._members))
            for member in self._members:
                member.settle()
        except BaseException as error:
            self._undo(error)
            if not isinstance(error, Exception):
                raise
            # Nobody else sees it: alone they have other sessions.
            await database.leave_read_only_sessions(error)

    def _begin(self) -> None:
        self._members = [member for member in self._members if member.begin(self)]
        self._at_work = len(self._members)
        if not self._members:
            self._quiet.set()

    def put(self, member: Member, question: Question) -> None:
        self._check()
        self._asked.append((member, question))
        self._rest()

    def leave(self, member: Member) -> None:
        self._check()
        self._asked += self._locks.let_go(member)
        self._rest()

    def fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = Apart(f"{type(error).__name__}: {error}")
        self._quiet.set()

    def _check(self) -> None:
        if self._error is not None:
            raise Apart(str(self._error))

    def _rest(self) -> None:
        self._at_work -= 1
        if self._at_work == 0:
            self._quiet.set()

    async def _all_wait(self) -> bool:
        """False when all have ended."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._quiet.wait()
        except TimeoutError:
            raise Apart("one run keeps the others waiting") from None
        self._quiet.clear()
        self._check()
        if not self._asked and self._locks.waiting:
            raise Apart("runs wait for rows of each other")
        return bool(self._asked)

    async def _answer(self, connection: Connection) -> None:
        asked, self._asked = self._asked, []
        try:
            answered = await self._answers(connection, asked)
        except BaseException:
            self._asked += asked
            raise
        self._at_work += len(answered)
        if not self._at_work:
            # All of them wait for rows, and nobody is left to come and say so.
            self._quiet.set()
        for question, answer in answered:
            if not question.answer.done():
                question.answer.set_result(answer)

    async def _answers(self, connection: Connection, asked: list[Asked]) -> list[tuple[Question, Answer]]:
        """Of those who may go on."""
        whose = {id(question): member for member, question in asked}
        answered: list[tuple[Question, Answer]] = []
        for sql, questions in grouped([question for _, question in asked]).items():
            if not isinstance(sql, str):
                answered += await self._done(connection, sql, [(whose[id(each)], each) for each in questions])
                continue
            shape = shape_of(sql, len(questions[0].arguments))
            free = [
                each for each in questions
                if not shape.locks_arguments or self._locks.take(whose[id(each)], each, (sql, each.arguments))
            ]  # fmt: skip
            answers = await ask(connection, sql, [question.arguments for question in free]) if free else []
            for question, answer in zip(free, answers, strict=True):
                if self._locks.may_have(whose[id(question)], question, shape, answer):
                    answered.append((question, answer))
        return answered

    async def _done(
        self, connection: Connection, deed: Deed[Any, Any], asked: list[Asked]
    ) -> list[tuple[Question, Answer]]:
        free = []
        for member, question in asked:
            _, lock = question.arguments
            if lock is None or self._locks.take(member, question, lock):
                free.append(question)
        results = await deed(connection, [question.arguments[0] for question in free]) if free else []
        return [(question, [result]) for question, result in zip(free, results, strict=True)]

    def _undo(self, error: BaseException) -> None:
        self.fail(error)
        why = Apart(str(self._error))
        if self.has_company:
            log.info("company_parted", runs=len(self._members), reason=redact(str(why)))
            metrics.SHARED_TRANSACTIONS.labels("parted").inc()
            metrics.SHARING_RUNS.labels("parted").inc(len(self._members))
        for member in self._members:
            member.undo(why)
        for _, question in (*self._asked, *self._locks.waiting):
            refuse(question.answer, why)


def refuse(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # Whoever it was for may be gone, and that is no news.
        future.exception()
