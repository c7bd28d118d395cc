"""The question put to a person, the safe answers, and the next generation of a key."""

import asyncio
from uuid import uuid4

import pytest

from payonce.engine.effects import (
    Answer,
    Blind,
    Harmless,
    Keyed,
    Rebroadcast,
    Review,
    Safety,
    State,
    answer_review,
    give_up_effects,
    next_generation,
    reviews,
)
from payonce.engine.effects.open_effects import left_open
from payonce.engine.messages.transaction import Reader, begin
from payonce.engine.messages.work import Work
from payonce.kit.outcomes import Invalid, Refused, Retry, Stale, Unknown
from payonce.testing import OpenStage
from tests.engine.effects_stage import HORIZON_S, TIMEOUT_S, VALID_FOR_S, AppContext, Pay, Receipt, open_context
from tests.engine.test_effects import FENCED, KEYED, PAID, UNFENCED, honours_keys

BOTH = {Answer.HAPPENED, Answer.DID_NOT}


async def given_up(context: AppContext) -> Review:
    """An effect with a lost answer whose message was given up."""
    work = await context.claim()
    with pytest.raises((Unknown, Retry)):
        await context.pay(work)
    async with begin(context.s.database, context.s.feed) as tx:
        [stored] = await give_up_effects(tx, work.message.id, "6 attempts, secret=abcdef99")
    assert stored.message_id == work.message.id
    [review] = await reviews(Reader(context.s.database))
    return review


async def answer(context: AppContext, review: Review, how: Answer, **more: object) -> State:
    async with begin(context.s.database, context.s.feed) as tx:
        answered = await answer_review(
            tx,
            review.effect.id,
            how,
            "ada",
            "looked at the vendor",
            revision=review.effect.revision,
            **more,  # type: ignore[arg-type]
        )
    return answered.state


@pytest.mark.parametrize(
    ("safety", "allowed"),
    [
        (KEYED, BOTH | {Answer.LOOK_AGAIN, Answer.SEND_AGAIN}),
        (Keyed(0.0), BOTH | {Answer.LOOK_AGAIN}),
        (FENCED, BOTH | {Answer.LOOK_AGAIN}),
        (Rebroadcast(), BOTH | {Answer.SEND_AGAIN}),
        (Harmless(), BOTH | {Answer.SEND_AGAIN}),
        (Blind(), BOTH),
    ],
)
async def test_giving_up_an_unknown_effect_asks_a_person_with_only_the_safe_answers(
    stage: OpenStage, safety: Safety, allowed: set[Answer]
) -> None:
    async with open_context(stage, safety, "lost after") as context:
        review = await given_up(context)
        assert review.allowed == allowed
        assert review.question.startswith("Did test.pay for p-1 (generation 1) happen? Open because its message was")
        assert "abcdef99" not in review.question
        assert [line.event for line in review.evidence] == ["started", "unknown", "gave_up"]
        for refused in set(Answer) - allowed:
            with pytest.raises(Invalid, match="not a safe answer"):
                await answer(context, review, refused, outcome=PAID)
        assert await context.state() == [(1, "review")]


async def test_what_provably_never_left_may_be_sent_again_even_if_blind(stage: OpenStage) -> None:
    async with open_context(stage, Blind(), "not sent") as context:
        review = await given_up(context)
        assert Answer.SEND_AGAIN in review.allowed
        assert await answer(context, review, Answer.SEND_AGAIN) is State.INTENDED
        assert await context.pay(await context.take_over()) == PAID
        assert context.vendor.times() == {"p-1:1": 1}


async def test_it_happened_is_what_the_handler_gets(stage: OpenStage) -> None:
    async with open_context(stage, Blind(), "lost after") as context:
        review = await given_up(context)
        with pytest.raises(Invalid, match="which outcome"):
            await answer(context, review, Answer.HAPPENED)
        with pytest.raises(Invalid, match="declared type"):
            await answer(context, review, Answer.HAPPENED, outcome={"number": 7}, effect=Pay)
        assert await answer(context, review, Answer.HAPPENED, outcome=PAID, effect=Pay) is State.PERFORMED
        assert await context.pay(await context.take_over()) == PAID
        assert len(context.vendor.calls) == 1


@pytest.mark.parametrize(
    ("slip", "said"),
    [
        ({"number": 7, "reference": "p-1:1"}, "Expected `str`, got `int`"),
        ({"number": "n-1"}, "missing required field `reference`"),
        ({"number": "n-1", "reference": "p-1:1", "refernce": "p-1:1"}, "has no field 'refernce'"),
        ("n-1", "Expected `object`, got `str`"),
    ],
)
async def test_an_outcome_that_the_handler_could_not_read_is_refused_with_the_fields(
    stage: OpenStage, slip: object, said: str
) -> None:
    async with open_context(stage, Blind(), "lost after") as context:
        review = await given_up(context)
        with pytest.raises(Invalid) as refused:
            await answer(context, review, Answer.HAPPENED, outcome=slip)
        assert said in str(refused.value)
        assert "Receipt has the fields number, reference" in str(refused.value)
        assert await context.state() == [(1, "review")]
        await answer(context, review, Answer.HAPPENED, outcome={"number": "n-p-1:1", "reference": "p-1:1"})
        assert await context.pay(await context.take_over()) == PAID


