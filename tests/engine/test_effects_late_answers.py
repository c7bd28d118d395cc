"""An effect resolved late wakes its message: nothing waits for a person who has no question to answer."""

import asyncio
from contextlib import suppress

import pytest

from payonce.engine.controls import Executed, ReviewAnswer, answer_review_action, submit
from payonce.engine.effects import (
    Answer,
    Blind,
    Findable,
    Harmless,
    Keyed,
    Review,
    answer_review,
    give_up_effects,
    reviews,
    store,
)
from payonce.engine.effects.declaration import encode
from payonce.engine.effects.model import Event, Result
from payonce.engine.messages.model import Ending, State
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.transaction import Reader, begin
from payonce.engine.messages.work import Handler, Work, handles
from payonce.kit.outcomes import Retry, Unknown
from payonce.testing import OpenStage, Stage
from tests.engine.bank import Order, open_branch
from tests.engine.effects_stage import HORIZON_S, TIMEOUT_S, VALID_FOR_S, AppContext, Pay, Receipt, Vendor, open_context
from tests.engine.test_effects_giving_up import effect_states, paying, put, step, why_it_waits
from tests.locks import waits_or_ended

ONCE = Policy("pay", max_attempts=1, backoff=Fixed(0), lease_s=30)
RECEIPT = Receipt("n-p-1:1", "p-1:1")


async def in_review(context: AppContext, work: Work) -> Review:
    with pytest.raises((Unknown, Retry)):
        await context.pay(work)
    async with begin(context.s.database, context.s.feed) as tx:
        await give_up_effects(tx, work.message.id, "no answer")
    [review] = await reviews(Reader(context.s.database))
    return review


async def answer(s: Stage, review: Review, how: Answer) -> None:
    outcome = RECEIPT if how is Answer.HAPPENED else None
    async with begin(s.database, s.feed) as tx:
        await answer_review(
            tx, review.effect.id, how, "ada", "looked", revision=review.effect.revision, outcome=outcome
        )


async def test_what_a_statement_finds_wakes_the_message_that_was_parked_with_it(stage: OpenStage) -> None:
    async with open_branch(stage) as branch:
        await branch.reconcile()
        await branch.s.clock.advance(1_000)
        await branch.order("p-1", way="wire")
        branch.bank.faults = ["lost after"]
        find = branch.bank.find

        async def down(kind: str, order: Order) -> None:
            raise ConnectionResetError("reset by peer")

        branch.bank.find = down  # type: ignore[method-assign,assignment]
        while await branch.s.owner.fetchval("select state from payonce.messages") != "parked":
            await branch.work()
            await branch.s.clock.advance(11)
        assert await branch.states() == {"gave_up": 1}
        branch.bank.find = find  # type: ignore[method-assign]
        await branch.after_the_lag()
        assert await branch.states() == {"performed": 1}
        await branch.work()
        assert await branch.paid() == 1
        await branch.assert_books_equal()


async def test_a_late_answer_of_the_vendor_wakes_the_message_that_was_parked_with_it(stage: OpenStage) -> None:
    async with stage() as s:
        vendor = Vendor(faults=["lost after"])
        await put(s, ONCE)
        await step(s, paying(vendor, ONCE, Blind()))
        assert (await s.admin.depth("pay")).parked == 1
        [review] = await reviews(Reader(s.database))
        async with s.database.transaction() as connection:
            document = encode(RECEIPT, Receipt, "the outcome")
            result = Result(Event.PERFORMED, None, document, "n-p-1:1")
            await store.record(connection, review.effect.id, 1, result)
        depth = await s.admin.depth("pay")
        assert (depth.ready, depth.parked) == (1, 0)
        await step(s, paying(vendor, ONCE, Blind()))
        assert (await s.admin.depth("pay")).ready == 0
        assert len(vendor.calls) == 1


async def test_a_late_answer_that_leaves_the_question_open_leaves_the_message_parked(stage: OpenStage) -> None:
    async with stage() as s:
        await put(s, ONCE)
        await step(s, paying(Vendor(faults=["lost after"]), ONCE, Blind()))
        [review] = await reviews(Reader(s.database))
        async with s.database.transaction() as connection:
            await store.record(connection, review.effect.id, 1, Result(Event.UNKNOWN, "still no answer"))
        assert (await s.admin.depth("pay")).parked == 1


@pytest.mark.parametrize("how", [Answer.HAPPENED, Answer.DID_NOT, Answer.LOOK_AGAIN, Answer.SEND_AGAIN])
async def test_an_answer_that_comes_after_the_runs_last_look_is_acted_on(stage: OpenStage, how: Answer) -> None:
    async with open_context(stage, Findable(HORIZON_S, None), "lost after") as context:
        work = await context.claim()
        review = await in_review(context, work)
        with pytest.raises(Retry, match="waits for a person"):
            await context.pay(work)
        # Sending again is offered only when the vendor's silence proves something.
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        await answer(context.s, review, how)
        state = await context.state()
        assert await work.give_up("3 attempts") is Ending.RETRY
        assert await context.state() == state, "the answer is overwritten"
        assert work.settled_as is None


async def test_an_answer_is_waited_for_once_and_not_for_ever(stage: OpenStage) -> None:
    async with open_context(stage, Findable(HORIZON_S, None), "lost after") as context:
        work = await context.claim()
        context.vendor.blind_for_questions = True
        await answer(context.s, await in_review(context, work), Answer.LOOK_AGAIN)
        with pytest.raises(Retry, match="is not known"):
            await context.pay(work)
        assert await work.give_up("3 attempts") is Ending.PARKED
        assert await context.state() == [(1, "review")]


