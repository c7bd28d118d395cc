"""Payouts in the crash explorer: whoever dies wherever, the client is paid once; and each safeguard is missed."""

import pytest

from payonce.payouts_crash import SCENARIOS
from payonce.services.payouts.model import ETH
from payonce.services.payouts.wallet import PayDeposit, PayRequest, Sent
from payonce.testing import ScratchServer
from payonce.testing.crash import Ablation, Mode, explore, explore_without, parse_point
from payonce.testing.crash.ablations import message_after_the_commit, posting_after_the_commit, put

_, DIRECT = SCENARIOS


def another_nonce_for_every_broadcast() -> None:
    """What people write before they have paid twice: sign when it is sent."""

    async def perform(effect: PayDeposit, request: PayRequest) -> Sent:
        wallet = effect.host.wallet
        market = await wallet.market(ETH)
        signed = wallet.sign(request.payment, market.pending_nonce, request.fees)
        return Sent(wallet.address, signed.nonce, signed.hash, await wallet.broadcast(signed))

    put(PayDeposit, "perform", perform)


ABLATIONS = (
    Ablation(
        "a nonce on record", another_nonce_for_every_broadcast, DIRECT.name, Mode.AFTER, near="vendors.evm.client"
    ),
    Ablation(
        "the next message in the same commit", message_after_the_commit, DIRECT.name, Mode.AFTER, near="engine.work"
    ),
    Ablation("the books in the same commit", posting_after_the_commit, DIRECT.name, Mode.AFTER, near="engine.work"),
)


@pytest.mark.parametrize(
    "point",
    [
        # The exchange exists, and nobody here knows.
        "payout @ payout vendors.changenow.client:ChangeNowClient._send #2 @ after",
        # Nonce and bytes are on record, and nothing was sent.
        "payout @ payout engine.effects.send:Run.intent #2 @ after",
        # Sent, and stopped until somebody else has followed it to its end.
        "payout @ payout engine.effects.send:Run.record #2 @ stopped",
        # The wallet's lease comes when its holder is dead.
        "payout @ payout engine.leases:acquire #1 @ late",
        "payout-direct @ payout-direct engine.work:Work.commit #3 @ stopped",
    ],
)
def test_the_client_is_paid_once(postgres: ScratchServer, point: str) -> None:
    strike = parse_point(point)
    scenarios = [each for each in SCENARIOS if each.name == strike.scenario]
    report = explore(scenarios, server=postgres, only=strike)
    assert report.sound, report.told()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [each.name for each in ABLATIONS])
def test_a_safeguard_that_is_taken_out_is_missed(postgres: ScratchServer, name: str) -> None:
    [ablation] = [each for each in ABLATIONS if each.name == name]
    scenarios = [each for each in SCENARIOS if each.name == ablation.scenario]
    [caught] = explore_without([ablation], scenarios, server=postgres)
    assert caught.at is not None, f"without {name} the explorer finds nothing"


@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_every_crossing_of_payouts_in_every_mode(postgres: ScratchServer) -> None:
    report = explore(SCENARIOS, server=postgres)
    assert report.sound, report.told()
    assert report.figures()["points"] > 400
