"""Guarded accounts: a balance never leaves its limits, whatever is posted concurrently."""

import asyncio

import pytest

from payonce.engine.ledger import Account, Overdrawn, guard, post
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage, Stage
from tests.engine.ledger_books import CLIENTS, ETH, WALLET, counts, eth, findings, held, posted, transfer, usdt

BUDGET, CREDIT = "budgets/marketing", "credits/ann"


async def guarded(s: Stage, path: str, minimum: int | None = 0, maximum: int | None = None) -> None:
    def limit(minor: int | None) -> Amount | None:
        return None if minor is None else eth(minor)

    async with s.database.transaction() as connection:
        await guard(connection, Account(path, ETH), limit(minimum), limit(maximum))


async def test_a_guarded_account_is_spent_to_its_minimum_and_no_further(stage: OpenStage) -> None:
    async with stage() as s:
        await guarded(s, BUDGET)
        await posted(s, transfer("fill", 10, CLIENTS, BUDGET))
        await posted(s, transfer("spend", 10, BUDGET, WALLET))
        before = await counts(s)
        with pytest.raises(Overdrawn) as refused:
            await posted(s, transfer("too much", 1, BUDGET, WALLET))
        assert (refused.value.account, refused.value.balance, refused.value.change) == (
            Account(BUDGET, ETH),
            eth(0),
            eth(-1),
        )
        assert str(refused.value) == (
            "account budgets/marketing holds 0.000000000000000000 ETH and cannot be changed by "
            "-0.000000000000000001 ETH: its balance may not go below 0.000000000000000000 ETH"
        )
        assert await counts(s) == before
        assert await findings(s) == {}


async def test_limits_hold_on_either_side(stage: OpenStage) -> None:
    async with stage() as s:
        await guarded(s, CREDIT, minimum=-5, maximum=0)
        await posted(s, transfer("grant", 5, CREDIT, CLIENTS))
        with pytest.raises(Overdrawn, match=r"may not go below -0\.000000000000000005 ETH"):
            await posted(s, transfer("grant more", 1, CREDIT, CLIENTS))
        await posted(s, transfer("use", 5, CLIENTS, CREDIT))
        with pytest.raises(Overdrawn, match=r"may not go above 0\.000000000000000000 ETH"):
            await posted(s, transfer("use more", 1, CLIENTS, CREDIT))


async def test_a_repeated_posting_is_not_counted_twice_against_the_guard(stage: OpenStage) -> None:
    async with stage() as s:
        await guarded(s, BUDGET)
        await posted(s, transfer("fill", 10, CLIENTS, BUDGET))
        ids = {await posted(s, transfer("spend", 10, BUDGET, WALLET)) for _ in range(3)}
        assert len(ids) == 1
        assert await findings(s) == {}


async def test_guarding_again_changes_the_limits_unless_the_balance_is_outside(stage: OpenStage) -> None:
    async with stage() as s:
        for _ in range(2):
            await guarded(s, BUDGET)
        await guarded(s, BUDGET, minimum=-3)
        await posted(s, transfer("overdraw", 3, BUDGET, WALLET))
        with pytest.raises(Invalid, match="holds -3 minor units of ETH, outside the new limits"):
            await guarded(s, BUDGET)


async def test_an_account_in_use_without_a_guard_gets_none(stage: OpenStage) -> None:
    async with stage() as s:
        await posted(s, transfer("a", 1))
        with pytest.raises(Invalid, match="guard an account before its first posting"):
            await guarded(s, WALLET)


async def test_limits_that_a_new_account_would_already_break_are_refused(stage: OpenStage) -> None:
    async with stage() as s:
        for minimum, maximum in ((1, None), (None, -1), (5, 3)):
            with pytest.raises(Invalid, match="let them include zero"):
                await guarded(s, BUDGET, minimum, maximum)
        assert await counts(s) == (0, 0, 0)


async def test_a_limit_in_another_asset_is_refused(stage: OpenStage) -> None:
    async with stage() as s, s.database.transaction() as connection:
        with pytest.raises(Invalid, match="in its own asset"):
            await guard(connection, Account(BUDGET, ETH), usdt(0))


async def test_many_spenders_at_once_spend_what_there_is(stage: OpenStage) -> None:
    async with stage() as s:
        await guarded(s, BUDGET)
        await posted(s, transfer("fill", 7, CLIENTS, BUDGET))
        spent = await asyncio.gather(
            *(posted(s, transfer(f"spend {n}", 1, BUDGET, WALLET)) for n in range(20)), return_exceptions=True
        )
        assert sum(isinstance(answer, int) for answer in spent) == 7
        assert sum(isinstance(answer, Overdrawn) for answer in spent) == 13
        assert (await held(s, BUDGET), await held(s, WALLET)) == (0, 7)
        assert await findings(s) == {}


async def test_postings_over_the_same_two_guards_in_either_direction_never_deadlock(stage: OpenStage) -> None:
    async with stage() as s:
        for path in (BUDGET, CREDIT):
            await guarded(s, path, minimum=-1_000)

        async def back_and_forth(number: int) -> None:
            there, back = (BUDGET, CREDIT), (CREDIT, BUDGET)
            for turn in range(25):
                await posted(s, transfer(f"{number}/{turn}", 1, *(there if (number + turn) % 2 else back)))

        await asyncio.gather(*(back_and_forth(number) for number in range(8)))
        assert (await held(s, BUDGET), await held(s, CREDIT)) == (0, 0)
        assert await findings(s) == {}


async def test_a_guarded_balance_waits_for_the_transaction_before_it(stage: OpenStage) -> None:
    async with stage() as s:
        await guarded(s, BUDGET)
        await posted(s, transfer("fill", 1, CLIENTS, BUDGET))
        async with s.database.transaction() as connection:
            await post(connection, transfer("first", 1, BUDGET, WALLET))
            second = asyncio.create_task(posted(s, transfer("second", 1, BUDGET, WALLET)))
            while not await s.owner.fetchval("select exists (select from pg_locks where not granted)"):
                assert not second.done()
        with pytest.raises(Overdrawn):
            await second
