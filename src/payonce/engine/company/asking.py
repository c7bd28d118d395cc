"""Statements outside of transactions, those of many runs at once."""

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Final, NamedTuple

import asyncpg

from payonce.engine.company.deeds import Deed, Item, Result
from payonce.engine.company.telling import Answer, ask, ask_once, is_sent_at_once
from payonce.engine.database import Connection

MOST: Final = 100
"""Askers of one turn: the others wait for the next."""


class Question(NamedTuple):
    what: str | Deed[Any, Any]
    """A statement, or something that is done for many."""
    arguments: tuple[Any, ...]
    answer: "asyncio.Future[Answer]"


class Fetching(ABC):
    """What is asked as a connection is."""

    @abstractmethod
    async def fetch(self, sql: str, *arguments: Any) -> Answer: ...

    async def fetchrow(self, sql: str, *arguments: Any) -> Any:
        rows = await self.fetch(sql, *arguments)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *arguments: Any) -> Any:
        rows = await self.fetch(sql, *arguments)
        return rows[0][0] if rows else None


class Asking(Fetching):
    """Sends what many ask in the same moment, or while the last turn was under way, in one go for each statement. Each
    statement commits by itself."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._waiting: list[Question] = []
        self._turn: asyncio.Task[None] | None = None

    async def fetch(self, sql: str, *arguments: Any) -> Answer:
        return await self._asked(Question(sql, arguments, asyncio.get_running_loop().create_future()))

    async def gather(self, deed: Deed[Item, Result], item: Item) -> Result:
        """What many do at once in a way of its own, in a transaction of its own."""
        question = Question(deed, (item,), asyncio.get_running_loop().create_future())
        [result] = await self._asked(question)
        done: Result = result
        return done

    async def _asked(self, question: Question) -> Answer:
        self._waiting.append(question)
        if self._turn is None:
            self._turn = asyncio.create_task(self._take_turns())
        return await question.answer

    async def _take_turns(self) -> None:
        turn: list[Question] = []
        try:
            while self._waiting:
                try:
                    async with self._pool.acquire() as connection:
                        turn, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                        for what, questions in grouped(turn).items():
                            await self._put(connection, what, questions)
                except Exception as error:
                    _fail([*turn, *self._waiting], error)
                    self._waiting = []
        finally:
            self._turn = None
            _fail([*turn, *self._waiting], asyncpg.InterfaceError("the process stops"))

    async def _put(self, connection: Connection, what: str | Deed[Any, Any], questions: list[Question]) -> None:
        askers = [question.arguments for question in questions]
        if len(askers) > 1 and isinstance(what, str) and not is_sent_at_once(what, len(askers[0])):
            # Those before one that fails have happened, and must not be asked for again.
            await self._put_each(connection, what, questions)
            return
        try:
            if not isinstance(what, str):
                answers = [[result] for result in await what(connection, [item for (item,) in askers])]
            elif what.lstrip().startswith("select"):
                answers = await ask_once(connection, what, askers)
            else:
                answers = await ask(connection, what, askers)
        except Exception as error:
            if len(questions) == 1:
                _fail(questions, error)
                return
            # None of them has happened. Which one it was must not be the others' trouble.
            await self._put_each(connection, what, questions)
            return
        for question, answer in zip(questions, answers, strict=True):
            if not question.answer.done():
                question.answer.set_result(answer)

    async def _put_each(self, connection: Connection, what: str | Deed[Any, Any], questions: list[Question]) -> None:
        for question in questions:
            await self._put(connection, what, [question])


def grouped(questions: list[Question]) -> dict[str | Deed[Any, Any], list[Question]]:
    """By statement, the one first that was asked first."""
    found: dict[str | Deed[Any, Any], list[Question]] = {}
    for question in questions:
        found.setdefault(question.what, []).append(question)
    return found


def _fail(questions: list[Question], error: BaseException) -> None:
    for question in questions:
        if not question.answer.done():
            question.answer.set_exception(error)
