"""Operators' actions on items in suspense: write off, assign, explain, page through."""

import pytest

from payonce.engine.messages.transaction import begin
from payonce.engine.reconcile import Direction, assign, explain, unmatched, write_off
from payonce.kit.outcomes import Invalid, Stale
from payonce.testing import OpenStage
from tests.engine.bank import LOSSES, MIRROR, SUSPENSE, open_branch

THEIRS = Direction.THEIRS


async def test_a_written_off_line_that_matches_later_is_posted_back(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        b.bank.book("bank.pay", "p-1:1", -100, await b.s.clock.now())
        await b.after_the_lag()
        [item] = await unmatched(b.read)
        async with begin(b.s.database, b.s.feed) as tx:
            await write_off(tx, item.id, LOSSES, "ann", "the bank keeps it")
        assert (await b.held(SUSPENSE), await b.held(LOSSES)) == (0, 100)
        assert (await b.after_the_lag()).unmatched == 0
        await b.assert_books_equal()
        await b.order("p-1")
        await b.after_the_lag()
        await b.work()
        assert await b.held(LOSSES) == 0
        await b.assert_books_equal()


async def test_a_write_off_is_by_somebody_for_a_reason_once_and_to_another_account(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        b.bank.book("bank.fee", None, -7, await b.s.clock.now())
        await b.after_the_lag()
        [item] = await unmatched(b.read)
        for account, by, why in (
            (LOSSES, " ", "why"),
            (LOSSES, "ann", ""),
            (SUSPENSE, "ann", "why"),
            (MIRROR, "a", "b"),
        ):
            with pytest.raises(Invalid):
                async with begin(b.s.database, b.s.feed) as tx:
                    await write_off(tx, item.id, account, by, why)
        async with begin(b.s.database, b.s.feed) as tx:
            await write_off(tx, item.id, LOSSES, "ann", "a fee")
        with pytest.raises(Stale):
            async with begin(b.s.database, b.s.feed) as tx:
                await write_off(tx, item.id, LOSSES, "bob", "a fee")
        assert await b.held(LOSSES) == 7
        noted = await b.s.owner.fetchrow(
            "select actor, text from payonce.audit_log where location = $1", "reconcile.write_off"
        )
        assert noted is not None
        assert (noted["actor"], "a fee" in noted["text"]) == ("ann", True)


async def test_a_secret_in_a_reason_is_kept_nowhere(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        b.bank.book("bank.fee", None, -7, await b.s.clock.now())
        await b.after_the_lag()
        [item] = await unmatched(b.read)
        async with begin(b.s.database, b.s.feed) as tx:
            await write_off(tx, item.id, LOSSES, "ann", "a fee, password=hunter22")
        for table in ("postings", "unmatched", "audit_log"):
            kept = await b.s.owner.fetch(f"select each::text as row from payonce.{table} each")
            assert any("a fee" in each["row"] for each in kept)
            assert not any("hunter22" in each["row"] for each in kept), table


async def test_a_person_assigns_a_line_without_a_reference(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        b.bank.tells_outcomes = False
        b.bank.book("bank.pay", None, -100, await b.s.clock.now())
        await b.after_the_lag()
        [item] = await unmatched(b.read)
        for reference in ("p-1", "p-1:0", ":1"):
            with pytest.raises(Invalid, match="key:generation"):
                async with begin(b.s.database, b.s.feed) as tx:
                    await assign(tx, b.statement, item.id, reference, {"number": "n-1"}, "ann")
        async with begin(b.s.database, b.s.feed) as tx:
            await assign(tx, b.statement, item.id, "p-1:1", {"number": "n-1"}, "ann")
        await b.work()
        assert (await b.paid(), len(b.bank.booked), await b.open_items()) == (1, 1, [])
        assert (await b.after_the_lag()).unmatched == 0
        await b.assert_books_equal()


async def test_a_line_cannot_be_assigned_to_a_payment_that_has_its_own(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        await b.work()
        b.bank.book("bank.pay", None, -100, await b.s.clock.now())
        await b.after_the_lag()
        [item] = await unmatched(b.read)
        with pytest.raises(Invalid, match="has a line of its own"):
            async with begin(b.s.database, b.s.feed) as tx:
                await assign(tx, b.statement, item.id, "p-1:1", {"number": "n-2"}, "ann")
        assert await b.open_items() == [(THEIRS, -100)]


async def test_an_explained_item_stays_open(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        b.bank.book("bank.fee", None, -7, await b.s.clock.now())
        await b.after_the_lag()
        [item] = await unmatched(b.read)
        async with begin(b.s.database, b.s.feed) as tx:
            await explain(tx, item.id, "ann", "the yearly fee")
        await b.after_the_lag()
        [item] = await unmatched(b.read)
        assert item.explanation == "the yearly fee"


async def test_pages_show_every_item_once(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        for number in range(7):
            b.bank.book("bank.fee", None, -1 - number, await b.s.clock.now())
        await b.after_the_lag()
        first = await unmatched(b.read, "bank", 3)
        second = await unmatched(b.read, "bank", 500, first[-1].id)
        assert [item.amount.minor for item in [*first, *second]] == [-1, -2, -3, -4, -5, -6, -7]
        with pytest.raises(Invalid):
            await unmatched(b.read, "bank", 501)
