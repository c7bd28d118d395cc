"""Customers registered with the previous version keep everything they had, and are edited like new ones."""

from collections.abc import Iterator
from datetime import UTC, datetime

import asyncpg
import pytest

from payonce.app.registry import all_migrations
from payonce.engine.database.migrate import migrate
from payonce.services.billing.subscriptions.store import customers, invoices
from payonce.testing import ScratchDatabase, ScratchServer, open_stage

HEAD = all_migrations()
[THIS] = [each for each in HEAD if each.component == "billing" and "customers" in str(each)]

BEFORE = """
    insert into subscriptions.accounts (id, email, password_hash, name, role, time_zone, locale, token_version,
        created_at, updated_at)
    values ('a-1', 'ada@example.com', 'scrypt$1', 'Ada', 'customer', 'Asia/Dubai', 'ar-AE', 3, '2025-01-01',
            '2025-02-01'),
        ('a-2', 'eve@example.com', 'scrypt$2', '', 'customer', 'UTC', 'en', 0, '2025-01-02', '2025-01-02'),
        ('a-3', 'root@example.com', 'scrypt$3', 'Root', 'operator', 'UTC', 'en', 1, '2025-01-03', '2025-01-03');
    insert into subscriptions.subscriptions (id, account_id, plan_id, state, time_zone, due_at, due_for)
    values ('s-1', 'a-1', 'basic-v1', 'incomplete', 'UTC', '2026-01-02', 'expire');
    insert into subscriptions.invoices (id, number, account_id, subscription_id, action, plan_id, period, period_start,
        period_end, currency, exponent, total_minor, due_minor, issued_at)
    values ('i-1', 'INV-2026-000001', 'a-1', 's-1', 'initial', 'basic-v1', 0, '2026-01-01', '2026-02-01', 'AED', 2,
        2900, 2900, '2026-01-01');
"""


@pytest.fixture
def empty(postgres: ScratchServer) -> Iterator[ScratchDatabase]:
    database = postgres.empty_database()
    yield database
    postgres.drop(database)


async def test_accounts_of_the_version_before_keep_everything_and_can_be_edited(empty: ScratchDatabase) -> None:
    owner = await asyncpg.connect(empty.owner_url)
    await migrate(owner, [each for each in HEAD if each.component != "billing" or each.number < THIS.number])
    await owner.execute(BEFORE)
    before = [dict(row) for row in await owner.fetch("select * from subscriptions.accounts order by id")]
    await migrate(owner, HEAD)
    after = [dict(row) for row in await owner.fetch("select * from subscriptions.accounts order by id")]
    assert after == [{**row, "external_id": None, "revision": 0} for row in before]
    await owner.close()
    async with open_stage(empty) as s:
        found = await customers.listed(s.read, None, None, None, 10)
        assert [(each.id, each.has_password, each.version) for each in found] == [("a-2", True, 0), ("a-1", True, 3)]
        await s.clock.freeze(datetime(2030, 1, 1, tzinfo=UTC))
        async with s.begin() as tx:
            edited = await customers.edit(tx, "a-1", 0, {"external_id": "crm-1", "name": "Countess"}, "shop")
        assert (edited.external_id, edited.revision, edited.locale) == ("crm-1", 1, "ar-AE")
        invoice = await invoices.find(s.read, "i-1")
        assert invoice is not None
        assert (await customers.as_invoiced(s.read, invoice)).name == "Ada"
        with pytest.raises(asyncpg.UniqueViolationError):
            await s.owner.execute("update subscriptions.accounts set external_id = 'crm-1' where id = 'a-2'")
