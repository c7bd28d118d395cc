"""What billing does with its queues in PostgreSQL it does with them in Redis: the same tests once more."""

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from payonce.embedded.redis import RedisServer
from payonce.testing import OpenStage
from tests.redis.terminal import Terminal
from tests.services.billing import test_applying, test_changing, test_clocks, test_collecting, test_life
from tests.services.billing.redis_stage import on_redis

AGAIN: Final[tuple[Callable[[OpenStage], Awaitable[None]], ...]] = (
    test_life.test_a_subscription_is_active_with_its_first_payment,
    test_life.test_a_trial_is_given_back_and_becomes_the_plan_that_follows,
    test_life.test_canceled_now_it_earns_at_once_what_was_paid,
    test_collecting.test_paid_on_a_day_of_dunning_it_is_active_as_if_nothing_had_been,
    test_collecting.test_a_new_card_is_tried_at_once,
    test_changing.test_an_upgrade_costs_the_difference_to_the_second,
    test_changing.test_a_change_that_is_not_paid_leaves_the_plan_as_it_was,
    test_clocks.test_a_year_of_a_customer_passes_at_once,
    test_applying.test_every_message_that_comes_again_changes_nothing,
    test_applying.test_a_webhook_that_did_not_arrive_comes_by_the_queue,
    test_applying.test_a_payment_that_comes_after_the_end_is_given_back,
    test_applying.test_part_of_a_payment_is_given_back_with_a_credit_note,
)
LONGER: Final[tuple[Callable[[OpenStage], Awaitable[None]], ...]] = (
    test_life.test_a_year_has_twelve_renewals_on_the_last_of_each_month,
    test_life.test_resumed_after_its_period_a_new_one_begins_at_that_moment,
    test_life.test_after_an_outage_every_period_is_invoiced_one_after_the_other,
    test_collecting.test_a_failed_renewal_is_tried_on_its_days_and_then_unpaid,
    test_clocks.test_trials_dunning_and_renewals_of_many_happen_in_order,
    test_applying.test_an_event_that_comes_again_is_a_duplicate_and_changes_nothing,
)


@pytest.mark.parametrize(
    "test", [*AGAIN, *(pytest.param(each, marks=pytest.mark.full) for each in LONGER)], ids=lambda test: test.__name__
)
async def test_it_is_the_same_on_redis(
    stage: OpenStage, redis_server: RedisServer, test: Callable[[OpenStage], Awaitable[None]]
) -> None:
    await test(on_redis(stage, redis_server))
    async with Terminal.open(redis_server.port) as terminal:
        assert await terminal.type("LLEN q:log:jobs") > 0, "it ran elsewhere"
