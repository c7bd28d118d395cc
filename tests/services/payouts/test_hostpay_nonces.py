"""Nonces that are not ours: none is passed over while it may stay unused, and people hear of it."""

import msgspec
import pytest

from payonce.engine.audit import Severity, notes
from payonce.kit.money import Asset
from payonce.services.payouts.model import ETH, State
from payonce.testing import OpenStage
from payonce.vendors.evm.chain import Fate
from payonce.vendors.evm.client import EvmClient
from payonce.vendors.evm.port import Market, Payment, Signed
from tests.services.payouts.hostpay_stage import House, eth, open_house

ask_market = EvmClient.market


async def nonces(house: House) -> list[int]:
    rows = await house.s.owner.fetch("select nonce from payouts.wallet_payments order by created_at, nonce")
    return [row["nonce"] for row in rows]


async def told(house: House, severity: Severity = Severity.ERROR) -> list[str]:
    return [each.text for each in await notes(house.s.read, location="payouts.nonces", severity=severity)]


async def sign_elsewhere(house: House, nonce: int) -> Signed:
    fees = (await house.wallet.market(ETH)).fees
    return house.wallet.sign(Payment.of("0x" + "77" * 20, eth("0.5")), nonce, fees)


async def test_a_wrong_count_of_what_waits_makes_payments_late_and_no_gap(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payouts = [await house.waiting_for_hostpay(1)]

        async def one_too_many(wallet: EvmClient, asset: Asset) -> Market:
            found = await ask_market(wallet, asset)
            return msgspec.structs.replace(found, pending_nonce=found.pending_nonce + 1)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EvmClient, "market", one_too_many)
            await house.run(600.0)
            assert await nonces(house) == []
            [text] = await told(house)
            assert "a foreign transaction is pending with nonce 0" in text
        payouts.append(await house.order(2))
        await house.run()
        assert await nonces(house) == [0, 1]
        await house.sound(*payouts)


async def test_a_nonce_that_somebody_else_waits_with_is_neither_taken_nor_passed_over(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        house.chain.fates.append(Fate.STUCK)
        await house.wallet.broadcast(await sign_elsewhere(house, 0))
        payout = await house.waiting_for_hostpay()
        await house.run(600.0)
        assert await nonces(house) == []
        assert len(await told(house)) == 1
        # The nodes drop it.
        house.chain.pool.clear()
        await house.run()
        assert await nonces(house) == [0]
        await house.sound(payout)


async def test_a_nonce_that_somebody_else_used_is_passed_over(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        foreign = await sign_elsewhere(house, 0)
        await house.wallet.broadcast(foreign)
        payout = await house.order()
        await house.run()
        assert await nonces(house) == [1]
        assert await house.state(payout) is State.FINISHED


async def test_a_gap_is_told_and_the_next_payment_fills_it(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        # Signed behind a transaction of somebody else, whose block is dropped and which never comes back.
        first = await house.waiting_for_hostpay(1)

        async def one_is_used(wallet: EvmClient, asset: Asset) -> Market:
            found = await ask_market(wallet, asset)
            return msgspec.structs.replace(found, pending_nonce=1, next_nonce=1)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EvmClient, "market", one_is_used)
            await house.worker.step()
        assert await nonces(house) == [1]
        await house.run(1_200.0)
        assert await house.state(first) is State.PAYING
        [text] = await told(house)
        assert "nonce 0" in text
        assert "The next payment of the wallet takes it" in text
        second = await house.order(2)
        await house.run()
        assert await nonces(house) == [1, 0]
        assert len(await told(house, Severity.WARNING)) == 1
        await house.sound(first, second)