@pytest.mark.parametrize("how", [Answer.HAPPENED, Answer.LOOK_AGAIN])
async def test_an_object_does_not_come_to_its_end_on_an_answer_that_nobody_has_seen(
    stage: OpenStage, how: Answer
) -> None:
    """The last run finds a review, the person answers, and only then does the worker give up."""
    given_up: list[Work] = []

    async def end_the_object(work: Work) -> None:
        given_up.append(work)

    policy = Policy("pay", max_attempts=2, backoff=Fixed(0), lease_s=30, on_give_up=end_the_object)
    vendor = Vendor(faults=["lost after"])

    @handles(policy)
    async def pay_and_be_answered(work: Work) -> None:
        try:
            await work.effect(Pay(vendor, Findable(HORIZON_S, None)), key="p-1")
        except Retry:
            [review] = await reviews(Reader(s.database))
            await answer(s, review, how)
            raise
        async with work.commit():
            pass

    async with stage() as s:
        await put(s, policy)
        vendor.shows_nothing = True
        await step(s, pay_and_be_answered)
        async with begin(s.database, s.feed) as tx:
            await give_up_effects(tx, (await s.admin.peek("pay", State.READY, 1))[0].message.id, "enough")
        await step(s, pay_and_be_answered)
        assert "its effects have changed" in await why_it_waits(s, State.READY)
        vendor.shows_nothing = False
        await step(s, pay_and_be_answered)
        assert await effect_states(s) == [("performed", None)]
        assert (await s.admin.depth("pay")).ready == 0
        assert given_up == []
        assert len(vendor.calls) == 1


async def test_an_answer_given_while_the_message_is_being_parked_wakes_it(stage: OpenStage) -> None:
    """An answer given now waits for the parking, and then sees it."""
    async with open_context(stage, Blind(), "lost after") as context:
        work = await context.claim()
        review = await in_review(context, work)
        settle_within = context.queue.settle_within
        answering_now: list[asyncio.Task[object]] = []

        async def answer_now() -> object:
            outcome = {"number": "n-p-1:1", "reference": "p-1:1"}
            given = ReviewAnswer(review.effect.id, review.effect.revision, Answer.HAPPENED, "seen", outcome)
            async with begin(context.s.database, context.s.feed) as tx:
                return await submit(tx, answer_review_action(context.s.admin), given, "ada", "seen")

        async def settle_while_answered(*arguments: object) -> bool:
            answering_now.append(asyncio.create_task(answer_now()))
            await waits_or_ended(context.s, answering_now[0])
            return await settle_within(*arguments)  # type: ignore[arg-type]

        context.queue.settle_within = settle_while_answered  # type: ignore[method-assign,assignment]
        assert await work.give_up("3 attempts") is Ending.PARKED
        [done] = await asyncio.gather(*answering_now)
        assert isinstance(done, Executed)
        assert done.result["redriven"]
        depth = await context.s.admin.depth("pay")
        assert (depth.ready, depth.parked, depth.leased) == (1, 0, 0)


def never_ending(vendor: Vendor, policy: Policy) -> Handler:
    @handles(policy)
    async def pay(work: Work) -> None:
        with suppress(Unknown):
            await work.effect(Pay(vendor, Harmless()), key="p-1")
        raise Retry("not yet")

    return pay


async def test_generations_that_a_run_left_behind_are_no_news(stage: OpenStage) -> None:
    policy = Policy("pay", max_attempts=2, backoff=Fixed(0), lease_s=30)
    async with stage() as s:
        vendor = Vendor(faults=["lost after", "lost after"])
        await put(s, policy)
        await step(s, never_ending(vendor, policy))
        await step(s, never_ending(vendor, policy))
        assert await effect_states(s) == [("abandoned", None), ("review", "gave_up")]
        assert (await s.admin.depth("pay")).parked == 1


async def test_a_run_that_knows_the_end_of_its_effects_gives_up(stage: OpenStage) -> None:
    @handles(ONCE)
    async def fail_afterwards(work: Work) -> None:
        await work.effect(Pay(Vendor(), Keyed(86_400)), key="p-1")
        raise ZeroDivisionError

    async with stage() as s:
        await put(s, ONCE)
        await step(s, fail_afterwards)
        assert "ZeroDivisionError" in await why_it_waits(s, State.PARKED)


async def test_answers_of_two_tries_that_come_in_the_same_moment_are_held_against_each_other(stage: OpenStage) -> None:
    def said(number: str) -> Result:
        return Result(Event.PERFORMED, outcome=encode(Receipt(number, "p-1:1"), Receipt, "it"), vendor_ref=number)

    async with open_context(stage, Keyed(VALID_FOR_S), "not sent") as context:
        work, pool = await context.claim(), context.s.database.work
        with pytest.raises(Retry):
            await context.pay(work)
        await context.stop_in_the_vendor(work, "stop before")
        effect_id = await context.s.owner.fetchval("select id from payonce.effects where state = 'intended'")
        late, newest = await asyncio.gather(
            store.record_performed(pool, effect_id, 1, said("n-1")),
            store.record_performed(pool, effect_id, 2, said("n-2")),
        )
        assert newest is not None
        assert late is None, "nobody has looked whether both may be true"
        assert (await context.events()).count("performed") == 1
        async with context.s.database.transaction() as connection:
            await store.record(connection, effect_id, 1, said("n-1"))
        assert await context.state() == [(1, "review")]
