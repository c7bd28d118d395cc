"""Effects by safety kind: recorded first, performed at most once per key and generation, resolved after a crash.

Runs are stopped inside the vendor's call, where a crash leaves an intent without an outcome.
"""

import asyncio

import pytest

from payonce.engine.effects import Blind, Findable, Harmless, Keyed, Rebroadcast, Safety, give_up_effects
from payonce.engine.messages.transaction import begin
from payonce.kit.outcomes import Refused, Retry, Unknown
from payonce.testing import OpenStage
from tests.engine.effects_stage import HORIZON_S, TIMEOUT_S, VALID_FOR_S, Order, Receipt, Unasked, Vendor, open_context

KEYED = Keyed(VALID_FOR_S)
FENCED = Findable(HORIZON_S, Vendor().forget)
UNFENCED = Findable(HORIZON_S)
EVERY_KIND = [KEYED, FENCED, UNFENCED, Rebroadcast(), Harmless(), Blind()]
PAID = Receipt("n-p-1:1", "p-1:1")

every_kind = pytest.mark.parametrize("safety", EVERY_KIND, ids=lambda kind: type(kind).__name__.lower())


def honours_keys(safety: Safety) -> bool:
    return isinstance(safety, Keyed | Rebroadcast)


@every_kind
async def test_an_effect_happens_once_and_is_answered_from_the_record_afterwards(
    stage: OpenStage, safety: Safety
) -> None:
    async with open_context(stage, safety) as context:
        work = await context.claim()
        assert await context.pay(work) == PAID
        assert await context.pay(work) == PAID
        assert await context.pay(await context.take_over()) == PAID
        assert len(context.vendor.calls) == context.vendor.times()["p-1:1"] == 1
        assert await context.state() == [(1, "performed")]
        assert await context.events() == ["started", "performed"]
        assert await context.business() == 1


@every_kind
async def test_a_refusal_is_definite_and_the_vendor_is_not_asked_again(stage: OpenStage, safety: Safety) -> None:
    async with open_context(stage, safety, "refuse") as context:
        work = await context.claim()
        for _ in range(2):
            with pytest.raises(Refused, match="card declined"):
                await context.pay(work)
        assert len(context.vendor.calls) == 1
        assert await context.state() == [(1, "refused")]
        stored = await context.s.owner.fetchval("select reason from payonce.effects")
        assert "abcdef123456" not in stored


@every_kind
async def test_what_was_not_sent_is_sent_by_the_next_run(stage: OpenStage, safety: Safety) -> None:
    async with open_context(stage, safety, "not sent", "not sent") as context:
        work = await context.claim()
        for _ in range(2):
            with pytest.raises(Retry, match="not sent"):
                await context.pay(work)
            assert await context.state() == [(1, "intended")]
        assert await context.pay(work) == PAID
        assert context.vendor.times() == {"p-1:1": 1}
        assert await context.business() == 1, "the intent belongs to the first commit alone"


@every_kind
@pytest.mark.parametrize("fault", ["stop before", "stop after"])
async def test_nobody_touches_a_live_attempt(stage: OpenStage, safety: Safety, fault: str) -> None:
    async with open_context(stage, safety) as context:
        await context.s.clock.freeze()
        await context.stop_in_the_vendor(await context.claim(), fault)
        successor = await context.take_over()
        with pytest.raises(Retry, match="another run is performing") as waiting:
            await context.pay(successor)
        assert waiting.value.after_s == TIMEOUT_S
        assert len(context.vendor.calls) == 1


@pytest.mark.parametrize("fault", ["stop before", "stop after"])
@pytest.mark.parametrize("safety", [KEYED, Rebroadcast()], ids=["keyed", "rebroadcast"])
async def test_after_a_crash_the_exact_request_is_replayed(stage: OpenStage, safety: Safety, fault: str) -> None:
    async with open_context(stage, safety, honours_keys=True) as context:
        await context.stop_in_the_vendor(await context.claim(), fault)
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + 1)
        assert await context.pay(successor) == PAID
        assert context.vendor.calls[0] == context.vendor.calls[1]
        assert context.vendor.times() == {"p-1:1": 1}
        assert await context.state() == [(1, "performed")]
        assert await context.business() == 1


