"""Statements outside of transactions, those of many runs at once."""

import asyncio
from typing import Any, Final, NamedTuple

import asyncpg

from payonce.engine.company.telling import Answer, ask, ask_once
from payonce.engine.database import Connection

MOST: Final = 100
"""Askers of one turn: the others wait for the next."""


class Question(NamedTuple):
    what: Any
    """A statement; in a shared transaction also something that is done for many."""
    arguments: tuple[Any, ...]
    answer: "asyncio.Future[Answer]"


class Asking:
    """Sends what many ask in the same moment, or while the last turn was under way, in one go for each statement. Each
    statement commits by itself."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._waiting: list[Question] = []
        self._turn: asyncio.Task[None] | None = None

    async def fetch(self, sql: str, *arguments: Any) -> Answer:
        question = Question(sql, arguments, asyncio.get_running_loop().create_future())
        self._waiting.append(question)
        if self._turn is None:
            self._turn = asyncio.create_task(self._take_turns())
        return await question.answer

    async def fetchrow(self, sql: str, *arguments: Any) -> Any:
        rows = await self.fetch(sql, *arguments)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *arguments: Any) -> Any:
        rows = await self.fetch(sql, *arguments)
        return rows[0][0] if rows else None

    async def _take_turns(self) -> None:
        turn: list[Question] = []
        try:
            while self._waiting:
                try:
                    async with self._pool.acquire() as connection:
                        turn, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                        for sql, questions in grouped(turn).items():
                            await self._put(connection, sql, questions)
                except Exception as error:
                    _fail([*turn, *self._waiting], error)
                    self._waiting = []
        finally:
            self._turn = None
            _fail([*turn, *self._waiting], asyncpg.InterfaceError("the process stops"))

    async def _put(self, connection: Connection, sql: str, questions: list[Question]) -> None:
        try:
            ask_all = ask_once if sql.lstrip().startswith("select") else ask
            answers = await ask_all(connection, sql, [question.arguments for question in questions])
        except Exception as error:
            if len(questions) == 1:
                _fail(questions, error)
                return
            # None of them has happened. Which one it was must not be the others' trouble.
            for question in questions:
                await self._put(connection, sql, [question])
            return
        for question, answer in zip(questions, answers, strict=True):
            if not question.answer.done():
                question.answer.set_result(answer)


def grouped(questions: list[Question]) -> dict[Any, list[Question]]:
    """By statement, the one first that was asked first."""
    found: dict[Any, list[Question]] = {}
    for question in questions:
        found.setdefault(question.what, []).append(question)
    return found


def _fail(questions: list[Question], error: BaseException) -> None:
    for question in questions:
        if not question.answer.done():
            question.answer.set_exception(error)
