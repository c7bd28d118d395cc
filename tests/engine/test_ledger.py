"""Postings: balanced, once per key, in the business transaction, through the one function only."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from payonce.engine.ledger import Account, Line, Posting, Reference, moved, post, trial_balance
from payonce.engine.messages.transaction import Reader, begin
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage, Stage
from tests.engine.ledger_books import (
    CLIENTS,
    ETH,
    FEES,
    ORDER,
    WALLET,
    counts,
    eth,
    findings,
    held,
    lines,
    posted,
    transfer,
    usdt,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TABLES = ("accounts", "postings", "posting_lines", "balance_snapshots", "guarded_balances", "ledger_horizon")


async def test_a_posting_moves_money_in_every_asset_it_names(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(NOON)
        swap = (
            *moved(usdt(5), CLIENTS, WALLET),
            Line(WALLET, eth(-(10**60))),
            Line(FEES, eth(1)),
            Line(CLIENTS, eth(10**60 - 1)),
        )
        posting_id = await posted(s, Posting("swap:17", ORDER, swap, "bought", trace_id="t-1"))
        assert await lines(s) == [
            (posting_id, CLIENTS, "USDT", -5),
            (posting_id, WALLET, "USDT", 5),
            (posting_id, WALLET, "ETH", -(10**60)),
            (posting_id, FEES, "ETH", 1),
            (posting_id, CLIENTS, "ETH", 10**60 - 1),
        ]
        row = await s.owner.fetchrow("select * from payonce.postings")
        assert row is not None
        assert dict(row) == {
            "id": posting_id,
            "key": "swap:17",
            "reference_kind": "payout",
            "reference_id": "17",
            "trace_id": "t-1",
            "description": "bought",
            "posted_at": NOON,
        }
        assert await held(s, CLIENTS) == 10**60 - 1
        assert await findings(s) == {}


async def test_the_same_code_with_another_exponent_is_another_account(stage: OpenStage) -> None:
    async with stage() as s:
        bridged = Amount(3, Asset("ETH", 8))
        await posted(s, Posting("a", ORDER, (*moved(eth(7), CLIENTS, WALLET), *moved(bridged, CLIENTS, WALLET))))
        assert await held(s, WALLET) == 7
        assert await trial_balance(Reader(s.database)) == {ETH: eth(0), bridged.asset: Amount(0, bridged.asset)}
        with pytest.raises(Invalid, match="does not add up"):
            Posting("b", ORDER, (Line(WALLET, eth(3)), Line(CLIENTS, -bridged)))


async def test_a_posting_through_tx_commits_or_vanishes_with_the_rest(stage: OpenStage) -> None:
    async with stage() as s:
        async with begin(s.database, s.feed, "t-9") as tx:
            await post(tx, transfer("kept", 5), trace_id="t-9")
        with pytest.raises(asyncpg.DivisionByZeroError):
            await post_and_fail(s)
        assert [tuple(row) for row in await s.owner.fetch("select key, trace_id from payonce.postings")] == [
            ("kept", "t-9")
        ]
        assert await held(s, WALLET) == 5


async def post_and_fail(s: Stage) -> None:
    async with begin(s.database, s.feed) as tx:
        await post(tx, transfer("dropped", 5))
        await tx.execute("select 1 / 0")


async def test_a_posting_outside_a_transaction_is_refused(stage: OpenStage) -> None:
    async with stage() as s:
        async with s.database.work.acquire() as connection:
            with pytest.raises(Invalid, match="begin one first"):
                await post(connection, transfer("a", 5))
        assert await counts(s) == (0, 0, 0)


async def test_a_repeated_posting_has_the_first_id_and_writes_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        first = transfer("a", 5)
        posting_id = await posted(s, first)
        reordered = replace(first, lines=first.lines[::-1], text="told differently")
        assert await posted(s, reordered) == posting_id
        async with s.database.transaction() as connection:
            assert [await post(connection, first) for _ in range(2)] == [posting_id, posting_id]
        assert await counts(s) == (1, 2, 2)


@pytest.mark.parametrize(
    "other",
    [
        transfer("a", 6),
        transfer("a", 5, FEES, WALLET),
        transfer("a", 5, WALLET, CLIENTS),
        Posting("a", ORDER, (*transfer("a", 5).lines, *moved(usdt(1), CLIENTS, WALLET))),
        replace(transfer("a", 5), reference=Reference("payout", "18")),
    ],
)
async def test_a_key_of_another_posting_is_refused(stage: OpenStage, other: Posting) -> None:
    async with stage() as s:
        await posted(s, transfer("a", 5))
        with pytest.raises(Invalid, match=r"key a belongs to posting \d+ of payout 17"):
            await posted(s, other)
        assert await counts(s) == (1, 2, 2)


async def test_the_same_posting_from_many_at_once_is_written_once(stage: OpenStage) -> None:
    async with stage() as s:
        ids = await asyncio.gather(*(posted(s, transfer("a", 5)) for _ in range(10)))
        assert len(set(ids)) == 1
        assert await counts(s) == (1, 2, 2)


async def test_new_accounts_opened_by_many_at_once_exist_once(stage: OpenStage) -> None:
    async with stage() as s:
        there, back = (CLIENTS, WALLET), (WALLET, CLIENTS)
        await asyncio.gather(*(posted(s, transfer(f"{n}", 1, *(there if n % 2 else back))) for n in range(20)))
        assert await counts(s) == (20, 40, 2)
        assert await held(s, WALLET) == 0


def test_an_unbalanced_posting_says_by_how_much_in_each_asset() -> None:
    uneven = (Line(WALLET, eth(10**18)), Line(CLIENTS, eth(-(10**17))), Line(CLIENTS, usdt(-2_500_000)))
    with pytest.raises(Invalid, match=r"a .* has 0\.900000000000000000 ETH and -2\.500000 USDT too much"):
        Posting("a", ORDER, uneven)


@pytest.mark.parametrize("path", ["", "/", "a/", "/a", "a//b", "a b", "ä", "a/../b", "-a", "a\n", "x" * 201])
def test_a_misshapen_path_is_refused(path: str) -> None:
    with pytest.raises(Invalid, match="is not an account path"):
        Account(path, ETH)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Posting("a", ORDER, ()), "has 0 lines"),
        (lambda: Posting("a", ORDER, moved(eth(1), "a", "b")[:1]), "has 1 lines"),
        (lambda: Posting("a", ORDER, moved(eth(1), "a", "b") * 501), "has 1002 lines"),
        (lambda: Posting("", ORDER, moved(eth(1), "a", "b")), "not a key"),
        (lambda: Posting("a\x00", ORDER, moved(eth(1), "a", "b")), "no NUL"),
        (lambda: Posting("a", ORDER, moved(eth(1), "a", "b"), "x" * 1001), "at most 1000"),
        (lambda: Line("a", eth(0)), "moves nothing"),
        (lambda: Reference("", "1"), "kind of a reference"),
        (lambda: Reference("payout", "x" * 201), "id of a reference"),
    ],
)
def test_a_malformed_posting_is_refused(make: Any, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        make()


@pytest.mark.parametrize(
    ("paths", "minors"),
    [
        (["a", "b"], ["1", "-2"]),
        (["a", "b"], ["1", "1"]),
        (["a"], ["0"]),
        (["a", "b"], ["0", "0"]),
        ([], []),
        (["a", "b"], ["1", "-1", "0"]),
        (["a", "b", "c"], ["1", "-1"]),
        (["a", "b"], ["NaN", "NaN"]),
        (["a", "b"], ["Infinity", "-Infinity"]),
        (["a", "b", "c"], ["0.5", "-0.25", "-0.25"]),
        (["a", "b"], [None, None]),
        (["a", "b"], ["1", None]),
        (["a", "b"], ["1" + "0" * 78, "-1" + "0" * 78]),
        (["a", None], ["1", "-1"]),
        (["a", "b/"], ["1", "-1"]),
        (None, None),
    ],
)
async def test_the_function_itself_refuses_what_would_break_the_books(
    stage: OpenStage, paths: list[str | None] | None, minors: list[str | None] | None
) -> None:
    async with stage() as s:
        with pytest.raises(asyncpg.PostgresError):
            await s.database.work.fetchval(
                """
                select payonce.post('k', 'payout', '1', null, '', $1,
                    array_fill('ETH'::text, array[cardinality($1)]), array_fill(18::smallint, array[cardinality($1)]),
                    $2::text[]::numeric[])
                """,
                paths,
                minors,
            )
        assert await counts(s) == (0, 0, 0)


async def test_the_service_role_changes_no_table_of_the_ledger(stage: OpenStage) -> None:
    async with stage() as s:
        await posted(s, transfer("a", 5))
        for table in TABLES:
            for statement in (
                f"insert into payonce.{table} overriding system value select * from payonce.{table}",
                f"delete from payonce.{table}",
                f"truncate payonce.{table}",
                f"select from payonce.{table} for update",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await s.database.work.execute(statement)
        assert await counts(s) == (1, 2, 2)


async def test_the_service_role_may_call_nothing_but_the_guarded_doors(stage: OpenStage) -> None:
    async with stage() as s:
        calls = (
            "rebase_ledger()",
            "move_guarded('{}', '{}')",
            "check_lines('{}', '{}', '{}', '{}')",
            "check_postings('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
        )
        for call in calls:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await s.database.work.execute(f"select payonce.{call}")


async def test_not_even_the_owner_changes_or_removes_what_was_written(stage: OpenStage) -> None:
    async with stage() as s:
        await posted(s, transfer("a", 5))
        for statement in (
            "update payonce.posting_lines set minor = minor + 1",
            "update payonce.postings set key = 'b'",
            "update payonce.accounts set path = path || 'x'",
            *(f"delete from payonce.{table}" for table in TABLES[:4]),
            *(f"truncate payonce.{table}" for table in TABLES[:4]),
        ):
            with pytest.raises(asyncpg.RestrictViolationError, match="append-only"):
                await s.owner.execute(statement)
        assert await held(s, WALLET) == 5


async def test_a_search_path_full_of_traps_does_not_lead_the_function_astray(stage: OpenStage) -> None:
    async with stage() as s, s.database.transaction() as connection:
        await connection.execute("create temp table posting_lines (like payonce.posting_lines)")
        await connection.execute("create temp table accounts (like payonce.accounts)")
        await connection.execute("set local search_path = pg_temp, payonce")
        await post(connection, transfer("a'; drop table payonce.postings; --", 5))
        assert await connection.fetchval("select count(*) from payonce.posting_lines") == 2
