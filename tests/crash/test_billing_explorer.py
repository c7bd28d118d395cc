"""Billing in the crash explorer: wherever a process dies, every period is invoiced and charged once; and each safeguard
is needed."""

from collections.abc import Sequence

import pytest

from payonce.services.billing import INVARIANTS
from payonce.services.billing.crash import SCENARIOS
from payonce.services.billing.crash.ablations import ABLATIONS
from payonce.services.billing.crash.scenarios import BY_SCHEDULE
from payonce.testing import ScratchServer
from payonce.testing.crash import ON_POSTGRES, PROCESS_MODES, Backend, Scenario, explore, explore_without, parse_point
from payonce.testing.crash.on_redis import OnRedis

QUICKLY_MISSED = ("the generation in the key of a charge", "one key for all sends of a refund")


@pytest.mark.parametrize(
    "point",
    [
        # The receiver has applied it, and the sender never hears of it.
        "billing-trial @ - services.billing.subscriptions.api.webhooks:take_payment_event #1 @ after",
        # The gateway has captured it, but this is not recorded.
        "billing-trial @ billing-trial vendors.gateway.client:GatewayClient._send #1 @ after",
        # The invoice and the charge that it asks for, or neither.
        "billing-change @ billing-change engine.messages.work:Work.commit #3 @ before",
        # The gateway has refunded credit as money, but this is not recorded.
        "billing-credit @ billing-credit vendors.gateway.client:GatewayClient._send #2 @ after",
        # Canceled, and the caller never hears of it, while a change of plan is accepted.
        "billing-change-canceled @ cancel engine.messages.work:Work.commit #1 @ after",
        # The renewal is put while the change that waited for it is being worked on.
        "billing-change-renewal @ due engine.messages.work:Work.commit #1 @ before",
        # Stopped before it takes the credit, until that was used and the rest has expired.
        "billing-credit-shared @ pay-out engine.messages.work:Work.commit #1 @ stopped",
        # Declined, and the process stands still until somebody else has dunned and charged the invoice.
        pytest.param(
            "billing-renewal @ billing-renewal vendors.gateway.client:GatewayClient._send #2 @ stopped",
            marks=pytest.mark.full,
        ),
    ],
)
def test_every_period_is_charged_once(postgres: ScratchServer, point: str) -> None:
    strike = parse_point(point)
    scenarios = [each for each in SCENARIOS if each.name == strike.scenario]
    report = explore(scenarios, server=postgres, only=strike)
    assert report.sound, report.summary()


def missed(server: ScratchServer, names: Sequence[str]) -> None:
    ablations = [each for each in ABLATIONS if each.name in names]
    assert len(ablations) == len(names)
    wanted = {each.scenario for each in ablations}
    for caught in explore_without(ablations, [each for each in SCENARIOS if each.name in wanted], server=server):
        assert caught.at is not None, f"without {caught.name} the explorer finds nothing"


def test_a_safeguard_of_billing_that_is_taken_out_is_missed(postgres: ScratchServer) -> None:
    missed(postgres, QUICKLY_MISSED)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_other_safeguard_that_is_taken_out_is_missed(postgres: ScratchServer) -> None:
    missed(postgres, [each.name for each in ABLATIONS if each.name not in QUICKLY_MISSED])


@pytest.mark.full
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    ("backend", "scenarios"),
    [
        pytest.param(ON_POSTGRES, SCENARIOS, id="postgres"),
        pytest.param(OnRedis(), [each.with_queues_in_redis() for each in SCENARIOS], id="redis"),
    ],
)
def test_every_crossing_of_billing_in_every_mode(
    postgres: ScratchServer, backend: Backend, scenarios: Sequence[Scenario]
) -> None:
    report = explore(scenarios, server=postgres, backend=backend)
    assert report.sound, report.summary()
    assert report.figures()["points"] > 300
    crossed = report.coverage()
    for site in (
        "vendors.gateway.client:GatewayClient._send",
        "engine.messages.work:Work.commit",
        "services.billing.payments.handlers.notifications:NotificationSender.record",
        "services.billing.subscriptions.api.webhooks:take_payment_event",
    ):
        assert set(crossed[site]) >= set(PROCESS_MODES), site


def test_with_queues_in_redis_the_invariant_of_the_schedule_is_left_out_and_no_other() -> None:
    for each in SCENARIOS:
        assert each.invariants == INVARIANTS
        assert set(INVARIANTS) - set(each.with_queues_in_redis().invariants) == {BY_SCHEDULE}
