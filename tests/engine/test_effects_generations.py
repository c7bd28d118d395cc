"""A next generation is sent only while every earlier one is known not to have happened."""

from collections.abc import Awaitable, Callable

import pytest

from payonce.engine.effects import (
    Answer,
    Blind,
    EffectRecord,
    Event,
    Findable,
    Keyed,
    Safety,
    State,
    answer_review,
    next_generation,
    reviews,
    store,
)
from payonce.engine.effects.model import Result
from payonce.engine.messages.transaction import Reader, begin
from payonce.engine.messages.work import Work
from payonce.kit.outcomes import Refused, Retry, Unknown
from payonce.testing import OpenStage
from tests.engine.effects_stage import HORIZON_S, TIMEOUT_S, VALID_FOR_S, AppContext, Receipt, open_context
from tests.engine.test_effects_burnt import after_the_horizon, at_the_burning_vendor

FIRST, SECOND = Receipt("n-p-1:1", "p-1:1"), Receipt("n-p-1:2", "p-1:2")


async def answer(context: AppContext, how: Answer) -> None:
    [review] = await reviews(Reader(context.s.database))
    async with begin(context.s.database, context.s.feed) as tx:
        await answer_review(
            tx,
            review.effect.id,
            how,
            "ada",
            "looked",
            revision=review.effect.revision,
            outcome=FIRST if how is Answer.HAPPENED else None,
        )


async def ruled_out(context: AppContext) -> Work:
    """Its answer was lost, a person said that it did not happen, and the key may be used again. But it did happen."""
    work = await context.claim()
    with pytest.raises(Unknown):
        await context.pay(work)
    with pytest.raises(Retry, match="person: blind"):
        await context.pay(work)
    await answer(context, Answer.DID_NOT)
    async with begin(context.s.database, context.s.feed) as tx:
        assert await next_generation(tx, "test.pay", "p-1", after=1) == 2
    return work


async def shown_after_all(context: AppContext) -> EffectRecord:
    """The first generation appears, on a statement or by a late answer."""
    effect_id = await context.s.owner.fetchval("select id from payonce.effects where generation = 1")
    found = Result(Event.FOUND, None, '{"number": "n-p-1:1", "reference": "p-1:1"}', "n-p-1:1")
    async with context.s.database.transaction() as connection:
        return await store.record(connection, effect_id, 1, found)


async def test_a_superseded_generation_that_is_before_a_person_again_keeps_the_next_one_from_going_out(
    stage: OpenStage,
) -> None:
    async with open_context(stage, Blind(), "lost after") as context:
        work = await ruled_out(context)
        assert (await shown_after_all(context)).state is State.REVIEW
        with pytest.raises(Retry, match="p-1:1 waits for a person: contradiction"):
            await context.pay(work)
        assert await context.state() == [(1, "review")]
        await answer(context, Answer.DID_NOT)
        assert await context.pay(work) == SECOND
        assert await context.business() == 2


async def test_a_superseded_generation_that_happened_after_all_is_the_answer(stage: OpenStage) -> None:
    async with open_context(stage, Blind(), "lost after") as context:
        work = await ruled_out(context)
        await shown_after_all(context)
        await answer(context, Answer.HAPPENED)
        for _ in range(2):
            assert await context.pay(work) == FIRST
        assert context.vendor.times() == {"p-1:1": 1}
        assert await context.business() == 2, "whoever asked for the next generation counts on its intent"


@pytest.mark.parametrize("safety", [Blind(), Keyed(VALID_FOR_S)], ids=["blind", "keyed"])
async def test_an_unsent_generation_is_abandoned_when_the_one_before_happened_after_all(
    stage: OpenStage, safety: Safety
) -> None:
    async with open_context(stage, Blind(), "lost after", "not sent") as context:
        work = await ruled_out(context)
        context.safety = safety
        with pytest.raises(Retry, match="429"):
            await context.pay(work)
        await shown_after_all(context)
        with pytest.raises(Retry, match="p-1:2 waits until it is known whether"):
            await context.pay(work)
        assert await context.state() == [(1, "review"), (2, "intended")]
        await answer(context, Answer.HAPPENED)
        assert await context.pay(work) == FIRST
        assert await context.state() == [(1, "performed"), (2, "abandoned")]
        assert context.vendor.times() == {"p-1:1": 1}
        assert await context.business() == 2


