"""The queues have the names and the retries that were asked for."""

import pytest

from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy, planned_delay_s
from payonce.services.payouts import ROLES
from payonce.services.payouts.policies import QUEUES, VENDOR_TIMEOUT_S

NAMES = (
    "gcsplit-usdt-eth-estimate-queue",
    "gcsplit-usdt-eth-response-queue",
    "gcsplit-eth-client-swap-queue",
    "gcsplit-eth-client-response-queue",
    "gcsplit-hostpay-trigger-queue",
)


def test_the_five_queues_have_their_names() -> None:
    assert tuple(policy.queue for policy in QUEUES) == NAMES


@pytest.mark.parametrize("policy", QUEUES, ids=lambda policy: policy.queue)
def test_every_queue_retries_for_a_day_a_minute_apart(policy: Policy) -> None:
    assert (policy.max_attempts, policy.give_up_after_s) == (None, 86_400.0)
    assert (policy.rate, policy.concurrency) == (10.0, 50)
    message = Message(queue=policy.queue, payload={})
    assert {planned_delay_s(policy, message.id, run) for run in (1, 2, 10, 1_000)} == {60.0}
    assert callable(policy.on_give_up)


@pytest.mark.parametrize("policy", QUEUES, ids=lambda policy: policy.queue)
def test_a_call_to_the_exchange_ends_before_the_run_and_its_request(policy: Policy) -> None:
    assert VENDOR_TIMEOUT_S < policy.lease_s < policy.run_limit_s < 120.0


def test_every_queue_has_one_role() -> None:
    served = [handler.policy.queue for handlers in ROLES.values() for handler in handlers]
    assert {queue: served.count(queue) for queue in NAMES} == dict.fromkeys(NAMES, 1)
