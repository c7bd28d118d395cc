"""What keeps hostpay from paying: an empty wallet, a freeze, a limit, an asset that is not allowed."""

import pytest

from payonce.engine import controls
from payonce.engine.messages.transaction import Tx
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.kit.money import Amount
from payonce.services.payouts.model import ETH, Hold, State
from payonce.services.payouts.store import wallet_limits
from payonce.testing import OpenStage
from tests.services.payouts.hostpay_stage import House, eth, open_house


async def test_a_wallet_that_is_too_empty_takes_no_nonce_until_it_is_filled_up(stage: OpenStage) -> None:
    async with open_house(stage, opening=eth("0.01")) as house:
        payout = await house.order()
        await house.run(1_200.0)
        assert await house.state(payout) is State.SWAPPED
        assert not await house.s.owner.fetchval("select count(*) from payouts.wallet_payments")
        assert "top it up" in await house.job_errors()
        house.chain.arrive(house.wallet.address, eth("5"), "top-up")
        await house.run()
        assert await house.state(payout) is State.FINISHED


def low() -> float | None:
    return REGISTRY.get_sample_value("payonce_wallet_low", {"asset": "ETH"})


async def test_a_small_payment_that_fits_does_not_hide_a_larger_one_that_waits(stage: OpenStage) -> None:
    async with open_house(stage, opening=eth("0.1")) as house:
        large = await house.order(1, "1000")
        await house.run(1_200.0)
        assert low() == 1
        small = await house.order(2, "50")
        await house.run(1_200.0)
        assert (await house.state(large), await house.state(small)) == (State.SWAPPED, State.FINISHED)
        assert low() == 1
        house.chain.arrive(house.wallet.address, eth("5"), "top-up")
        await house.run()
        assert await house.state(large) is State.FINISHED
        assert low() == 0


async def test_why_a_payment_waits_stands_at_its_swap_until_it_is_paid(stage: OpenStage) -> None:
    async with open_house(stage, opening=eth("0.01")) as house:
        payout = await house.order()
        await house.run(1_200.0)
        assert "top it up" in ((await house.swap(payout)).waits_for or "")
        house.chain.arrive(house.wallet.address, eth("5"), "top-up")
        await house.run()
        assert (await house.swap(payout)).waits_for is None


async def test_a_frozen_wallet_pays_nothing(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        async with house.s.begin() as tx:
            frozen = await controls.freeze(tx, by="ann", reason="look first", vendor="evm")
        payout = await house.order()
        await house.run(1_200.0)
        assert await house.state(payout) is State.SWAPPED
        assert not await house.s.owner.fetchval("select count(*) from payouts.wallet_payments")
        async with house.s.begin() as tx:
            await controls.lift(tx, frozen.id, "ann", "looked")
        await house.run()
        await house.sound(payout)


async def limited(house: House, **bounds: Amount) -> None:
    async with house.s.begin() as tx:
        await wallet_limits.set_wallet_limit(tx, ETH, "ann", **bounds)


async def test_a_payment_above_the_limit_waits_for_people_and_is_paid_once_they_agree(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await limited(house, per_payment=eth("0.03"))
        payout = await house.order()
        await house.run()
        held = await house.payout(payout)
        assert (held.state, held.hold, held.held_from) == (State.HELD, Hold.LIMIT, State.PRICED)
        assert held.reason is not None
        assert "limit of 0.03" in held.reason
        assert not house.transfers(final=False)
        await house.grant()
        await house.run()
        await house.sound(payout)


async def test_a_payment_that_people_deny_stays_held(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await limited(house, per_payment=eth("0.03"))
        payout = await house.order()
        await house.run()
        await house.grant(deny=True)
        await house.run()
        assert await house.state(payout) is State.HELD
        assert not house.transfers(final=False)


async def test_what_is_above_the_limit_of_a_day_waits_for_people(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await limited(house, per_day=eth("0.1"))
        payouts = [await house.order(number) for number in (1, 2, 3)]
        await house.run()
        states = sorted([await house.state(payout) for payout in payouts])
        assert states == [State.FINISHED, State.FINISHED, State.HELD]
        await house.grant()
        await house.run()
        await house.sound(*payouts)


async def test_an_asset_that_is_not_allowed_is_held_and_nobody_is_asked(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await house.s.owner.execute("delete from payouts.wallet_limits")
        payout = await house.order()
        await house.run()
        held = await house.payout(payout)
        assert (held.state, held.hold) == (State.HELD, Hold.LIMIT)
        assert not await controls.approvals(house.s.read)


async def test_the_limit_of_a_day_holds_within_the_transaction_that_signs(stage: OpenStage) -> None:
    """Of two payments that pass each alone, the look before may miss the other; the intent does not."""
    async with open_house(stage) as house:
        await limited(house, per_day=eth("0.05"))
        payout = await house.waiting_for_hostpay()
        looked = wallet_limits.exceeded

        async def blind_before(read: object, swap: object) -> str:
            return await looked(read, swap) if isinstance(read, Tx) else ""  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wallet_limits, "exceeded", blind_before)
            await limited(house, per_day=eth("0.01"))
            for _ in range(3):
                await house.worker.step()
        assert await house.state(payout) is State.SWAPPED
        assert not await house.s.owner.fetchval("select count(*) from payouts.wallet_payments")
        await house.run(120.0)
        assert await house.state(payout) is State.HELD
