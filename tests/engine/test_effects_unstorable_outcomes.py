"""A vendor's answer is recorded, whatever reference it has and however the run ended."""

import asyncio
import random
import string
from contextlib import suppress

import pytest

from payonce.engine.effects import Answer, Blind, Keyed, reviews, send
from payonce.engine.effects.model import VENDOR_REF_MAX_LENGTH, Result, State, stored_reference
from payonce.engine.effects.send import Run
from payonce.engine.messages.transaction import Reader
from payonce.kit.outcomes import Retry
from payonce.testing import OpenStage, eventually
from tests.engine.effects_stage import VALID_FOR_S, AppContext, Pay, Receipt, open_context

LONG = "".join(random.Random(1).choices(string.ascii_lowercase + string.digits, k=8_000))


class NamedWithNul(Pay):
    def vendor_ref(self, outcome: Receipt) -> str:
        return f"n\x00{outcome.number}"


class NamedAtLength(Pay):
    def vendor_ref(self, outcome: Receipt) -> str:
        return LONG + outcome.number


@pytest.mark.parametrize("named", [NamedWithNul, NamedAtLength])
async def test_an_outcome_is_kept_whatever_the_vendor_names_it(stage: OpenStage, named: type[Pay]) -> None:
    async with open_context(stage, Blind()) as context:
        context.effect_type = named
        work = await context.claim()
        with suppress(Retry):
            await context.pay(work)
        assert await context.events() == ["started", "performed"]
        assert await context.state() == [(1, State.PERFORMED)]
        assert await context.pay(work) == Receipt("n-p-1:1", "p-1:1"), "from the record"
        await context.pay(work, "p-2")
        names = await context.s.owner.fetchval("select count(distinct vendor_ref) from payonce.effects")
        assert names == 2, "two long names that differ at their end stay two"


async def test_two_effects_with_one_long_name_are_told_to_a_person(stage: OpenStage) -> None:
    class Same(Pay):
        def vendor_ref(self, outcome: Receipt) -> str:
            return LONG

    async with open_context(stage, Blind()) as context:
        context.effect_type = Same
        work = await context.claim()
        await context.pay(work)
        with pytest.raises(Retry, match="same_reference"):
            await context.pay(work, "p-2")


def test_a_name_that_fits_is_kept_as_it_is() -> None:
    assert stored_reference(None) is None
    assert stored_reference("n-17") == "n-17"
    kept = stored_reference(LONG)
    assert len(kept or "") == VENDOR_REF_MAX_LENGTH
    assert stored_reference(kept) == kept
    assert stored_reference("n\x00\ud800") == "n␀?"


async def test_that_it_happened_is_on_record_even_if_the_store_refuses_the_answer(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Run.record

    async def broken(run: Run, stored: object, result: Result) -> object:
        return await record(run, stored, Result(result.event, None, "{no json", result.vendor_ref))  # type: ignore[arg-type]

    async with open_context(stage, Keyed(VALID_FOR_S)) as context:
        work = await context.claim()
        monkeypatch.setattr(Run, "record", broken)
        with pytest.raises(Retry, match="outcome_not_kept"):
            await context.pay(work)
        assert await context.events() == ["started", "performed"]
        assert await context.state() == [(1, State.REVIEW)]
        [review] = await reviews(Reader(context.s.database))
        assert "it happened" in review.question
        assert review.allowed == {Answer.HAPPENED}


async def cancelled_while_writing(context: AppContext, times: int) -> asyncio.Task[Receipt]:
    """A run that has the vendor's answer and is cancelled while the store is not ready to take it."""
    run = await context.stop_in_the_vendor(await context.claim(), "stop after")
    async with context.s.owner.transaction():
        await context.s.owner.execute("select from payonce.effects for update")
        context.vendor.resume.set()
        await eventually(lambda: bool(send._writing))
        for _ in range(times):
            run.cancel()
            await asyncio.wait([run], timeout=0.05)
            assert not run.done(), "the run is over although its outcome is not written"
    return run


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_a_run_ends_after_its_outcome_is_written_however_often_it_is_cancelled(
    stage: OpenStage, times: int
) -> None:
    async with open_context(stage, Blind()) as context:
        run = await cancelled_while_writing(context, times)
        with pytest.raises(asyncio.CancelledError):
            await run
        assert await context.state() == [(1, State.PERFORMED)]


async def test_a_process_waits_for_outcomes_of_runs_that_it_abandoned(stage: OpenStage) -> None:
    async with open_context(stage, Blind()) as context:
        await cancelled_while_writing(context, 2)
        await send.outcomes_written()
        assert await context.state() == [(1, State.PERFORMED)]
        assert not send._writing
