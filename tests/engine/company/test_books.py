"""The books of runs in company: one call for all that post in the same moment; a refusal is only for its own run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from payonce.engine.database import Connection
from payonce.engine.ledger import Account, Overdrawn, Posting, guard, post
from payonce.engine.transaction import Tx
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage
from tests.conformance.wire import on_the_wire
from tests.engine.company.company_stage import Body, Table, counted, notes, noting, open_table
from tests.engine.ledger_books import CLIENTS, ETH, WALLET, counts, findings, held, posted, transfer

BUDGET = "budgets/marketing"


@contextmanager
def calls() -> Iterator[list[str]]:
    """Of the books, as they go out."""
    sent: list[str] = []

    def see(statement: str) -> str:
        if "payonce.post" in statement:
            sent.append("all" if "payonce.post_all(" in statement else "one")
        return statement

    with on_the_wire(see):
        yield sent


def booking(posting: Posting, note: str | None = None) -> Body:
    async def book(connection: Connection) -> int:
        if note is not None:
            await noting(note)(connection)
        return await post(connection, posting)

    return book


async def guarded(table: Table) -> None:
    async with table.s.database.transaction() as connection:
        await guard(connection, Account(BUDGET, ETH))


async def test_those_who_post_in_the_same_moment_are_one_call(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        with calls() as sent, counted() as count:
            ids = await table.together(*(booking(transfer(f"{number}", number)) for number in range(1, 10)))
        assert sent == ["all"]
        assert (count.committed, count.parted) == (1, 0)
        keys = await table.s.owner.fetch("select id, key from payonce.postings")
        assert {row["id"]: row["key"] for row in keys} == {
            posting_id: f"{number}" for number, posting_id in enumerate(ids, 1)
        }
        assert await held(table.s, WALLET) == sum(range(10))
        assert await findings(table.s) == {}


async def test_one_that_posts_alone_takes_the_way_for_one(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        with calls() as sent:
            await table.together(booking(transfer("a", 1)), noting("b"))
        assert sent == ["one"]
        assert table.alone == []


async def test_each_has_the_trace_of_its_own_run(stage: OpenStage) -> None:
    async with open_table(stage) as table:

        def through_tx(number: int) -> Body:
            async def book(connection: Connection) -> Any:
                return await Tx(connection, table.s.feed, f"trace {number}").post(transfer(f"{number}", 1))

            return book

        with calls() as sent:
            await table.together(*map(through_tx, range(3)))
        assert sent == ["all"]
        rows = await table.s.owner.fetch("select key, trace_id from payonce.postings order by key")
        assert [tuple(row) for row in rows] == [(f"{number}", f"trace {number}") for number in range(3)]


async def test_an_overdrawn_account_is_told_to_the_run_that_overdrew_it(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        await guarded(table)
        await posted(table.s, transfer("fill", 5, CLIENTS, BUDGET))
        came_to = await table.together(
            booking(transfer("a", 1), "a"), booking(transfer("too much", 6, BUDGET, WALLET), "b"),
            booking(transfer("c", 5, BUDGET, WALLET), "c"),
        )  # fmt: skip
        assert [type(each) for each in came_to] == [int, Overdrawn, int]
        assert "budgets/marketing" in str(came_to[1])
        assert sorted(table.alone) == [0, 1, 2]
        assert await notes(table.s) == ["a", "c"]
        assert (await held(table.s, BUDGET), await counts(table.s)) == (0, (3, 6, 3))
        assert await findings(table.s) == {}


async def test_a_taken_key_is_told_to_the_run_that_came_with_it(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        await posted(table.s, transfer("taken", 5))
        came_to = await table.together(
            booking(transfer("a", 1), "a"), booking(transfer("taken", 6), "b"), booking(transfer("taken", 5), "c")
        )
        assert [type(each) for each in came_to] == [int, Invalid, int]
        assert "key taken belongs to posting" in str(came_to[1])
        assert await notes(table.s) == ["a", "c"]
        assert await counts(table.s) == (2, 4, 2)


async def test_what_there_is_goes_to_as_many_as_it_is_enough_for(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        await guarded(table)
        await posted(table.s, transfer("fill", 7, CLIENTS, BUDGET))
        came_to = await table.together(*(booking(transfer(f"{n}", 1, BUDGET, WALLET)) for n in range(20)))
        assert sum(isinstance(each, int) for each in came_to) == 7
        assert sum(isinstance(each, Overdrawn) for each in came_to) == 13
        assert (await held(table.s, BUDGET), await held(table.s, WALLET)) == (0, 7)
        assert await findings(table.s) == {}


@pytest.mark.parametrize("same", [True, False])
async def test_two_with_one_key_are_one_posting_or_one_of_them_is_refused(stage: OpenStage, same: bool) -> None:
    async with open_table(stage) as table:
        came_to = await table.together(booking(transfer("a", 1)), booking(transfer("a", 1 if same else 2)))
        assert await counts(table.s) == (1, 2, 2)
    if same:
        assert came_to[0] == came_to[1]
        assert table.alone == []
    else:
        assert sorted(type(each).__name__ for each in came_to) == ["Invalid", "int"]
