"""A database of the last version without billing gets billing's schemas, loses nothing, and bills."""

import hashlib
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from payonce.app.registry import all_migrations
from payonce.engine import webhooks
from payonce.engine.database.migrate import Migration, migrate
from payonce.services.billing.subscriptions.invariants.credit import CREDIT_INVARIANTS
from payonce.services.billing.subscriptions.model import State
from payonce.testing import ScratchDatabase, ScratchServer, open_stage
from tests.services.billing.billing_stage import open_house
from tests.upgrade.released import make_database_at, missing_rows

HEAD = all_migrations()
BEFORE = {
    "engine": (18, "b59b931a65f65637dad956540aa10808ce9c079dab2da316b7da5e2520fab3a9"),
    "tally": (1, "95f5940940c4b78e40acdd9e869cceb50c54ab99a88bbda51598565622dd84ff"),
    "transfers": (2, "123d92e28e24d5b6a09ef8223b2a5ca63b0bdabfe07a939165978fb9cc28c35f"),
    "payouts": (3, "8c0c65cf1f7ae03691248c96a4da5ae1a3eb18ed097cb186e4d727084bfd0d88"),
    "cloudtasks": (1, "acad1b40d4155d974bdd840b61002b14469435f6f39cdeac6bca3b5ea22e0974"),
}
"""The migrations of the last version without billing: their number per component, and their checksums."""

PAYOUT = """
    insert into payouts.payouts (id, unique_id, natural_key, user_id, closed_channel_id, wallet_address,
        payout_currency, payout_network, price_minor, fee_minor, adjusted_minor, value_minor, state)
    values ('p-1', 'ABCDEFGHIJKLMNOP', 'n', 7, '-1001', 'bc1q', 'btc', 'btc', 100, 0, 100, 40, 'priced');
    insert into payouts.wallet_clearances (unique_id, amount_minor, address, cleared_by)
    values ('ABCDEFGHIJKLMNOP', 40, 'bc1q', 'ann');
"""


@pytest.fixture
def empty(postgres: ScratchServer) -> Iterator[ScratchDatabase]:
    database = postgres.empty_database()
    yield database
    postgres.drop(database)


def of_before(component: str) -> list[Migration]:
    return [each for each in HEAD if each.component == component and each.number <= BEFORE[component][0]]


@pytest.mark.parametrize("component", BEFORE)
def test_what_was_released_says_what_it_said(component: str) -> None:
    said = "".join(migration.checksum for migration in of_before(component))
    assert hashlib.sha256(said.encode()).hexdigest() == BEFORE[component][1]


async def test_nothing_is_lost_and_billing_begins(empty: ScratchDatabase) -> None:
    owner = await asyncpg.connect(empty.owner_url)
    await make_database_at(owner, BEFORE["engine"][0])
    await migrate(owner, [each for component in BEFORE for each in of_before(component)])
    await owner.execute(PAYOUT)
    before = await everything(owner)
    applied = await migrate(owner, HEAD)
    after = await everything(owner)
    await owner.close()
    assert [str(each) for each in applied if each.component == "billing"][:2] == [
        "billing 0001_subscriptions",
        "billing 0002_payments",
    ]
    assert not [str(each) for each in applied if each.number <= BEFORE.get(each.component, (0, ""))[0]]
    assert before["payouts.payouts"]
    assert before["payonce.messages"]
    assert {name: missing_rows(rows, after[name]) for name, rows in before.items()} == {name: [] for name in before}
    assert {name: len(after[name]) for name in before} == {name: len(rows) for name, rows in before.items()}
    async with open_house(lambda: open_stage(empty)) as house:
        # As every start does it: one of the old rows is a merchant subscribed to everything.
        await house.s.feed.declare([webhooks.deliver.policy])
        subscription = await house.subscribe(await house.customer())
        assert subscription.state is State.ACTIVE
        assert await house.broken() == {}


async def everything(owner: asyncpg.Connection) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, partitions counted with their parent."""
    tables = await owner.fetch(
        """
        select format('%I.%I', n.nspname, c.relname) as name
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname in ('payonce', 'payouts') and c.relkind in ('r', 'p') and not c.relispartition
            and c.relname <> 'migrations'
        """
    )
    return {
        name: [dict(row) for row in await owner.fetch(f"select * from {name} as t order by t::text")]
        for (name,) in tables
    }


WITH_CREDIT = 7
"""The last migration of billing without entries of credit."""
CREDIT = """
    insert into subscriptions.accounts (id, email, password_hash) values ('a-1', 'a@example.com', 'none'),
        ('a-2', 'b@example.com', 'none'), ('a-3', 'c@example.com', 'none');
    insert into subscriptions.credits (account_id, currency, exponent, minor)
    values ('a-1', 'AED', 2, 97000), ('a-2', 'AED', 2, 0), ('a-3', 'EUR', 2, 1), ('a-3', 'JPY', 0, 5);
    insert into payments.transactions (id, charge_key, account_id, generation, action, currency, exponent, amount_minor,
        state, gateway_id, refunded_minor, credited_minor, ended_at)
    values ('t-1', 'i-1:1', 'a-1', 1, 'payment', 'AED', 2, 99900, 'partially_refunded', 'ch_1', 900, 97000,
        payonce.due_now());
"""


async def test_the_credit_of_before_is_an_opening_entry_and_nothing_is_lost(empty: ScratchDatabase) -> None:
    owner = await asyncpg.connect(empty.owner_url)
    await migrate(owner, [each for each in HEAD if each.component != "billing" or each.number <= WITH_CREDIT])
    await owner.execute(CREDIT)
    tables = ("subscriptions.credits", "payments.transactions")
    before = {name: [dict(row) for row in await owner.fetch(f"select * from {name}")] for name in tables}
    await migrate(owner, HEAD)
    for name in tables:
        after = [dict(row) for row in await owner.fetch(f"select * from {name}")]
        # From here on a balance counts its entries.
        assert (missing_rows(before[name], after), len(after)) == ([], len(before[name])), name
    entries = await owner.fetch("select * from subscriptions.credit_entries order by account_id, currency")
    columns = ("account_id", "currency", "kind", "minor", "balance_minor")
    assert [tuple(row[name] for name in columns) for row in entries] == [
        ("a-1", "AED", "opening", 97_000, 97_000),
        ("a-3", "EUR", "opening", 1, 1),
        ("a-3", "JPY", "opening", 5, 5),
    ]
    for name, query in CREDIT_INVARIANTS.items():
        assert await owner.fetch(query) == [], name
    [back] = await owner.fetch("select * from payments.going_back(array['t-1'])")
    assert (back["transaction_id"], back["minor"]) == ("t-1", 900)
    await owner.close()
