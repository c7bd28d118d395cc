"""Runs in company under the explorer's eyes: one thing after the other, and each crossing named for all it is made for.

What goes to the store from several runs at once would come back in an order that nobody decides. So one connection at
a time has its turn, a transaction from its beginning to its end, and nothing is sent before everything else in the
process has come to rest. Nothing is left out by this: what happens inside a transaction counts with its COMMIT.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import asyncpg

from payonce.engine.company import asking, sharing
from payonce.engine.company.asking import Asking, Question
from payonce.engine.company.sharing import Member
from payonce.testing.crash import crossings
from payonce.testing.crash.crossings import WatchedConnection, in_hand, site

SEVERAL: Final = "+"
_ENDS: Final = ("COMMIT", "ROLLBACK")


class NamedQuestion(Question):
    """One that knows whose it is."""

    whose: tuple[str, str]

    def __new__(cls, *fields: Any) -> "NamedQuestion":
        question = super().__new__(cls, *fields)
        question.whose = in_hand.get(), site()
        return question


class NamedMember(Member):
    def __init__(self) -> None:
        super().__init__()
        self.whose = in_hand.get(), site()


def name_who_shares() -> None:
    """From now on a crossing that is made for several runs has all their names."""
    replaced: Any = (asking, sharing)
    for module in replaced:
        module.Question = NamedQuestion
    replaced[1].Member = NamedMember
    crossings.whose = _of_those_who_share


def _of_those_who_share() -> tuple[str, str] | None:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code is _ASKED:
            return _together(question.whose for question in frame.f_locals["questions"])
        if frame.f_code is _SHARED:
            return _together(member.whose for member in frame.f_locals["self"]._members)
        frame = frame.f_back
    return None


_ASKED: Final = Asking._put.__code__
_SHARED: Final = sharing._Shared.take_place.__code__


def _together(names: Iterable[tuple[str, str]]) -> tuple[str, str]:
    messages, sites = zip(*names, strict=True)
    return SEVERAL.join(sorted(set(messages))), SEVERAL.join(sorted(set(sites)))


class InTurn(WatchedConnection):
    """A connection that waits for its turn."""

    has_turn = False

    async def _carry(self, statement: str, act: Callable[[], Awaitable[Any]]) -> Any:
        if not self.has_turn:
            await _turn().acquire()
            self.has_turn = True
        word = statement.strip().upper().rstrip("; ")
        goes_on = self.is_in_transaction() or word.startswith("BEGIN")
        try:
            await _rest()
            return await super()._carry(statement, act)
        except BaseException:
            goes_on = self.is_in_transaction()
            raise
        finally:
            if word in _ENDS or not goes_on:
                self.has_turn = False
                _turn().release()


async def open_all(pool: asyncpg.Pool, count: int) -> None:
    """Connections, before anything counts: one that is opened on the way would come when it likes."""
    held = [await pool.acquire() for _ in range(count)]
    for connection in held:
        await pool.release(connection)


_turns: list[asyncio.Lock] = []


def _turn() -> asyncio.Lock:
    if not _turns:
        _turns.append(asyncio.Lock())
    return _turns[0]


async def _rest() -> None:
    """Returns when nothing else in this process can go on by itself."""
    loop: Any = asyncio.get_running_loop()
    while loop._ready:  # noqa: ASYNC110 - what it waits for is that nothing happens
        await asyncio.sleep(0)