async def test_a_keyed_effect_is_not_replayed_once_the_vendor_forgot_the_key(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, honours_keys=True) as context:
        await context.stop_in_the_vendor(await context.claim(), "stop after")
        successor = await context.take_over()
        # The replay would end after the key expired.
        await context.s.clock.advance(VALID_FOR_S - TIMEOUT_S + 1)
        assert await context.pay(successor) == PAID
        assert len(context.vendor.calls) == 1, "found, not replayed"
        assert (await context.events())[-1] == "found"


@pytest.mark.parametrize("can_be_asked", [True, False])
async def test_a_forgotten_key_that_the_vendor_does_not_show_is_for_a_person(
    stage: OpenStage, can_be_asked: bool
) -> None:
    async with open_context(stage, KEYED, "lost before") as context:
        if not can_be_asked:
            context.effect_type = Unasked
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        await context.s.clock.advance(VALID_FOR_S)
        with pytest.raises(Retry, match="person: key_expired"):
            await context.pay(work)
        assert await context.state() == [(1, "review")]
        assert len(context.vendor.calls) == 1


async def test_a_findable_effect_is_found_after_a_crash(stage: OpenStage) -> None:
    async with open_context(stage, UNFENCED) as context:
        await context.stop_in_the_vendor(await context.claim(), "stop after")
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + 1)
        assert await context.pay(successor) == PAID
        assert context.vendor.times() == {"p-1:1": 1}


async def test_a_vendors_silence_proves_nothing_before_the_horizon(stage: OpenStage) -> None:
    """The vendor shows a payment only after a while: believing it sooner means paying twice."""
    async with open_context(stage, FENCED) as context:
        await context.s.clock.freeze()
        await context.stop_in_the_vendor(await context.claim(), "stop after")
        context.vendor.shows_nothing = True
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S - 1)
        with pytest.raises(Retry, match="proves nothing yet") as early:
            await context.pay(successor)
        assert early.value.after_s == 1.0
        context.vendor.shows_nothing = False
        await context.s.clock.advance(1)
        assert await context.pay(successor) == PAID
        assert context.vendor.times() == {"p-1:1": 1}


async def test_a_findable_effect_is_sent_again_only_behind_the_vendors_fence(stage: OpenStage) -> None:
    async with open_context(stage, FENCED) as context:
        stale = await context.stop_in_the_vendor(await context.claim(), "stop before")
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        assert await context.pay(successor) == PAID
        assert context.vendor.fences == 1
        context.vendor.resume.set()
        with pytest.raises((Refused, Unknown)):
            await stale
        assert context.vendor.times() == {"p-1:1": 1}, "the first send landed behind the fence"
        assert (await context.events()).count("started") == 2


async def test_what_landed_before_the_fence_is_found_and_not_sent_again(stage: OpenStage) -> None:
    async with open_context(stage, FENCED, "lost before") as context:
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        context.vendor.landing_in_fence = context.vendor.calls[0]
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        assert await context.pay(work) == PAID
        assert context.vendor.times() == {"p-1:1": 1}


async def test_without_a_fence_a_person_decides_about_sending_again(stage: OpenStage) -> None:
    async with open_context(stage, UNFENCED) as context:
        await context.stop_in_the_vendor(await context.claim(), "stop before")
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        with pytest.raises(Retry, match="person: no_fence"):
            await context.pay(successor)
        assert await context.state() == [(1, "review")]
        assert len(context.vendor.calls) == 1


async def test_a_fence_that_fails_sends_nothing(stage: OpenStage) -> None:
    async with open_context(stage, FENCED, "lost before") as context:
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        context.vendor.fence_fails = True
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        with pytest.raises(Retry, match="could not be fenced"):
            await context.pay(work)
        assert len(context.vendor.calls) == 1
        assert await context.state() == [(1, "unknown")]


