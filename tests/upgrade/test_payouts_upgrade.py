"""A database of payouts from before clearances named an address is brought up to date; nothing old is paid by it."""

from collections.abc import Iterator

import asyncpg
import pytest

from payonce.engine.migrate import known_migrations, migrate
from payonce.testing import ScratchDatabase, ScratchServer

HEAD = known_migrations((("payouts", "payonce.services.payouts"),))
RELEASED = [each for each in HEAD if each.component != "payouts" or each.number <= 2]

ROWS = """
    insert into payouts.payouts (id, unique_id, natural_key, user_id, closed_channel_id, wallet_address,
        payout_currency, payout_network, price_minor, fee_minor, adjusted_minor, value_minor, state)
    values ('p-1', 'ABCDEFGHIJKLMNOP', 'n', 7, '-1001', 'bc1q', 'btc', 'btc', 100, 0, 100, 40, 'priced');
    insert into payouts.wallet_clearances (unique_id, part, amount_minor, cleared_by)
    values ('ABCDEFGHIJKLMNOP', 1, 40, 'payouts.hostpay, granted by ann'), ('ABCDEFGHIJKLMNOP', 2, 40, 'bob');
"""


@pytest.fixture
def empty(postgres: ScratchServer) -> Iterator[ScratchDatabase]:
    database = postgres.empty_database()
    yield database
    postgres.drop(database)


async def test_clearances_of_before_are_kept_and_count_for_nothing(empty: ScratchDatabase) -> None:
    owner = await asyncpg.connect(empty.owner_url)
    await migrate(owner, RELEASED)
    await owner.execute(ROWS)
    before = [dict(row) for row in await owner.fetch("select * from payouts.wallet_clearances order by part")]
    [payout] = [dict(row) for row in await owner.fetch("select * from payouts.payouts")]
    await migrate(owner, HEAD)
    after = [dict(row) for row in await owner.fetch("select * from payouts.wallet_clearances order by part")]
    assert [{name: row[name] for name in before[0]} for row in after] == before
    assert all(row["address"] is None and row["void_at"] is not None for row in after)
    [continued] = await owner.fetch("select * from payouts.payouts")
    assert {name: continued[name] for name in payout} == payout
    assert (continued["addressed_by"], continued["released_by"]) == (None, None)
    await owner.close()


async def test_the_same_payment_can_be_cleared_anew_with_its_address(empty: ScratchDatabase) -> None:
    owner = await asyncpg.connect(empty.owner_url)
    await migrate(owner, RELEASED)
    await owner.execute(ROWS)
    await migrate(owner, HEAD)
    again = """
        insert into payouts.wallet_clearances (unique_id, amount_minor, address, cleared_by)
        values ('ABCDEFGHIJKLMNOP', 40, 'bc1q', 'ann') on conflict do nothing
    """
    assert [await owner.execute(again) for _ in range(2)] == ["INSERT 0 1", "INSERT 0 0"]
    with pytest.raises(asyncpg.CheckViolationError, match="cleared_for_an_address"):
        await owner.execute(again.replace(", address", "").replace(", 'bc1q'", ""))
    await owner.close()