async def test_an_unsent_generation_goes_out_once_the_one_before_is_ruled_out_again(stage: OpenStage) -> None:
    async with open_context(stage, Blind(), "lost before", "not sent") as context:
        work = await ruled_out(context)
        with pytest.raises(Retry, match="429"):
            await context.pay(work)
        await shown_after_all(context)
        await answer(context, Answer.DID_NOT)
        assert await context.pay(work) == SECOND
        assert await context.state() == [(1, "abandoned"), (2, "performed")]


async def test_of_two_generations_that_may_both_have_happened_a_person_tells(stage: OpenStage) -> None:
    async with open_context(stage, Blind(), "lost after", "lost before") as context:
        work = await ruled_out(context)
        context.safety = Keyed(VALID_FOR_S)
        with pytest.raises(Unknown):
            await context.pay(work)
        await shown_after_all(context)
        await answer(context, Answer.HAPPENED)
        with pytest.raises(Retry, match="p-1:2 waits for a person: contradiction"):
            await context.pay(work)
        assert len(context.vendor.calls) == 2
        await answer(context, Answer.DID_NOT)
        assert await context.pay(work) == FIRST


async def test_a_refused_generation_is_no_end_while_an_earlier_one_may_have_happened(stage: OpenStage) -> None:
    async with open_context(stage, Blind(), "lost after", "refuse") as context:
        work = await ruled_out(context)
        with pytest.raises(Refused):
            await context.pay(work)
        await shown_after_all(context)
        with pytest.raises(Retry, match="waits until it is known whether"):
            await context.pay(work)
        await answer(context, Answer.HAPPENED)
        assert await context.pay(work) == FIRST


async def first_of_all(context: AppContext, work: Work) -> None:
    """The next generation begins."""


async def once_unsent(context: AppContext, work: Work) -> None:
    context.vendor.faults.insert(0, "not sent")
    with pytest.raises(Retry, match="429"):
        await context.pay(work)


@pytest.mark.parametrize("so_far", [first_of_all, once_unsent], ids=["begins", "goes on"])
async def test_a_generation_that_turns_up_before_the_intent_keeps_the_next_one_back(
    stage: OpenStage, so_far: Callable[[AppContext, Work], Awaitable[None]]
) -> None:
    async with open_context(stage, Blind(), "lost after") as context:
        work = await ruled_out(context)
        await so_far(context, work)
        calls, look = len(context.vendor.calls), store.generations

        async def then_it_turns_up(*arguments: object) -> list[EffectRecord]:
            found = await look(*arguments)  # type: ignore[arg-type]
            await shown_after_all(context)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "generations", then_it_turns_up)
            with pytest.raises(Retry, match="p-1:1 is review; no later generation is sent"):
                await context.pay(work)
        assert len(context.vendor.calls) == calls


async def test_a_burnt_generation_whose_end_stays_unknown_holds_nothing_up(stage: OpenStage) -> None:
    """The vendor no longer accepts its reference, so its lost answer changes nothing."""
    async with open_context(stage, Findable(HORIZON_S)) as context:
        vendor = at_the_burning_vendor(context)
        stopped = await context.stop_in_the_vendor(await context.claim(), "lost late")
        work = await context.take_over()
        await after_the_horizon(context)
        vendor.faults = ["not sent"]
        with pytest.raises(Retry, match="429"):
            await context.pay(work)
        vendor.resume.set()
        with pytest.raises(Unknown):
            await stopped
        assert await context.state() == [(1, "abandoned"), (2, "intended")]
        await context.s.clock.advance(TIMEOUT_S)
        assert await context.pay(work) == SECOND
        assert await context.events() == [
            "started",
            "did_not",
            "fenced",
            "did_not",
            "abandoned",
            "started",
            "not_sent",
            "unknown",
            "started",
            "performed",
        ]
        assert vendor.times() == {"p-1:2": 1}