async def test_two_runs_that_miss_it_at_once_fence_and_send_once(stage: OpenStage) -> None:
    async with open_context(stage, FENCED, "lost before") as context:
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        results = await asyncio.gather(*(context.pay(work) for _ in range(5)), return_exceptions=True)
        assert all(result == PAID or isinstance(result, Retry) for result in results)
        assert context.vendor.fences == 1
        if PAID not in results:
            # Another run's query arrived after the fence: nobody has sent, and the next run does.
            assert context.vendor.times() == {}
            await context.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
            assert await context.pay(work) == PAID
        assert context.vendor.times() == {"p-1:1": 1}


async def test_what_was_given_up_during_the_fence_is_not_sent(stage: OpenStage) -> None:
    async with open_context(stage, FENCED, "lost before") as context:
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)

        async def give_up_meanwhile(order: Order) -> None:
            async with begin(context.s.database, context.s.feed) as tx:
                assert await give_up_effects(tx, work.message.id, "by an operator")

        context.safety = Findable(HORIZON_S, give_up_meanwhile)
        with pytest.raises(Retry, match="person: gave_up"):
            await context.pay(work)
        assert len(context.vendor.calls) == 1


async def test_a_vendor_that_cannot_tell_leaves_it_unknown(stage: OpenStage) -> None:
    async with open_context(stage, FENCED, "lost after") as context:
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        context.vendor.blind_for_questions = True
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        for _ in range(2):
            with pytest.raises(Retry, match="is not known"):
                await context.pay(work)
        assert await context.state() == [(1, "unknown")]
        kept = await context.s.owner.fetchval("select string_agg(detail, ' ') from payonce.effect_attempts")
        assert "abcdefghijkl" not in kept


@pytest.mark.parametrize("fault", ["stop before", "stop after"])
async def test_a_harmless_effect_is_abandoned_and_done_in_the_next_generation(stage: OpenStage, fault: str) -> None:
    async with open_context(stage, Harmless()) as context:
        await context.stop_in_the_vendor(await context.claim(), fault)
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + 1)
        assert await context.pay(successor) == Receipt("n-p-1:2", "p-1:2")
        assert await context.state() == [(1, "abandoned"), (2, "performed")]
        assert max(context.vendor.times().values()) == 1, "at most once per key and generation"
        assert await context.business() == 1, "the business state moves once, not per generation"


@pytest.mark.parametrize("fault", ["stop before", "stop after"])
async def test_a_blind_effect_is_tried_once_and_then_a_persons(stage: OpenStage, fault: str) -> None:
    async with open_context(stage, Blind()) as context:
        await context.stop_in_the_vendor(await context.claim(), fault)
        successor = await context.take_over()
        await context.s.clock.advance(10 * VALID_FOR_S)
        for _ in range(2):
            with pytest.raises(Retry, match="person: blind"):
                await context.pay(successor)
        assert len(context.vendor.calls) == 1
        assert await context.state() == [(1, "review")]


@every_kind
@pytest.mark.parametrize("fault", ["lost before", "lost after"])
async def test_no_fault_pays_twice(stage: OpenStage, safety: Safety, fault: str) -> None:
    """Whatever the kind does next, the vendor's books have each key and generation at most once."""
    async with open_context(stage, safety, fault, fault, honours_keys=honours_keys(safety)) as context:
        work = await context.claim()
        with pytest.raises(Unknown, match="reset by peer"):
            await context.pay(work)
        for _ in range(6):
            await context.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
            try:
                await context.pay(work)
            except (Retry, Unknown):
                continue
        assert all(count == 1 for count in context.vendor.times().values())
        kept = await context.s.owner.fetchval("select string_agg(detail, ' ') from payonce.effect_attempts")
        assert "hunter22" not in kept


@every_kind
async def test_two_runs_at_once_perform_once(stage: OpenStage, safety: Safety) -> None:
    """Two messages about one object: the second finds the first one's intent."""
    async with open_context(stage, safety) as context:
        work = await context.claim()
        results = await asyncio.gather(*(context.pay(work) for _ in range(5)), return_exceptions=True)
        assert PAID in results
        assert all(result == PAID or isinstance(result, Retry) for result in results)
        assert len(context.vendor.calls) == 1
        assert await context.business() == 1
