"""Each safeguard of runs in company is taken out, and a test must miss it."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

from payonce.engine.company import asking, lateral, locks, sharing
from payonce.engine.company.locks import Locks
from payonce.engine.company.sharing import Member, _Shared
from payonce.engine.database import PlainConnection
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage
from tests.ablations import Ablations, cases, missed, patched
from tests.engine.company import test_asking, test_cancelling, test_lateral, test_locks, test_runs, test_sharing

SOON_S = 1.0
"""What waits for ever without its safeguard."""


settle_within = PostgresQueue.settle_within


async def settled_anyway(self: PostgresQueue, connection: Any, settlement: Any) -> str:
    return await settle_within(self, connection, settlement) or "1"


def holds_everything(self: Locks, run: object, lock: object) -> bool:
    return True


def nothing_wrong(self: _Shared) -> None:
    return None


def not_told(self: Member, error: BaseException) -> bool:
    return False


def forgets_who_was_misled(self: Member, error: BaseException) -> bool:
    """As it was: whoever speaks behind the end is taken at its word."""
    if self._shared is None or self._ended.done():
        return False
    self._shared.fail(error)
    return self._shared.has_company


def counts_the_gone(self: _Shared) -> None:
    self._at_work = len(self._members)
    for member in self._members:
        member.begin(self)


@contextmanager
def the_committed_are_not_waited_for() -> Iterator[None]:
    async def end(self: Member) -> None:
        assert self._shared is not None
        self._shared.leave(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Member, "end", end)
        yield


@contextmanager
def a_part_that_is_cancelled_stays() -> Iterator[None]:
    async def end(self: Member) -> None:
        assert self._shared is not None
        self._shared.leave(self)
        await self._ended

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Member, "end", end)
        patch.setattr(Member, "fail", forgets_who_was_misled)
        yield


def soon(check: Any, *arguments: Any) -> Any:
    async def bounded(stage: OpenStage) -> None:
        try:
            async with asyncio.timeout(SOON_S):
                await check(stage, *arguments)
        except TimeoutError:
            raise AssertionError("it waits for ever") from None

    return bounded


def one_for_all(shape: Any, row: Any) -> Any:
    return row.get("id", shape.table)


async def changes_nothing(*_: Any) -> bool:
    return False


@contextmanager
def known_anew(target: Any, name: str, replacement: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lateral, "_known", {})
        patch.setattr(target, name, replacement)
        yield


ABLATIONS: Ablations = {
    "the locks between runs": (
        patched(Locks, "_holds", holds_everything),
        [
            test_locks.test_no_update_is_lost_between_those_who_lock_what_they_read,
            test_locks.test_nor_where_the_row_does_not_say_who_it_is,
            test_locks.test_a_change_of_what_another_has_parts_them,
            test_locks.test_locks_by_arguments_are_waited_for,
            test_locks.test_what_one_changed_another_waits_for,
        ],
    ),
    "one way of locking a table": (
        patched(Locks, "_lock_of", lambda self, shape, row: one_for_all(shape, row)),
        [test_locks.test_nor_where_some_say_who_it_is_and_some_do_not],
    ),
    "the meeting of those who lock and those who change": (
        patched(locks, "_meet", lambda *_: None),
        [test_locks.test_a_change_that_does_not_say_of_what_parts_them_too],
    ),
    "the fence": (
        patched(PostgresQueue, "settle_within", settled_anyway),
        [test_runs.test_a_lost_lease_writes_nothing_and_troubles_nobody],
    ),
    "the undoing of all": (
        patched(_Shared, "_check", nothing_wrong),
        [soon(test_sharing.test_one_that_raises_undoes_all_and_each_does_it_alone, RuntimeError("oh"))],
    ),
    "the telling of an error": (
        patched(Member, "fail", not_told),
        [soon(test_sharing.test_one_that_raises_undoes_all_and_each_does_it_alone, RuntimeError("oh"))],
    ),
    "doubt about what was undone": (
        patched(Member, "fail", forgets_who_was_misled),
        [test_sharing.test_what_one_made_of_the_others_is_not_taken_for_its_own],
    ),
    "the wait for the commit": (
        the_committed_are_not_waited_for,
        [test_sharing.test_nobody_returns_before_the_commit],
    ),
    "the shield of an end": (
        a_part_that_is_cancelled_stays,
        [test_cancelling.test_one_that_is_cancelled_behind_its_part_undoes_all_while_others_are_at_it],
    ),
    "the count of who is there": (
        patched(_Shared, "_begin", counts_the_gone),
        [soon(test_cancelling.test_one_that_is_cancelled_before_it_began_is_not_waited_for)],
    ),
    "the most runs of one": (
        patched(sharing, "MOST", 10_000),
        [test_sharing.test_more_than_fit_into_one_make_up_the_next],
    ),
    "the look at what is called": (
        lambda: known_anew(lateral, "_may_change", changes_nothing),
        [
            test_lateral.test_what_changes_something_is_done_for_one_after_the_other,
            test_lateral.test_it_is_also_done_for_each_of_those_who_ask_the_same,
        ],
    ),
    "the look at strange strings and names": (
        lambda: known_anew(lateral, "_STRANGE", re.compile("(?!)")),
        [
            test_lateral.test_what_looks_like_an_argument_and_is_none_stays,
            test_lateral.test_what_changes_something_is_done_for_one_after_the_other,
        ],
    ),
    "the way of those that are not sent at once": (
        patched(asking, "is_sent_at_once", lambda *_: True),
        [test_asking.test_nor_are_they_done_again_where_each_is_sent_by_itself],
    ),
    "the transaction of a trial": (
        lambda: known_anew(PlainConnection, "is_in_transaction", lambda self: False),
        [test_lateral.test_what_has_no_form_is_answered_all_the_same],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_a_missing_safeguard_is_noticed(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage, asyncpg.InFailedSQLTransactionError)
