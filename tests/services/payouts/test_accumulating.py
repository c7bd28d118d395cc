"""Small payouts leave in the end: however many there are of one client, and however many clients."""

from decimal import Decimal

import pytest

from payonce.engine.messages.model import Message
from payonce.services.payouts.handlers import accumulation
from payonce.services.payouts.handlers.accumulation import BATCH_MAX, LOOK
from payonce.services.payouts.model import State
from payonce.services.payouts.policies import KEEPING
from payonce.testing import OpenStage
from tests.services.payouts.payouts_stage import BTC_CLIENT, TO_BTC, Office, open_office

SMALL = "2.00"
"""0.000776 ETH."""
OTHERS = ("1BoatSLRHtKNngkdXEeobR76b53LETtpyT", "bc1qmy5c5yx3kpe4sd7uf0v9mtryrv8neme8pgs93w")


async def look(office: Office) -> None:
    await office.s.feed.put([Message(queue=KEEPING.queue, action=LOOK, payload={})])
    await office.run()


def takes(office: Office, least: str, most: str | None = None) -> None:
    office.changenow.set_range(TO_BTC, Decimal(least), None if most is None else Decimal(most))


async def count(office: Office, state: State) -> int:
    found: int = await office.s.owner.fetchval("select count(*) from payouts.payouts where state = $1", state)
    return found


async def test_more_than_a_batch_has_leave_together_when_fewer_are_too_little(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulation, "BATCH_MAX", 3)
    async with open_office(stage) as office:
        takes(office, "0.003")
        for number in range(4):
            await office.order(payment_id=f"pay-{number}", subscription_price=SMALL)
        await office.run()
        assert await count(office, State.SWAPPED) == 4
        [told] = await office.hostpay_told()
        assert Decimal(told["from_amount"]) == 4 * Decimal("0.000776")
        assert await office.broken() == {}


async def test_a_batch_is_no_longer_than_it_need_be(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BATCH_MAX > 3
    async with open_office(stage) as office:
        takes(office, "0.01")
        for number in range(5):
            await office.order(payment_id=f"pay-{number}", subscription_price=SMALL)
        await office.run()
        assert await count(office, State.ACCUMULATING) == 5
        monkeypatch.setattr(accumulation, "BATCH_MAX", 3)
        takes(office, "0.001")
        await look(office)
        assert await count(office, State.SWAPPED) == 3
        await look(office)
        assert await count(office, State.SWAPPED) == 5
        assert await office.broken() == {}


async def test_very_many_that_are_too_little_do_not_keep_a_large_one(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulation, "BATCH_MAX", 1)
    monkeypatch.setattr(accumulation, "BATCH_LIMIT", 2)
    async with open_office(stage) as office:
        takes(office, "0.004")
        for number in range(3):
            await office.order(payment_id=f"pay-{number}", subscription_price=SMALL)
        large = await office.order(payment_id="large", subscription_price="9.00")
        await office.run()
        assert await office.state(large) is State.SWAPPED
        assert await count(office, State.ACCUMULATING) == 2
        assert await office.broken() == {}


async def test_one_that_does_not_fit_is_passed_over(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        takes(office, "0.004", "0.0045")
        prices = ("9.00", "9.00", SMALL)
        made = [await office.order(payment_id=f"pay-{n}", subscription_price=price) for n, price in enumerate(prices)]
        await office.run()
        assert [await office.state(each) for each in made] == [State.SWAPPED, State.ACCUMULATING, State.SWAPPED]
        assert await office.broken() == {}


async def test_every_client_is_looked_at_however_many_there_are(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulation, "CLIENTS_MAX", 1)
    async with open_office(stage) as office:
        takes(office, "0.06")
        made = [
            await office.order(payment_id=address, wallet_address=address, subscription_price=price)
            for address, price in zip((OTHERS[0], BTC_CLIENT, OTHERS[1]), (SMALL, "10.00", "100.00"), strict=True)
        ]
        await office.run()
        assert await count(office, State.ACCUMULATING) == 3
        takes(office, "0.001")
        await look(office)
        assert [await office.state(each) for each in made] == [State.ACCUMULATING, State.SWAPPED, State.SWAPPED]
        assert await office.broken() == {}
