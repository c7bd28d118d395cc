"""Orphaned effects are put into review, unless a run may still be working on them."""

import asyncio

import pytest

from payonce.engine.effects import Blind, Cause, Findable, Keyed, Safety, answer_review, orphans, reviews
from payonce.engine.effects.review import Answer
from payonce.engine.janitors import orphans as janitor
from payonce.engine.janitors.orphans import review_orphans
from payonce.engine.messages.model import State as MessageState
from payonce.engine.messages.ports import Filter
from payonce.engine.messages.transaction import Reader, begin
from payonce.kit.outcomes import Retry, Unknown
from payonce.testing import OpenStage, eventually
from tests.engine.effects_stage import PAY, TIMEOUT_S, VALID_FOR_S, AppContext, open_context
from tests.locks import waits_for_a_lock

KEYED: Safety = Keyed(VALID_FOR_S)


async def park(context: AppContext) -> None:
    """As the reaper or an operator would leave it, whatever its effects."""
    await context.s.owner.execute(
        "update payonce.messages set state = 'parked', lease_until = null, token = token + 1, last_error = 'gave up'"
    )


async def left_unknown(context: AppContext) -> None:
    """One attempt with a lost answer."""
    work = await context.claim()
    with pytest.raises(Unknown):
        await context.pay(work)


async def test_the_effect_of_a_parked_message_goes_before_a_person(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, "lost after") as context:
        await left_unknown(context)
        await park(context)
        assert await review_orphans(context.s.database) == 1
        [review] = await reviews(Reader(context.s.database))
        assert review.effect.review_cause is Cause.GAVE_UP
        assert "is parked: gave up" in review.question
        assert (await context.events())[-1] == "gave_up"
        assert await context.s.owner.fetchval("select reference from payonce.audit_log") == str(review.effect.id)
        assert await review_orphans(context.s.database) == 0, "once"


async def test_a_message_that_died_alone_leaves_its_effect_to_a_person(stage: OpenStage) -> None:
    """The reaper parks without a handler that could give the effect up."""
    async with open_context(stage, Blind()) as context:
        work = await context.claim()
        await context.stop_in_the_vendor(work, "stop after")
        await context.s.owner.execute("update payonce.messages set running_alone = true")
        await context.s.clock.advance_leases(PAY.lease_s + 1)
        assert await context.queue.reap() == 1
        assert (await context.s.admin.depth("pay")).parked == 1
        assert await review_orphans(context.s.database) == 0, "the stopped process may still be waiting for its answer"
        await context.s.clock.advance(TIMEOUT_S + 1)
        assert await review_orphans(context.s.database) == 1
        assert await context.state() == [(1, "review")]
        # It wakes up after all: its outcome is recorded, and nobody needs to decide.
        context.vendor.resume.set()
        await context.stopped[0]
        assert await context.state() == [(1, "performed")]


async def test_a_message_deleted_by_hand_leaves_its_effect_to_a_person(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, "lost after") as context:
        await left_unknown(context)
        await park(context)
        assert await context.s.admin.purge("pay", MessageState.PARKED, Filter(), "tester") == 0, "a purge keeps it"
        await context.s.owner.execute("delete from payonce.messages")
        assert await review_orphans(context.s.database) == 1
        [review] = await reviews(Reader(context.s.database))
        assert "is gone" in review.question


async def test_an_effect_that_was_never_sent_is_not_forgotten_either(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, "not sent") as context:
        work = await context.claim()
        with pytest.raises(Retry):
            await context.pay(work)
        await park(context)
        assert await context.state() == [(1, "intended")]
        assert await review_orphans(context.s.database) == 1
        [review] = await reviews(Reader(context.s.database))
        assert Answer.SEND_AGAIN in review.allowed


@pytest.mark.parametrize("state", ["ready", "alone", "leased"])
async def test_effects_whose_message_lives_are_left_alone(stage: OpenStage, state: str) -> None:
    async with open_context(stage, KEYED, "lost after") as context:
        await left_unknown(context)
        if state != "leased":
            await context.s.owner.execute("update payonce.messages set state = $1, lease_until = null", state)
        await context.s.clock.advance(10 * TIMEOUT_S)
        assert await review_orphans(context.s.database) == 0
        assert await context.state() == [(1, "unknown")]