async def test_an_outcome_of_a_kind_that_this_process_does_not_know_is_taken_as_it_is(stage: OpenStage) -> None:
    async with open_context(stage, Blind(), "lost after") as context:
        review = await given_up(context)
        await context.s.owner.execute("update payonce.effects set kind = 'elsewhere.pay'")
        assert await answer(context, review, Answer.HAPPENED, outcome={"anything": 7}) is State.PERFORMED


async def test_it_did_not_is_a_refusal_to_the_handler_with_who_said_so(stage: OpenStage) -> None:
    async with open_context(stage, Blind(), "lost before") as context:
        review = await given_up(context)
        assert await answer(context, review, Answer.DID_NOT) is State.ABANDONED
        with pytest.raises(Refused, match="by ada: looked at the vendor"):
            await context.pay(await context.take_over())
        assert len(context.vendor.calls) == 1


@pytest.mark.parametrize("safety", [KEYED, UNFENCED, Rebroadcast(), Harmless()], ids=lambda kind: type(kind).__name__)
async def test_sending_again_by_a_persons_word_pays_once(stage: OpenStage, safety: Safety) -> None:
    async with open_context(stage, safety, "lost before", honours_keys=honours_keys(safety)) as context:
        await given_up(context)
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S)
        [review] = await reviews(Reader(context.s.database))
        await answer(context, review, Answer.SEND_AGAIN)
        await context.pay(await context.take_over())
        assert list(context.vendor.times().values()) == [1]


async def stopped_and_given_up(context: AppContext, late: str = "stop before") -> tuple[asyncio.Task[Receipt], Work]:
    """A send in flight at the vendor while its message is given up, and the run that took over."""
    work = await context.claim()
    stopped = await context.stop_in_the_vendor(work, late)
    successor = await context.take_over()
    async with begin(context.s.database, context.s.feed) as tx:
        await give_up_effects(tx, work.message.id, "enough")
    return stopped, successor


@pytest.mark.parametrize("safety", [FENCED, UNFENCED], ids=["fenced", "unfenced"])
async def test_nobody_can_say_that_it_did_not_happen_before_the_vendor_would_show_it(
    stage: OpenStage, safety: Safety
) -> None:
    async with open_context(stage, safety) as context:
        await stopped_and_given_up(context)
        for seconds in (0.0, TIMEOUT_S, HORIZON_S - 1):
            await context.s.clock.advance(seconds)
            [review] = await reviews(Reader(context.s.database))
            assert review.allowed == BOTH | {Answer.LOOK_AGAIN}
            with pytest.raises(Invalid, match="not a safe answer"):
                await answer(context, review, Answer.SEND_AGAIN)
        await context.s.clock.advance(2)
        [review] = await reviews(Reader(context.s.database))
        assert Answer.SEND_AGAIN in review.allowed


async def test_a_persons_send_again_goes_through_the_vendors_fence(stage: OpenStage) -> None:
    async with open_context(stage, FENCED) as context:
        stopped, successor = await stopped_and_given_up(context)
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S)
        [review] = await reviews(Reader(context.s.database))
        assert await answer(context, review, Answer.SEND_AGAIN) is State.UNKNOWN
        assert await context.pay(successor) == PAID
        context.vendor.resume.set()
        with pytest.raises(Unknown):
            await stopped
        assert context.vendor.fences == 1
        assert context.vendor.times() == {"p-1:1": 1}


async def test_a_persons_send_again_asks_the_vendor_first(stage: OpenStage) -> None:
    async with open_context(stage, UNFENCED) as context:
        _, successor = await stopped_and_given_up(context, "stop after")
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S)
        [review] = await reviews(Reader(context.s.database))
        await answer(context, review, Answer.SEND_AGAIN)
        assert await context.pay(successor) == PAID
        assert len(context.vendor.calls) == 1


async def test_a_send_again_is_void_once_a_try_ends_that_the_person_did_not_know_of(stage: OpenStage) -> None:
    async with open_context(stage, UNFENCED) as context:
        stopped, successor = await stopped_and_given_up(context, "stop before, lost after")
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S)
        [review] = await reviews(Reader(context.s.database))
        await answer(context, review, Answer.SEND_AGAIN)
        context.vendor.shows_nothing = True
        context.vendor.resume.set()
        with pytest.raises(Unknown):
            await stopped
        with pytest.raises(Retry, match="person: no_fence"):
            await context.pay(successor)
        assert context.vendor.times() == {"p-1:1": 1}


