"""A fence that burns the vendor's reference: the next send is a new generation with another reference."""

import pytest

from payonce.engine.effects import Findable
from payonce.kit.outcomes import Refused, Retry, Unknown
from payonce.testing import OpenStage
from tests.engine.effects_stage import HORIZON_S, TIMEOUT_S, AppContext, Order, Receipt, Vendor, open_context


class Burning(Vendor):
    """Accepts nothing under a fenced reference, now or later."""

    def __init__(self, *faults: str) -> None:
        super().__init__(faults=list(faults))
        self.burnt: set[str] = set()

    async def pay(self, order: Order) -> Receipt:
        if order.reference in self.burnt:
            self.calls.append(order)
            raise Refused("the reference was burnt")
        return await super().pay(order)

    async def forget(self, order: Order) -> None:
        if order in self.booked:
            raise Unknown("it is booked already")
        self.burnt.add(order.reference)


def at_the_burning_vendor(context: AppContext, *faults: str, burns: bool = True) -> Burning:
    vendor = Burning(*faults)
    context.vendor, context.safety = vendor, Findable(HORIZON_S, vendor.forget, burns)
    return vendor


async def after_the_horizon(context: AppContext) -> None:
    await context.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)


async def test_after_a_burning_fence_the_next_generation_goes_out_under_its_own_reference(stage: OpenStage) -> None:
    async with open_context(stage, Findable(HORIZON_S)) as context:
        vendor = at_the_burning_vendor(context, "lost before")
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        await after_the_horizon(context)
        assert await context.pay(work) == Receipt("n-p-1:2", "p-1:2")
        assert vendor.burnt == {"p-1:1"}
        assert vendor.times() == {"p-1:2": 1}
        assert await context.state() == [(1, "abandoned"), (2, "performed")]
        assert await context.business() == 1


async def test_without_burning_the_burnt_reference_would_be_sent_again_in_vain(stage: OpenStage) -> None:
    async with open_context(stage, Findable(HORIZON_S)) as context:
        at_the_burning_vendor(context, "lost before", burns=False)
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        await after_the_horizon(context)
        with pytest.raises(Refused, match="burnt"):
            await context.pay(work)


async def test_a_payment_that_lands_before_the_fence_keeps_it_from_burning(stage: OpenStage) -> None:
    async with open_context(stage, Findable(HORIZON_S)) as context:
        vendor = at_the_burning_vendor(context, "lost after")
        vendor.shows_nothing = True
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        await after_the_horizon(context)
        with pytest.raises(Retry, match="could not be fenced"):
            await context.pay(work)
        vendor.shows_nothing = False
        await context.s.clock.advance(TIMEOUT_S + 1)
        assert await context.pay(work) == Receipt("n-p-1:1", "p-1:1")
        assert vendor.times() == {"p-1:1": 1}


async def test_a_crash_after_the_fence_burns_again_and_begins_one_generation(stage: OpenStage) -> None:
    async with open_context(stage, Findable(HORIZON_S)) as context:
        vendor = at_the_burning_vendor(context, "lost before")
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        await after_the_horizon(context)
        # The state left by a run that died between the fence and the next generation.
        vendor.burnt.add("p-1:1")
        assert await context.pay(await context.take_over()) == Receipt("n-p-1:2", "p-1:2")
        assert vendor.times() == {"p-1:2": 1}


async def test_a_burnt_generation_that_the_vendor_charged_after_all_opens_a_review(stage: OpenStage) -> None:
    async with open_context(stage, Findable(HORIZON_S)) as context:
        vendor = at_the_burning_vendor(context)
        first = await context.stop_in_the_vendor(await context.claim(), "stop before")
        second = await context.take_over()
        await after_the_horizon(context)
        await context.pay(second)
        vendor.resume.set()
        with pytest.raises(Retry, match="waits for a person"):
            await first
        assert await context.state() == [(1, "review"), (2, "performed")]
