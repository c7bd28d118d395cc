"""Plan migrations from the command line."""

import asyncio

import asyncpg
import pytest

from payonce.services.billing.cli.plans import NOTICE_DAYS as CLI_NOTICE_DAYS
from payonce.services.billing.subscriptions.handlers.plan_migrations import NOTICE_DAYS
from payonce.testing import ScratchDatabase
from tests.cli.conftest import Payonce

SOLD = """
    insert into subscriptions.accounts (id, email, password_hash) values ('acc-1', 'ada@example.com', '');
    insert into subscriptions.subscriptions (id, account_id, plan_id, state, time_zone, anchor_at, period_start,
        period_end, due_at, due_for)
    values ('sub-1', 'acc-1', 'basic-v1', 'active', 'UTC', '2026-01-31', '2026-01-31', '2126-01-31', '2126-01-31',
        'renew');
    update subscriptions.plans set retired_at = payonce.due_now() where id = 'basic-v1';
    insert into subscriptions.plans (id, code, version, name, price_minor, currency, exponent, interval_unit,
        interval_count) values ('basic-v2', 'basic', 2, 'Basic', 3900, 'AED', 2, 'month', 1);
"""


@pytest.fixture
def sold(database: ScratchDatabase) -> None:
    async def sell() -> None:
        owner = await asyncpg.connect(database.owner_url)
        await owner.execute(SOLD)
        await owner.close()

    asyncio.run(sell())


def test_a_migration_is_previewed_ordered_listed_and_canceled(payonce: Payonce, sold: None) -> None:
    plans = ("billing", "plans")
    seen = payonce(*plans, "migrate", "basic-v1", "--preview", "--json").json["preview"]
    assert (seen["subscriptions"], seen["to_plan_id"]) == (1, "basic-v2")
    assert (seen["total"]["amount"], seen["new_total"]["amount"]) == ("29.00", "39.00")
    assert (seen["notice_days"], seen["terms"]["allowance_interval"]) == (14, "month")
    assert seen["new_terms"]["features"] == {}, "the new version includes none of the older one's"
    shown = payonce(*plans, "migrate", "basic-v1", "--preview", "--notice-days", "30").stdout
    for said in ("30 days", "limits reset every", "1 month", "limit of projects", "not included"):
        assert said in shown
    assert payonce(*plans, "migrations", "--json").json == {"migrations": []}, "a preview changes nothing"
    unsaid = payonce(*plans, "migrate", "basic-v1", "--yes", "--json")
    assert (unsaid.code, "--why" in unsaid.sentence) == (2, True)
    asked = payonce(*plans, "migrate", "basic-v1", "--why", "prices of 2027", "--json")
    assert (asked.code, "--yes" in asked.sentence) == (2, True)
    order = ("migrate", "basic-v1", "--why", "prices of 2027", "--by", "ann", "--yes", "--json")
    ordered = payonce(*plans, *order).json["migration"]
    assert (ordered["state"], ordered["requested_by"], ordered["notice_days"]) == ("running", "ann", NOTICE_DAYS)
    assert CLI_NOTICE_DAYS == NOTICE_DAYS
    again = payonce(*plans, *order)
    assert (again.code, "is in progress" in again.sentence) == (2, True)
    [listed] = payonce(*plans, "migrations", "--json").json["migrations"]
    assert listed["id"] == ordered["id"]
    canceled = payonce(*plans, "cancel-migration", ordered["id"], "--why", "too early", "--by", "bob", "--json")
    assert canceled.json["migration"]["state"] == "canceling"
    noted = payonce("audit", "log", "--reference", ordered["id"], "--json").json["notes"]
    assert sorted(one["actor"] for one in noted) == ["ann", "bob"]


def test_what_cannot_be_migrated_is_refused_in_a_sentence(payonce: Payonce, sold: None) -> None:
    for arguments, says in (
        (("migrate", "basic", "--preview"), "is the version for sale"),
        (("migrate", "none", "--preview"), "there is no plan 'none'"),
        (("cancel-migration", "none", "--why", "x"), "there is no plan migration 'none'"),
    ):
        refused = payonce("billing", "plans", *arguments)
        assert (refused.code, says in refused.sentence) == (2, True)
