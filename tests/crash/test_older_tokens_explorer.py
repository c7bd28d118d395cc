"""Tokens of older services in the crash explorer: two tasks say the same payment, its address in two spellings. Whoever
dies or stands still wherever, one of them is paid, and the other waits for a person."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import pytest

from payonce.engine.ledger import Account, balance
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.transaction import Tx
from payonce.services.payouts import ledger
from payonce.services.payouts.api import webhook
from payonce.services.payouts.crash.scenarios import EXCHANGE
from payonce.services.payouts.domain.addresses import key_of
from payonce.services.payouts.messages.tokens import EstimateRequest, EstimateResponse, hops, plain
from payonce.services.payouts.model import ETH
from payonce.services.payouts.policies import ESTIMATE, ESTIMATED
from payonce.services.payouts.store import orders
from payonce.testing import ScratchServer
from payonce.testing.crash import PROCESS_MODES, Mode, explore, explore_without, parse_point
from payonce.testing.crash.ablations import Ablation, put
from tests.crash.test_external_hostpay_explorer import TASKS, ExternalScenario

SPELLINGS: Final = ("0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed")
OLDER: Final = {hops.OLDER: "accept", hops.MADE_AT: 0}


class OlderTokensScenario(ExternalScenario):
    name = "payout-older"

    async def set_up(self, tx: Tx) -> None:
        common: dict[str, Any] = {
            "user_id": 7,
            "closed_channel_id": "-100",
            "payout_currency": "usdc",
            "payout_network": "eth",
        }
        asked = EstimateRequest(**common, wallet_address=SPELLINGS[0], adjusted_amount_usdt=Decimal(97))
        told = EstimateResponse(
            **common,
            wallet_address=SPELLINGS[1],
            from_amount_usdt=Decimal(97),
            to_amount_eth_post_fee=Decimal("0.0381"),
            deposit_fee=Decimal(0),
            withdrawal_fee=Decimal("0.0007"),
        )
        await tx.send(ESTIMATE, {**plain(asked), **OLDER}, key="request")
        await tx.send(ESTIMATED, {**plain(told), **OLDER}, key="answer")

    async def check(self, read: Reads, simulators: Mapping[str, Any]) -> list[str]:
        found = []
        rows = await read.fetch("select state, hold from payouts.payouts order by state")
        if (stand := [(row["state"], row["hold"]) for row in rows]) != [("finished", None), ("review", "repeated")]:
            found.append(f"the payouts stand at {stand}")
        if (called := simulators[TASKS].calls.total()) != 1:
            found.append(f"GCHostPay was called {called} times")
        clients = [key_of(each.address) for each in simulators[EXCHANGE].settle_all().payouts]
        if clients != [key_of(SPELLINGS[0])]:
            found.append(f"the exchange paid {clients}")
        for path in (ledger.AT_EXCHANGE, ledger.OWED):
            if left := await balance(read, Account(path, ETH)):
                found.append(f"{left} are left in {path}")
        return found


def by_spelling() -> None:
    """Addresses are compared as they are written."""
    for module in (webhook, orders):
        put(module, "key_of", lambda address: address)


@pytest.mark.parametrize(
    "point",
    [
        # The payout is accepted, but this is not recorded: the task comes again.
        "payout-older @ answer engine.messages.work:Work.commit #1 @ after",
        # It stands still until the other task is a payout.
        "payout-older @ answer engine.messages.work:Work.commit #1 @ stopped",
        "payout-older @ request engine.messages.work:Work.commit #1 @ late",
    ],
)
def test_what_two_tasks_say_is_paid_once(postgres: ScratchServer, point: str) -> None:
    report = explore([OlderTokensScenario()], server=postgres, only=parse_point(point))
    assert report.sound, report.summary()


def test_two_spellings_taken_for_two_clients_are_missed(postgres: ScratchServer) -> None:
    ablation = Ablation(
        "the bytes of an address",
        by_spelling,
        OlderTokensScenario.name,
        Mode.BEFORE,
        near="answer engine.messages.work",
    )
    [caught] = explore_without([ablation], [OlderTokensScenario()], server=postgres)
    assert caught.at is not None


@pytest.mark.full
@pytest.mark.timeout(900)
def test_what_two_tasks_say_is_paid_once_wherever_somebody_dies(postgres: ScratchServer) -> None:
    report = explore([OlderTokensScenario()], server=postgres, modes=PROCESS_MODES, processes=2)
    assert report.sound, report.summary()
    assert len(report.results) >= 100
