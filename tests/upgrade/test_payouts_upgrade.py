"""A payouts database from before clearances named an address is migrated; no old clearance pays anything."""

from collections.abc import Iterator

import asyncpg
import pytest

from payonce.engine.database.migrate import known_migrations, migrate
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


SPELLED = """
    insert into payouts.payouts (id, unique_id, natural_key, user_id, closed_channel_id, wallet_address,
        payout_currency, payout_network, price_minor, fee_minor, adjusted_minor, value_minor, state)
    select 'p-' || n, lpad(n::text, 16, 'X'), 'n', 7, '-1001', address, 'usdt', 'eth', 100, 0, 100, 40, state
    from (values (1, '0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed', 'accumulating'),
                 (2, '0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed', 'accumulating'),
                 (3, 'TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t', 'swapped')) as spelled (n, address, state);
    insert into payouts.swaps (id, unique_id, part, round, currency, network, address, amount_minor, state, cn_api_id,
        payin_address, triggered_at)
    values ('swap-1', lpad('3', 16, 'X'), 1, 1, 'usdt', 'trx', 'T', 40, 'created', 'c-1', '0x1', payonce.due_now());
"""


async def test_payouts_of_before_keep_their_address_and_are_one_client(empty: ScratchDatabase) -> None:
    owner = await asyncpg.connect(empty.owner_url)
    await migrate(owner, [each for each in HEAD if each.component != "payouts" or each.number <= 4])
    await owner.execute(SPELLED)
    before = await owner.fetch("select id, wallet_address from payouts.payouts order by id")
    await migrate(owner, HEAD)
    assert await owner.fetch("select id, wallet_address from payouts.payouts order by id") == before
    keys = await owner.fetch("select payouts.address_key(wallet_address) as key from payouts.payouts order by id")
    assert keys[0]["key"] == keys[1]["key"] == before[1]["wallet_address"]
    assert keys[2]["key"] == before[2]["wallet_address"], "only hexadecimal addresses have spellings"
    spellings = await owner.fetch(
        "select id from payouts.payouts where payouts.address_key(wallet_address) = $1 order by id", keys[0]["key"]
    )
    assert [row["id"] for row in spellings] == ["p-1", "p-2"]
    [swap] = await owner.fetch("select paid_by, handed_over_at from payouts.swaps")
    assert (swap["paid_by"], swap["handed_over_at"]) == ("wallet", None)
    with pytest.raises(asyncpg.CheckViolationError, match="handed_over_after_told"):
        await owner.execute("update payouts.swaps set handed_over_at = payonce.due_now()")
    await owner.close()
