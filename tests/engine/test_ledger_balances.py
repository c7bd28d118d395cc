"""Balances, snapshots, statements: nothing is missed, however late it commits."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from payonce.engine.ledger import (
    Account,
    Cursor,
    Page,
    balance,
    declare,
    post,
    snapshot_balances,
    statement,
    trial_balance,
)
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.testing import OpenStage, Stage, eventually
from tests.engine.ledger_books import (
    CLIENTS,
    ETH,
    ORDER,
    WALLET,
    eth,
    findings,
    held,
    posted,
    transfer,
    unprotected,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ACCOUNT = Account(WALLET, ETH)
AGES = {"posting_lines": "xact", "balance_snapshots": "horizon", "ledger_horizon": "horizon"}


async def snapshots(s: Stage, path: str = WALLET) -> list[int]:
    rows = await s.owner.fetch(
        """
        select b.balance from payonce.balance_snapshots b join payonce.accounts a on a.id = b.account_id
        where a.path = $1 order by b.horizon
        """,
        path,
    )
    return [int(row["balance"]) for row in rows]


async def page_of(s: Stage, count: int) -> Page:
    """The statement, once no transaction is running that began before its lines; autovacuum may."""

    async def found() -> bool:
        return len((await statement(Reader(s.database), ACCOUNT)).entries) >= count

    await eventually(found)
    return await statement(Reader(s.database), ACCOUNT)


async def snapshot(s: Stage, path: str, expected: int) -> None:
    async def made() -> bool:
        await snapshot_balances(s.database, lines_wanted=1)
        return (await snapshots(s, path))[-1:] == [expected]

    await eventually(made)


async def test_a_balance_is_the_snapshot_and_the_lines_after_it(stage: OpenStage) -> None:
    async with stage() as s:
        for number in range(5):
            await posted(s, transfer(f"{number}", 10))
        await snapshot(s, WALLET, 50)
        await posted(s, transfer("later", 7))
        assert await held(s, WALLET) == 57
        assert await held(s, CLIENTS) == -57
        await snapshot(s, WALLET, 57)
        assert await snapshots(s) == [50, 57]
        assert await trial_balance(Reader(s.database)) == {ETH: eth(0)}
        assert await findings(s) == {}


async def test_who_took_its_ids_first_and_commits_last_is_not_passed_over(stage: OpenStage) -> None:
    async with stage() as s:
        await posted(s, transfer("before", 1))
        await snapshot(s, WALLET, 1)
        # Not the stage's own transaction, which the reads below must not see.
        async with s.database.work.acquire() as slow, slow.transaction():
            slow_id = await post(slow, transfer("slow", 100))
            quick_id = await posted(s, transfer("quick", 10))
            assert slow_id < quick_id
            await snapshot_balances(s.database, lines_wanted=1)
            assert await snapshots(s) == [1], "a snapshot with the quick one's line would leave the slow one's out"
            assert [entry.key for entry in (await statement(Reader(s.database), ACCOUNT)).entries] == ["before"]
            assert await held(s, WALLET) == 11
        assert await held(s, WALLET) == 111
        await snapshot(s, WALLET, 111)
        assert [entry.key for entry in (await page_of(s, 3)).entries] == ["before", "slow", "quick"]
        assert await findings(s) == {}


async def declared(s: Stage) -> None:
    async with s.database.transaction() as connection:
        await declare(connection, ACCOUNT, Account(CLIENTS, ETH))


async def test_a_horizon_of_ids_would_have_passed_over_it(stage: OpenStage) -> None:
    """The ablation: the snapshot's result if it covered every id up to the highest one seen."""
    async with stage() as s:
        await declared(s)
        async with s.database.transaction() as slow:
            await post(slow, transfer("slow", 100))
            quick_id = await posted(s, transfer("quick", 10))
            by_id = await s.owner.fetchval(
                "select sum(minor) from payonce.posting_lines where posting_id <= $1 and minor > 0", quick_id
            )
        rest = await s.owner.fetchval(
            "select coalesce(sum(minor), 0) from payonce.posting_lines where posting_id > $1", quick_id
        )
        assert by_id + rest == 10
        assert await held(s, WALLET) == 110


async def test_snapshots_taken_while_many_post_cover_no_line_twice_and_leave_none_out(stage: OpenStage) -> None:
    async with stage() as s:
        await declared(s)

        async def keep_posting(number: int) -> int:
            turn = 0
            while turn < 40 or (turn < 1_000 and len(taken) < 2):
                await posted(s, transfer(f"{number}/{turn}", 1))
                turn += 1
            return turn

        taken: list[int] = []
        posters = asyncio.gather(*(keep_posting(number) for number in range(6)))
        while not posters.done():
            await asyncio.gather(*(snapshot_balances(s.database, lines_wanted=1) for _ in range(2)))
            taken = await snapshots(s)
            assert await trial_balance(Reader(s.database)) == {ETH: eth(0)}
        turns = await posters
        assert len(taken) > 1, "no snapshot followed another while they posted, so the test shows nothing"
        assert await held(s, WALLET) == sum(turns)
        assert await findings(s) == {}


