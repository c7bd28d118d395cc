"""A plan migration of the previous version moves its subscriptions with their next renewal, as announced then."""

from collections.abc import Iterator
from datetime import UTC, datetime

import asyncpg
import pytest

from payonce.app.registry import all_migrations
from payonce.engine.database.migrate import migrate
from payonce.services.billing.subscriptions.handlers import plan_moves
from payonce.services.billing.subscriptions.store import plan_changes
from payonce.testing import ScratchDatabase, ScratchServer, open_stage
from tests.services.billing.billing_stage import open_house

HEAD = all_migrations()
[THIS] = [each for each in HEAD if each.component == "billing" and "notice_of_plan_migrations" in str(each)]
NOW = datetime(2026, 5, 31, 8, tzinfo=UTC)
ENDS = datetime(2026, 6, 1, 9, tzinfo=UTC)

BEFORE = """
    insert into subscriptions.accounts (id, email, password_hash) values ('ada', 'ada@example.com', '');
    update subscriptions.plans set retired_at = '2026-05-05' where id = 'basic-v1';
    insert into subscriptions.plans (id, code, version, name, price_minor, currency, exponent, interval_unit,
        interval_count, created_at)
    values ('basic-v2', 'basic', 2, 'Basic', 3900, 'AED', 2, 'month', 1, '2026-05-05');
    insert into subscriptions.subscriptions (id, account_id, plan_id, state, time_zone, anchor_at, period_start,
        period_end, due_at, due_for, next_plan_id, created_at)
    values ('of-ada', 'ada', 'basic-v1', 'active', 'UTC', '2026-05-01 09:00+00', '2026-05-01 09:00+00',
        '2026-06-01 09:00+00', '2026-06-01 09:00+00', 'renew', 'basic-v2', '2026-05-01 09:00+00');
    insert into subscriptions.plan_migrations (id, from_plan_id, to_plan_id, state, note, requested_by, scheduled)
    values ('m-1', 'basic-v1', 'basic-v2', 'done', 'prices of 2027', 'ann', 1);
    insert into subscriptions.plan_changes (id, subscription_id, from_plan_id, to_plan_id, at_period_end, migration_id,
        requested_at)
    values ('c-1', 'of-ada', 'basic-v1', 'basic-v2', true, 'm-1', '2026-05-06 09:00+00');
"""


@pytest.fixture
def empty(postgres: ScratchServer) -> Iterator[ScratchDatabase]:
    database = postgres.empty_database()
    yield database
    postgres.drop(database)


async def test_a_move_that_the_version_before_scheduled_keeps_its_date(empty: ScratchDatabase) -> None:
    owner = await asyncpg.connect(empty.owner_url)
    await migrate(owner, [each for each in HEAD if each.component != "billing" or each.number < THIS.number])
    await owner.execute(BEFORE)
    await migrate(owner, HEAD)
    await owner.close()
    async with open_house(lambda: open_stage(empty), at=NOW) as house:
        migration = await plan_moves.find(house.s.read, "m-1")
        assert migration is not None
        assert migration.notice_days == 0
        [change] = await plan_changes.of_subscription(house.s.read, "of-ada")
        assert change.effective_at(await house.subscription("of-ada")) == ENDS
        await house.go_to(ENDS)
        assert (await house.subscription("of-ada")).plan_id == "basic-v2"
