"""What an effect of a payout asks for stays the same from run to run, whatever settings and chain say meanwhile."""

from typing import Any

import msgspec
import pytest

from payonce.engine.effects.identity import prepare
from payonce.kit.money import Amount
from payonce.services.payouts.effects import CreateSwap
from payonce.services.payouts.handlers.wallet import PayDeposit
from payonce.services.payouts.model import ETH, Swap, SwapState

SWAP = Swap(
    id="s-1",
    unique_id="u-1",
    part=1,
    round=1,
    currency="btc",
    network="btc",
    address="bc1",
    extra_id=None,
    amount=Amount(10**18, ETH),
    direct=False,
    state=SwapState.CREATED,
    cn_api_id="x-1",
    payin_address="0x01",
    payin_extra_id=None,
    valid_until=None,
    triggered_at=None,
    reason=None,
)
NOBODY: Any = None


def order(refund_address: str = "0xaa", **changes: Any) -> CreateSwap:
    return CreateSwap(NOBODY, msgspec.structs.replace(SWAP, **changes), refund_address)


def deposit(**changes: Any) -> PayDeposit:
    return PayDeposit(NOBODY, NOBODY, msgspec.structs.replace(SWAP, **changes))


async def test_an_order_in_doubt_stays_the_same_when_the_refund_address_is_changed() -> None:
    first, second = await prepare(order()), await prepare(order("0xbb", state=SwapState.CREATING))
    assert first.document != second.document
    assert first.identity == second.identity


@pytest.mark.parametrize("effect", [order, deposit])
def test_another_swap_or_amount_is_another_request(effect: Any) -> None:
    asked = effect().identity()
    assert effect(state=SwapState.PAYING).identity() == asked
    assert effect(id="s-2").identity() != asked
    assert effect(amount=Amount(10**18 + 1, ETH)).identity() != asked


def test_another_payee_is_another_request() -> None:
    assert order(address="bc2").identity() != order().identity()
    assert deposit(payin_address="0x02").identity() != deposit().identity()
