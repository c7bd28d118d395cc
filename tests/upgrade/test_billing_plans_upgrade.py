"""Plans, trials, limits and plan changes of the previous version keep their meaning, and accepted changes end."""

from collections.abc import Iterator
from datetime import UTC, datetime

import asyncpg
import pytest

from payonce.app.registry import all_migrations
from payonce.engine.database.migrate import migrate
from payonce.services.billing.policies import PLAN_CHANGE
from payonce.services.billing.subscriptions.model import ChangeState, ChangeTiming
from payonce.services.billing.subscriptions.store import plan_changes, plans, usage
from payonce.testing import ScratchDatabase, ScratchServer, open_stage
from tests.services.billing.billing_stage import House, aed, open_house

HEAD = all_migrations()
[THIS] = [each for each in HEAD if each.component == "billing" and "allowance_and_plan_changes" in str(each)]
BEGUN = datetime(2026, 1, 31, 9, tzinfo=UTC)
NOW = datetime(2026, 5, 10, 9, tzinfo=UTC)

BEFORE = """
    insert into subscriptions.accounts (id, email, password_hash, time_zone)
    select name, name || '@example.com', '', 'Asia/Dubai'
    from unnest(array['annual', 'trial', 'later', 'now', 'queued', 'own']) name;
    alter table subscriptions.plans disable trigger plans_stay_as_sold;
    update subscriptions.plans set created_at = '2020-01-01';
    alter table subscriptions.plans enable trigger plans_stay_as_sold;
    insert into subscriptions.plans (id, code, version, name, price_minor, currency, exponent, interval_unit,
        interval_count, features, created_at)
    values ('own-v1', 'own', 1, 'Own', 100, 'AED', 2, 'year', 1, '{"api_calls": 10000, "projects": 20}', '2020-01-01');
    insert into subscriptions.subscriptions (id, account_id, plan_id, state, time_zone, anchor_at, period_start,
        period_end, due_at, due_for, next_plan_id, trial_ends_at, created_at)
    select 'of-' || name, name, plan, state, 'Asia/Dubai', begun, begun, ends, ends, due_for, next, trial_ends, begun
    from (values
        ('annual', 'annual-pro-v1', 'active', '2026-01-31 09:00+00'::timestamptz, '2027-01-31 09:00+00'::timestamptz,
            'renew', null, null::timestamptz),
        ('own', 'own-v1', 'active', '2026-01-31 09:00+00', '2027-01-31 09:00+00', 'renew', null, null),
        ('trial', 'trial-v1', 'trialing', '2026-05-01 09:00+00', '2026-05-15 09:00+00', 'trial_end', null,
            '2026-05-15 09:00+00'),
        ('later', 'pro-v1', 'active', '2026-05-01 09:00+00', '2026-06-01 09:00+00', 'renew', 'basic-v1', null),
        ('now', 'basic-v1', 'active', '2026-05-01 09:00+00', '2026-06-01 09:00+00', 'renew', null, null),
        ('queued', 'basic-v1', 'active', '2026-05-01 09:00+00', '2026-06-01 09:00+00', 'renew', null, null)
    ) rows (name, plan, state, begun, ends, due_for, next, trial_ends);
    insert into subscriptions.usage_counters (subscription_id, feature, period_start, used)
    values ('of-annual', 'api_calls', '2026-01-31 09:00+00', 10000), ('of-own', 'api_calls', '2026-01-31 09:00+00', 7);
    insert into subscriptions.usage_totals (subscription_id, feature, period_start, total, events)
    values ('of-annual', 'api_calls', '2026-01-31 09:00+00', 10000, 1),
        ('of-own', 'api_calls', '2026-01-31 09:00+00', 7, 1);
    insert into subscriptions.invoices (id, number, account_id, subscription_id, action, plan_id, period_start,
        period_end, currency, exponent, total_minor, due_minor, charging, generation, issued_at)
    values ('change-now', 'INV-2026-000001', 'now', 'of-now', 'upgrade', 'pro-v1', '2026-05-01 09:00+00',
        '2026-06-01 09:00+00', 'AED', 2, 7000, 7000, true, 1, '2026-05-09');
    insert into subscriptions.number_series (series, year, last) values ('INV', 2026, 1);
    update subscriptions.plans set retired_at = '2026-05-05' where id = 'basic-v1';
    insert into subscriptions.plans (id, code, version, name, price_minor, currency, exponent, interval_unit,
        interval_count, created_at)
    values ('basic-v2', 'basic', 2, 'Basic', 3900, 'AED', 2, 'month', 1, '2026-05-05');
"""


@pytest.fixture
def empty(postgres: ScratchServer) -> Iterator[ScratchDatabase]:
    database = postgres.empty_database()
    yield database
    postgres.drop(database)


async def test_what_the_version_before_had_accepted_and_sold_is_kept(empty: ScratchDatabase) -> None:
    owner = await asyncpg.connect(empty.owner_url)
    await migrate(owner, [each for each in HEAD if each.component != "billing" or each.number < THIS.number])
    await owner.execute(BEFORE)
    await migrate(owner, HEAD)
    await owner.close()
    async with open_house(lambda: open_stage(empty), at=NOW) as house:
        await limits(house)
        await trials(house)
        await changes(house)


async def limits(house: House) -> None:
    """A month's limits in the annual plan of the schema; a merchant's own annual plan does not change."""
    annual = await house.subscription("of-annual")
    assert annual.allowance_starts is not None
    assert [(each.month, each.day) for each in annual.allowance_starts][:4] == [(1, 31), (2, 28), (3, 31), (4, 30)]
    assert len(annual.allowance_starts) == 12
    assert (await usage.use(house.s.read, "annual", "api_calls", 10_000, "e-1")).period_start == datetime(
        2026, 4, 30, 9, tzinfo=UTC
    )
    own = await usage.use(house.s.read, "own", "api_calls", 1, "e-1")
    assert (own.used, own.period_start) == (8, BEGUN)
    assert plans.allowance_of(await plans.plan(house.s.read, "own-v1")) is None


async def trials(house: House) -> None:
    assert (await house.subscription("of-trial")).converts_to_plan_id == "basic-v1", "for sale on the first of May"


async def changes(house: House) -> None:
    [later] = await plan_changes.of_subscription(house.s.read, "of-later")
    assert (later.timing, later.to_plan_id, later.state) == (ChangeTiming.PERIOD_END, "basic-v1", ChangeState.PENDING)
    [now] = await plan_changes.of_subscription(house.s.read, "of-now")
    assert (now.id, now.timing, now.state) == ("change-now", ChangeTiming.NOW, ChangeState.PENDING)
    payload = {"subscription_id": "of-queued", "change_id": "c-1", "plan_id": "pro-v1", "at": NOW.isoformat()}
    async with house.s.begin() as tx:
        await tx.send(PLAN_CHANGE, payload, action="upgrade")
    await house.run()
    [queued] = await plan_changes.of_subscription(house.s.read, "of-queued")
    assert (queued.id, queued.state) == ("c-1", ChangeState.FAILED), "the account has no card"
    assert (await house.subscription("of-later")).next_plan_id == "basic-v1"
    assert aed("29.00") == (await plans.plan(house.s.read, "basic-v1")).price
