"""What hostpay does when the exchange, the chain or a person says something else while it is about to pay."""

from dataclasses import replace
from decimal import Decimal

import pytest

from payonce.services.payouts.model import Hold, State
from payonce.testing import OpenStage
from payonce.vendors.changenow import prices
from tests.services.payouts.hostpay_stage import open_house


@pytest.fixture
def uneven_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Amounts in ether come to all of their eighteen decimals."""
    ether = replace(prices.LISTINGS["eth", "eth"], price=Decimal("2531.77"))
    monkeypatch.setattr(prices, "LISTINGS", {**prices.LISTINGS, ("eth", "eth"): ether})


@pytest.mark.parametrize("price", ["29.99", "100", "4999.99"])
async def test_an_amount_that_went_through_a_double_is_ours_and_is_paid_exactly(
    stage: OpenStage, uneven_price: None, price: str
) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay(price=price)
        [entry] = house.changenow.books.entries.values()
        exact, entry.expected_from = entry.expected_from, Decimal(repr(float(entry.expected_from)))
        await house.run()
        swap = await house.swap(payout)
        assert swap.amount.to_decimal() == exact != entry.expected_from
        assert [each.amount for each in house.transfers()] == [swap.amount]
        await house.sound(payout)


async def test_an_amount_that_no_double_explains_is_not_paid(stage: OpenStage, uneven_price: None) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        [entry] = house.changenow.books.entries.values()
        entry.expected_from *= 1 + Decimal("2e-15")
        await house.run(60.0)
        held = await house.payout(payout)
        assert (held.state, held.hold) == (State.HELD, Hold.MISMATCH)
        assert not house.transfers(final=False)
