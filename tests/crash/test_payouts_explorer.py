"""Payouts in the crash explorer, over their task service: whoever dies wherever, the client is paid once; and each
safeguard is missed."""

from collections.abc import Sequence

import pytest

from payonce.services.payouts.crash import SCENARIOS
from payonce.services.payouts.crash.ablations import ABLATIONS
from payonce.services.payouts.crash.queues import open_backend
from payonce.testing import ScratchServer
from payonce.testing.crash import PROCESS_MODES, explore, explore_without, parse_point
from payonce.testing.crash.on_cloudtasks import OnCloudTasks

QUICKLY_MISSED = ("the inbox", "the run token", "the intent of a payment", "no other swap once hostpay is told")


@pytest.fixture(scope="module")
def stand() -> OnCloudTasks:
    return open_backend()


@pytest.mark.parametrize(
    "point",
    [
        # The task is made, and its relay does not know it: made again under the same name, it is there once.
        "payout @ - queues.cloudtasks.client:TaskService._create_one #1 @ after",
        # The role has done its work, but the task service gets no response: the inbox recognises the repeated task.
        "payout-direct @ - taskserver.delivery:Sender._exchange #6 @ after",
        # A request that was on its way for a minute reaches a door where its message has another run.
        pytest.param("payout-direct @ - taskserver.delivery:Sender._exchange #5 @ late", marks=pytest.mark.full),
        # The exchange exists, but this is not recorded.
        pytest.param(
            "payout @ payout vendors.changenow.client:ChangeNowClient._send #3 @ after", marks=pytest.mark.full
        ),
        # Sent, and stopped until somebody else has followed it to its end.
        "payout @ payout engine.effects.store:record_performed #2 @ stopped",
        # The task service forgets what it has while a run of it dies in its commit.
        "payout-lost @ payout-lost engine.messages.work:Work.commit #6 @ before",
        # The server crashes under the janitor that looks for forgotten payouts: it comes by again.
        "payout-lost @ - services.payouts.crash.scenarios:PayoutsScenario.janitors.look_later #1 @ server-crash-before",
    ],
)
def test_the_client_is_paid_once(postgres: ScratchServer, stand: OnCloudTasks, point: str) -> None:
    strike = parse_point(point)
    scenarios = [each for each in SCENARIOS if each.name == strike.scenario]
    report = explore(scenarios, server=postgres, backend=stand, only=strike)
    assert report.sound, report.summary()


def missed(server: ScratchServer, stand: OnCloudTasks, names: Sequence[str]) -> None:
    ablations = [each for each in ABLATIONS if each.name in names]
    assert len(ablations) == len(names)
    for caught in explore_without(ablations, SCENARIOS, server=server, backend=stand):
        assert caught.at is not None, f"without {caught.name} the explorer finds nothing"


def test_a_safeguard_of_the_pipeline_that_is_taken_out_is_missed(postgres: ScratchServer, stand: OnCloudTasks) -> None:
    missed(postgres, stand, QUICKLY_MISSED)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_other_safeguard_that_is_taken_out_is_missed(postgres: ScratchServer, stand: OnCloudTasks) -> None:
    missed(postgres, stand, [each.name for each in ABLATIONS if each.name not in QUICKLY_MISSED])


@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_every_crossing_of_payouts_in_every_mode(postgres: ScratchServer, stand: OnCloudTasks) -> None:
    report = explore(SCENARIOS, server=postgres, backend=stand)
    assert report.sound, report.summary()
    assert report.figures()["points"] > 1_200
    crossed = report.coverage()
    for site in (
        "client:TaskService._create_one",
        "server.task_store:TaskStore.put",
        "server.sending:Sender._exchange",
        "server.task_store:TaskStore.claim",
        "server.task_store:TaskStore.settle",
        "queue:CloudTasksQueue._begin",
    ):
        assert set(crossed[f"queues.cloudtasks.{site}"]) >= set(PROCESS_MODES), site
