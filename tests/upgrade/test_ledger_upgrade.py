"""A ledger from before postings were written in sets: sets continue from it, and so do processes of that version until
they are replaced."""

from collections.abc import Iterator

import asyncpg
import pytest

from payonce.engine.database.migrate import migrate
from payonce.engine.ledger import Overdrawn, Posting, Reference, moved
from payonce.kit.money import Amount, well_known
from payonce.testing import ScratchDatabase, ScratchServer, open_stage
from tests.engine.ledger_books import findings
from tests.engine.ledger_sets import set_posted
from tests.upgrade.released import HEAD, make_database_at

BEFORE = 19
POST_BEFORE = """
    select payonce.post($1, 'payout', 'order-2', null, '', array['payouts/clients', 'payouts/host_wallet'],
        array['ETH', 'ETH'], array[18, 18]::smallint[], array[-5, 5])
"""
"""As the previous version writes one."""


@pytest.fixture
def empty(postgres: ScratchServer) -> Iterator[ScratchDatabase]:
    database = postgres.empty_database()
    yield database
    postgres.drop(database)


def transfer(key: str, minor: int, source: str, target: str, order: str = "order-1") -> Posting:
    return Posting(key, Reference("payout", order), moved(Amount(minor, well_known("ETH")), source, target))


async def test_sets_go_on_from_old_books_beside_the_version_before(empty: ScratchDatabase) -> None:
    owner = await asyncpg.connect(empty.owner_url)
    await make_database_at(owner, BEFORE)
    old = await asyncpg.connect(empty.service_url)
    before = await old.prepare(POST_BEFORE)
    assert await before.fetchval("before") == 3
    await migrate(owner, HEAD)
    during = await before.fetchval("while it is replaced")
    refund = transfer("refund:1", 7, "payouts/host_wallet", "budgets/refunds")
    spend = transfer("spend:1", 7, "budgets/refunds", "payouts/clients")
    again = transfer("while it is replaced", 5, "payouts/clients", "payouts/host_wallet", "order-2")
    async with open_stage(empty) as s:
        ids = await set_posted(s, refund, spend, again)
        assert (ids[0], ids[2]) == (2, during)
        with pytest.raises(Overdrawn, match=r"account budgets/refunds holds 0\.0"):
            await set_posted(s, again, transfer("spend:2", 1, "budgets/refunds", "payouts/clients"))
        assert await findings(s) == {}
    assert await before.fetchval("while it is replaced") == during
    await old.close()
    await owner.close()