async def test_looking_again_finds_it(stage: OpenStage) -> None:
    async with open_context(stage, UNFENCED, "lost after") as context:
        review = await given_up(context)
        assert await answer(context, review, Answer.LOOK_AGAIN) is State.UNKNOWN
        assert await context.pay(await context.take_over()) == PAID
        assert len(context.vendor.calls) == 1


async def test_an_answer_to_what_has_changed_since_is_refused(stage: OpenStage) -> None:
    async with open_context(stage, Blind(), "lost after") as context:
        review = await given_up(context)
        results = await asyncio.gather(
            answer(context, review, Answer.DID_NOT),
            answer(context, review, Answer.HAPPENED, outcome=PAID),
            return_exceptions=True,
        )
        assert [type(result) for result in results].count(Stale) == 1
        with pytest.raises(Stale):
            await answer(context, review, Answer.DID_NOT)


async def test_a_contradiction_allows_no_sending_again(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, honours_keys=True) as context:
        stale = await context.stop_in_the_vendor(await context.claim(), "refuse late")
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + 1)
        await context.pay(successor)
        context.vendor.resume.set()
        with pytest.raises(Unknown):
            await stale
        [review] = await reviews(Reader(context.s.database))
        assert review.allowed == BOTH
        assert "contradict" in review.question
        assert [line.event for line in review.evidence] == ["started", "started", "performed", "refused"]
        with pytest.raises(Retry, match="person: contradiction"):
            await context.pay(successor)


async def test_a_late_answer_settles_a_review_that_waited_for_it(stage: OpenStage) -> None:
    async with open_context(stage, Blind()) as context:
        work = await context.claim()
        stale = await context.stop_in_the_vendor(work, "stop before")
        async with begin(context.s.database, context.s.feed) as tx:
            await give_up_effects(tx, work.message.id, "the run limit was reached")
        [review] = await reviews(Reader(context.s.database))
        context.vendor.resume.set()
        assert await stale == PAID
        assert await reviews(Reader(context.s.database)) == []
        with pytest.raises(Stale):
            await answer(context, review, Answer.DID_NOT)


async def test_reviews_come_in_pages(stage: OpenStage) -> None:
    async with open_context(stage, Blind(), *["lost after"] * 5) as context:
        work = await context.claim()
        for number in range(5):
            with pytest.raises(Unknown):
                await context.pay(work, f"p-{number}")
        async with begin(context.s.database, context.s.feed) as tx:
            assert len(await give_up_effects(tx, work.message.id, "enough")) == 5
        read, seen, after = Reader(context.s.database), [], None
        while page := await reviews(read, 2, after):
            seen += [review.effect.key for review in page]
            after = page[-1].effect.id
        assert seen == [f"p-{number}" for number in range(5)]


async def test_what_a_message_left_open_is_found_however_many_of_its_effects_ended(stage: OpenStage) -> None:
    async with open_context(stage, Blind(), "lost after") as context:
        work, read = await context.claim(), Reader(context.s.database)
        assert await left_open(read, work.message.id) is None
        with pytest.raises(Unknown):
            await context.pay(work)
        await context.pay(work, "p-2")
        found = await left_open(read, work.message.id)
        assert found is not None
        assert found.key == "p-1"
        assert await left_open(read, uuid4()) is None


async def test_a_refused_key_gets_a_next_generation_only_when_asked_for(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, "refuse") as context:
        work = await context.claim()
        for _ in range(2):
            with pytest.raises(Refused):
                await context.pay(work)
        for _ in range(2):
            async with begin(context.s.database, context.s.feed) as tx:
                assert await next_generation(tx, "test.pay", "p-1", after=1) == 2
        assert await context.pay(work) == Receipt("n-p-1:2", "p-1:2")
        assert await context.state() == [(1, "refused"), (2, "performed")]
        assert await context.business() == 2, "a generation that the handler began has an intent of its own"


@pytest.mark.parametrize("fault", ["", "lost after", "not sent"])
async def test_nothing_else_makes_a_generation_grow(stage: OpenStage, fault: str) -> None:
    async with open_context(stage, KEYED, fault) as context:
        await asyncio.gather(context.pay(await context.claim()), return_exceptions=True)
        for generation in (1, 2):
            with pytest.raises(Invalid, match="needs a refusal or an abandonment"):
                async with begin(context.s.database, context.s.feed) as tx:
                    await next_generation(tx, "test.pay", "p-1", after=generation)
        await context.s.clock.advance(VALID_FOR_S)
        assert [generation for generation, _ in await context.state()] == [1]