async def test_a_transaction_sees_its_own_postings_in_the_balance(stage: OpenStage) -> None:
    async with stage() as s, s.database.transaction() as connection:
        tx = Tx(connection, s.feed)
        await post(tx, transfer("a", 5))
        assert await balance(tx, ACCOUNT) == eth(5)
        assert await balance(Reader(s.database), ACCOUNT) == eth(5), "reads inside a transaction go through it"


async def test_snapshots_are_made_in_batches_where_they_are_worth_it(stage: OpenStage) -> None:
    async with stage() as s:
        for number in range(4):
            await posted(s, transfer(f"{number}", 1, f"clients/{number}", WALLET))
        await page_of(s, 4)
        assert await snapshot_balances(s.database, lines_wanted=4, batch_accounts=2) == 1
        assert await snapshots(s) == [4]
        assert await snapshot_balances(s.database, lines_wanted=1, batch_accounts=2) == 4
        assert await snapshot_balances(s.database, lines_wanted=1) == 0
        with pytest.raises(Invalid, match="at least 1"):
            await snapshot_balances(s.database, lines_wanted=0)


async def test_a_past_balance_counts_what_was_posted_before_that_moment(stage: OpenStage) -> None:
    async with stage() as s:
        for hour in range(4):
            await s.clock.freeze(NOON + hour * HOUR)
            await posted(s, transfer(f"{hour}", 10**hour))
            if hour % 2:
                await snapshot(s, WALLET, (11, 1111)[hour // 2])
        past = [(await balance(Reader(s.database), ACCOUNT, NOON + hour * HOUR)).minor for hour in range(5)]
        assert past == [0, 1, 11, 111, 1111]


async def test_a_statement_goes_page_by_page_with_a_running_balance(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(NOON)
        for number in range(1, 8):
            await posted(s, transfer(f"{number}", number))
        await page_of(s, 7)
        seen: list[tuple[str, int]] = []
        after: Cursor | None = None
        for more in (True, True, False):
            page = await statement(Reader(s.database), ACCOUNT, limit=3, after=after)
            assert page.more == more
            assert page.opening.minor + sum(entry.amount.minor for entry in page.entries) == page.closing.minor
            seen += [(entry.key, entry.balance.minor) for entry in page.entries]
            after = page.after
        assert seen == [("1", 1), ("2", 3), ("3", 6), ("4", 10), ("5", 15), ("6", 21), ("7", 28)]
        last = page.entries[-1]
        assert (last.reference, last.posted_at, last.amount) == (ORDER, NOON, eth(7))
        nothing = await statement(Reader(s.database), ACCOUNT, after=after)
        assert (nothing.entries, nothing.after, nothing.closing) == ((), after, eth(28))
        with pytest.raises(Invalid, match="1 to 1000 entries"):
            await statement(Reader(s.database), ACCOUNT, limit=0)


async def test_a_statement_of_some_time_opens_with_the_balance_before_it(stage: OpenStage) -> None:
    async with stage() as s:
        for hour in range(4):
            await s.clock.freeze(NOON + hour * HOUR)
            await posted(s, transfer(f"{hour}", 10**hour))
        await page_of(s, 4)
        page = await statement(Reader(s.database), ACCOUNT, NOON + HOUR, NOON + 3 * HOUR)
        assert (page.opening, [entry.key for entry in page.entries], page.closing) == (eth(1), ["1", "2"], eth(111))
        assert page.closing == await balance(Reader(s.database), ACCOUNT, NOON + 3 * HOUR)


async def test_an_account_nobody_used_is_empty(stage: OpenStage) -> None:
    async with stage() as s:
        assert await balance(Reader(s.database), ACCOUNT) == eth(0)
        assert await balance(Reader(s.database), ACCOUNT, NOON) == eth(0)
        page = await statement(Reader(s.database), ACCOUNT)
        assert (page.entries, page.closing, page.after, page.more) == ((), eth(0), None, False)
        assert await trial_balance(Reader(s.database)) == {}


async def test_books_restored_into_a_younger_server_are_refused_until_rebased(stage: OpenStage) -> None:
    async with stage() as s:
        await posted(s, transfer("a", 5))
        await snapshot(s, WALLET, 5)
        assert await s.owner.fetchval(
            "select horizon = (select max(horizon) from payonce.balance_snapshots) from payonce.ledger_horizon"
        )
        async with unprotected(s.scratch) as superuser:
            for table, column in AGES.items():
                await superuser.execute(
                    f"update payonce.{table} set {column} = ({column}::text::bigint + 1000000000)::text::xid8"
                )
        assert set(await findings(s)) == {"foreign transaction"}
        with pytest.raises(Unavailable, match=r"payonce\.rebase_ledger\(\)"):
            await posted(s, transfer("b", 6))
        await s.owner.execute("select payonce.rebase_ledger()")
        await posted(s, transfer("b", 6))
        await snapshot(s, WALLET, 11)
        assert [entry.key for entry in (await page_of(s, 2)).entries] == ["a", "b"]
        assert await findings(s) == {}
