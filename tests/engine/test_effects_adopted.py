"""An effect adopted from a statement: its handler never ran the intent, and continues as if it had."""

import asyncio

import pytest

from payonce.engine.effects import Answer, Keyed, answer_review, next_generation, reviews
from payonce.engine.effects.adopt import adopt
from payonce.engine.messages.transaction import Reader, begin
from payonce.kit.ids import new_id
from payonce.kit.money import Amount, well_known
from payonce.kit.outcomes import Refused, Unknown
from payonce.testing import OpenStage
from tests.engine.effects_stage import TIMEOUT_S, VALID_FOR_S, AppContext, Receipt, open_context

KEYED = Keyed(VALID_FOR_S)


async def adopted(context: AppContext, generation: int = 1, *, outcome: bool = True) -> Receipt:
    """The vendor's statement shows it, but this database has lost it."""
    receipt = Receipt(f"n-{generation}", f"p-1:{generation}")
    document = f'{{"number": "{receipt.number}", "reference": "{receipt.reference}"}}'
    async with context.s.database.transaction() as connection:
        assert await adopt(
            connection,
            kind="test.pay",
            key="p-1",
            generation=generation,
            amount=Amount(100, well_known("EUR")),
            at=await context.s.clock.now(),
            vendor_ref=receipt.number,
            outcome=document if outcome else None,
            run_id=new_id(),
        )
    return receipt


async def answer(context: AppContext, how: Answer, outcome: object = None) -> None:
    [review] = await reviews(Reader(context.s.database))
    async with begin(context.s.database, context.s.feed) as tx:
        await answer_review(
            tx, review.effect.id, how, "ada", "looked", revision=review.effect.revision, outcome=outcome
        )


async def test_the_intent_of_an_adopted_effect_runs_once_before_its_outcome(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        receipt, work = await adopted(context), await context.claim()
        for _ in range(2):
            assert await context.pay(work) == receipt
        assert await context.pay(await context.take_over()) == receipt
        assert await context.business() == 1
        assert not context.vendor.calls


async def test_two_runs_at_once_run_the_intent_of_an_adopted_effect_once(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        receipt, work = await adopted(context), await context.claim()
        assert set(await asyncio.gather(context.pay(work), context.pay(work))) == {receipt}
        assert await context.business() == 1


async def test_an_intent_that_fails_is_run_again(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        receipt, work = await adopted(context), await context.claim()
        await context.s.owner.execute("alter table business rename to elsewhere")
        with pytest.raises(Exception, match="business"):
            await context.pay(work)
        await context.s.owner.execute("alter table elsewhere rename to business")
        assert await context.pay(work) == receipt
        assert await context.business() == 1


async def test_an_outcome_that_a_person_states_comes_after_the_intent(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        receipt, work = await adopted(context, outcome=False), await context.claim()
        await answer(context, Answer.HAPPENED, receipt)
        assert await context.pay(work) == receipt
        assert await context.business() == 1


async def test_a_refusal_of_an_adopted_effect_comes_after_the_intent(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        await adopted(context)
        await context.s.owner.execute("update payonce.effects set state = 'review', review_cause = 'not_on_statement'")
        await answer(context, Answer.DID_NOT)
        work = await context.claim()
        for _ in range(2):
            with pytest.raises(Refused, match="abandoned"):
                await context.pay(work)
        assert await context.business() == 1


async def test_an_intent_that_ran_with_an_earlier_generation_is_not_repeated(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, "lost before") as context:
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        await context.s.clock.advance(TIMEOUT_S + 1)
        receipt = await adopted(context, generation=2)
        assert await context.pay(work) == receipt
        assert await context.state() == [(1, "abandoned"), (2, "performed")]
        assert await context.business() == 1


async def test_the_intent_of_a_generation_that_was_asked_for_and_forgotten_runs(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, "refuse") as context:
        work = await context.claim()
        with pytest.raises(Refused):
            await context.pay(work)
        async with begin(context.s.database, context.s.feed) as tx:
            await next_generation(tx, "test.pay", "p-1", after=1)
        receipt = await adopted(context, generation=2)
        for _ in range(2):
            assert await context.pay(work) == receipt
        assert await context.business() == 2
