"""The audit of the ledger: silent while it is sound; every kind of damage is found and named."""

import re

import pytest

from payonce.engine.ledger import Account, audit_ledger, guard, snapshot_balances
from payonce.engine.ledger.audit import CHECKS
from payonce.engine.messages.transaction import Reader
from payonce.testing import OpenStage, Stage, eventually
from tests.engine.ledger_books import CLIENTS, ETH, findings, posted, transfer, unprotected

BUDGET = "budgets/marketing"

DAMAGE: list[tuple[str, set[str], str]] = [
    (
        "update payonce.posting_lines set minor = minor + 1 where minor = 10",
        {"unbalanced posting", "unbalanced asset", "wrong snapshot", "wrong balance"},
        r"posting \d+ \(plain\) does not add up to zero: 1 minor units of ETH too much",
    ),
    (
        "delete from payonce.posting_lines where minor = 10",
        {"unbalanced posting", "incomplete posting", "unbalanced asset", "wrong snapshot", "wrong balance"},
        r"posting \d+ \(plain\) has 1 lines and needs at least two",
    ),
    (
        """
        insert into payonce.postings (key, reference_kind, reference_id, description, posted_at)
        values ('hollow', 'payout', '1', '', payonce.due_now())
        """,
        {"incomplete posting"},
        r"posting \d+ \(hollow\) has 0 lines",
    ),
    (
        "delete from payonce.postings where key = 'plain'",
        {"stray line"},
        r"line 1 of posting \d+ belongs to no posting or no account",
    ),
    (
        "update payonce.balance_snapshots set balance = balance + 3 where balance > 0",
        {"wrong snapshot", "wrong balance"},
        r"snapshot of account budgets/marketing below transaction \d+ says 10 minor units, and its lines add up to 7",
    ),
    (
        "update payonce.guarded_balances set balance = 8",
        {"wrong guarded balance"},
        "guarded account budgets/marketing is kept at 8 minor units of ETH, and its lines add up to 7",
    ),
    (
        "delete from payonce.guarded_balances",
        {"wrong guarded balance"},
        "guarded account budgets/marketing is kept at no balance minor units of ETH",
    ),
    (
        """
        alter table payonce.guarded_balances drop constraint guarded_balances_check1;
        update payonce.guarded_balances set minimum = 20
        """,
        {"guarded balance outside its limits"},
        "guarded account budgets/marketing is at 7 minor units of ETH, outside its limits",
    ),
    (
        "update payonce.posting_lines set xact = '999999999999' where minor = 7",
        {"foreign transaction", "wrong snapshot", "wrong balance"},
        r"posting \d+ was written by transaction 999999999999",
    ),
]


async def keep_books(s: Stage) -> None:
    async with s.database.transaction() as connection:
        await guard(connection, Account(BUDGET, ETH))
    await posted(s, transfer("plain", 10))
    await posted(s, transfer("guarded", 7, CLIENTS, BUDGET))

    async def covered() -> bool:
        await snapshot_balances(s.database, lines_wanted=1)
        return bool(await s.owner.fetchval("select sum(balance) = 0 and count(*) >= 3 from payonce.balance_snapshots"))

    await eventually(covered)
    await posted(s, transfer("after the snapshot", 2))


async def test_sound_books_have_no_findings(stage: OpenStage) -> None:
    async with stage() as s:
        assert await findings(s) == {}
        await keep_books(s)
        assert await findings(s) == {}


@pytest.mark.parametrize(
    ("damage", "kinds", "sentence"), DAMAGE, ids=[next(iter(sorted(kinds))) for _, kinds, _ in DAMAGE]
)
async def test_damage_is_found_and_named(stage: OpenStage, damage: str, kinds: set[str], sentence: str) -> None:
    async with stage() as s:
        await keep_books(s)
        async with unprotected(s.scratch) as superuser:
            await superuser.execute(damage)
        found = await audit_ledger(Reader(s.database))
        assert {finding.kind for finding in found} == kinds
        assert any(re.search(sentence, finding.text) for finding in found), found


def test_every_check_is_proven_able_to_find_something() -> None:
    assert set().union(*(kinds for _, kinds, _ in DAMAGE)) == set(CHECKS)