@pytest.mark.parametrize(("state", "reviewed"), [("waiting", 0), ("leased", 0), ("delivered", 0), ("parked", 1)])
async def test_a_message_that_lives_in_a_queue_elsewhere_looks_after_its_effect(
    stage: OpenStage, state: str, reviewed: int
) -> None:
    async with open_context(stage, KEYED, "lost after") as context:
        await left_unknown(context)
        await context.s.owner.execute(
            f"""
            insert into payonce.relays (name, keeps, ahead_s) values ('redis', true, 0), ('other', true, 0);
            with gone as (delete from payonce.messages returning *)
            insert into payonce.outbox (relay, id, state, ready_at, try_at, lease_until, last_error, queue, action,
                created_at, payload)
            select 'redis', id, '{state}', payonce.due_now(), payonce.due_now(),
                case '{state}' when 'leased' then payonce.lease_now() end, 'refused there', queue, action, created_at,
                payload from gone
            """
        )
        assert await review_orphans(context.s.database) == reviewed
        if reviewed:
            assert "is parked: refused there" in (await reviews(Reader(context.s.database)))[0].question


async def test_a_try_that_may_still_be_under_way_is_left_alone(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        await context.stop_in_the_vendor(await context.claim(), "stop before")
        await park(context)
        assert await review_orphans(context.s.database) == 0
        await context.s.clock.advance(TIMEOUT_S + 1)
        assert await review_orphans(context.s.database) == 1


async def test_an_effect_that_a_run_is_writing_to_is_not_waited_for(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, "lost after") as context:
        await left_unknown(context)
        await park(context)
        async with context.s.owner.transaction():
            await context.s.owner.execute("select from payonce.effects for update")
            async with asyncio.timeout(30):
                assert await review_orphans(context.s.database) == 0
        assert await review_orphans(context.s.database) == 1


async def test_a_message_redriven_after_the_first_look_keeps_its_effect(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The redriven run is inside the vendor's call when the janitor, which saw a parked message, gets to the effect."""
    async with open_context(stage, KEYED, "lost before") as context:
        await left_unknown(context)
        await park(context)

        async def redriven_meanwhile(*arguments: object) -> bool:
            await context.s.admin.redrive("pay", Filter())
            await context.stop_in_the_vendor(await context.claim(), "stop before")
            return await orphans.review_orphan(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(janitor, "review_orphan", redriven_meanwhile)
        assert await review_orphans(context.s.database) == 0
        context.vendor.resume.set()
        await context.stopped[0]
        assert await context.state() == [(1, "performed")]
        assert context.vendor.times() == {"p-1:1": 1}


async def test_a_run_that_decided_before_the_review_sends_nothing(stage: OpenStage) -> None:
    """The other order: the run has read the effect, and the janitor is faster. The revision shows it."""
    async with open_context(stage, KEYED, "lost before") as context:
        await left_unknown(context)
        await park(context)
        await context.s.admin.redrive("pay", Filter())
        work = await context.claim()
        async with context.s.owner.transaction():
            await context.s.owner.execute("lock table payonce.effects in share mode")
            run = asyncio.create_task(context.pay(work))
            await eventually(lambda: waits_for_a_lock(context.s), what="the run having decided to send again")
            await context.s.owner.execute(
                """
                update payonce.effects set state = 'review', review_cause = 'gave_up', revision = revision + 1,
                    busy_until = null
                """
            )
        with pytest.raises(Retry, match="waits for a person"):
            await run
        assert len(context.vendor.calls) == 1


async def test_who_answered_has_time_to_redrive(stage: OpenStage) -> None:
    async with open_context(stage, Findable(60.0), "lost after") as context:
        await left_unknown(context)
        await park(context)
        assert await review_orphans(context.s.database) == 1
        [review] = await reviews(Reader(context.s.database))
        async with begin(context.s.database, context.s.feed) as tx:
            await answer_review(
                tx, review.effect.id, Answer.LOOK_AGAIN, "tester", "look", revision=review.effect.revision
            )
        assert await review_orphans(context.s.database) == 0
        await context.s.clock.advance(orphans.ANSWER_GRACE_S + 1)
        assert await review_orphans(context.s.database) == 1, "nobody redrove it"


async def test_many_orphans_are_taken_in_batches(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_context(stage, KEYED, *["lost after"] * 5) as context:
        work = await context.claim()
        for number in range(5):
            with pytest.raises(Unknown):
                await context.pay(work, key=f"p-{number}")
        await park(context)
        monkeypatch.setattr(janitor, "BATCHES_MAX", 2)
        assert await review_orphans(context.s.database, batch=2) == 4, "the bound of one tick"
        assert await review_orphans(context.s.database, batch=2) == 1
