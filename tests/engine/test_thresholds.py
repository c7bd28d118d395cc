"""A threshold: anybody may require approval for more; to require it for less, a second person must agree."""

import asyncio

import pytest

from payonce.engine.controls import (
    Approval,
    ApprovalState,
    Executed,
    change_threshold_action,
    grant,
    submit,
    threshold_change,
    thresholds,
)
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage, eventually
from tests.engine.controls_stage import EUR, Till, euros, open_till
from tests.locks import waits_for_a_lock


async def granted(till: Till, approval: Approval, by: str) -> Approval:
    async with till.begin() as tx:
        return await grant(tx, {"change threshold": change_threshold_action(till.s.admin)}, approval.id, by)


async def change(till: Till, above: str | None, by: str = "bob") -> Executed | Approval:
    async with till.begin() as tx:
        wanted = await threshold_change(tx, EUR, None if above is None else euros(above))
        return await submit(tx, change_threshold_action(till.s.admin), wanted, by, "we grow")


async def bound(till: Till) -> list[Amount]:
    return [found.above for found in await thresholds(till.read)]


async def test_the_first_threshold_and_a_lower_one_need_nobody_else(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        for above in ("100.00", "100.00", "50.00", "0.00"):
            assert isinstance(await change(till, above), Executed)
            assert await bound(till) == [euros(above)]


@pytest.mark.parametrize(
    ("above", "text"),
    [
        ("100.01", "set the threshold of EUR from 100.00 EUR to 100.01 EUR"),
        (None, "remove the threshold of 100.00 EUR"),
    ],
)
async def test_to_raise_or_remove_a_threshold_needs_a_second_person(
    stage: OpenStage, above: str | None, text: str
) -> None:
    async with open_till(stage) as till:
        assert isinstance(await change(till, "100.00", "root"), Executed)
        approval = await change(till, above)
        assert isinstance(approval, Approval)
        assert (approval.text, approval.amounts, await bound(till)) == (text, (), [euros("100.00")])
        with pytest.raises(Invalid, match="a second person must decide"):
            await granted(till, approval, "bob")
        assert (await granted(till, approval, "cyd")).state is ApprovalState.GRANTED
        assert await bound(till) == ([] if above is None else [euros(above)])


async def test_a_threshold_that_was_lowered_meanwhile_is_not_raised_from_what_it_was(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        assert isinstance(await change(till, "100.00", "root"), Executed)
        approval = await change(till, "500.00")
        assert isinstance(approval, Approval)
        await change(till, "10.00", "cyd")
        after = await granted(till, approval, "cyd")
        assert after.state is ApprovalState.DENIED
        assert "was 100.00 EUR and is now 10.00 EUR" in after.result
        assert await bound(till) == [euros("10.00")]


async def test_of_two_who_set_the_first_threshold_at_once_the_later_may_not_raise_it(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        async with till.begin() as tx:
            await submit(
                tx,
                change_threshold_action(till.s.admin),
                await threshold_change(tx, EUR, euros("10.00")),
                "bob",
                "the first",
            )
            later = asyncio.create_task(change(till, "500.00", "cyd"))
            await eventually(lambda: waits_for_a_lock(till.s))
        assert isinstance(await later, Approval)
        assert await bound(till) == [euros("10.00")]


async def test_a_threshold_that_is_not_there_cannot_be_removed(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        with pytest.raises(Invalid, match="EUR of 2 decimals has no threshold"):
            await change(till, None)
