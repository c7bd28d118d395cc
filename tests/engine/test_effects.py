"""Effects by their safety kind: recorded first, performed at most once per key and generation, resolved after a crash.

Runs are stopped inside the vendor's call, which is where a crash leaves an intent without an outcome.
"""

import asyncio

import pytest

from payonce.engine.effects import Blind, Findable, Harmless, Keyed, Rebroadcast, Safety, give_up_effects
from payonce.engine.messages.transaction import begin
from payonce.kit.outcomes import Refused, Retry, Unknown
from payonce.testing import OpenStage
from tests.engine.effects_stage import HORIZON_S, TIMEOUT_S, VALID_FOR_S, Order, Receipt, Unasked, Vendor, open_desk

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
    async with open_desk(stage, safety) as desk:
        work = await desk.claim()
        assert await desk.pay(work) == PAID
        assert await desk.pay(work) == PAID
        assert await desk.pay(await desk.take_over()) == PAID
        assert len(desk.vendor.calls) == desk.vendor.times()["p-1:1"] == 1
        assert await desk.state() == [(1, "performed")]
        assert await desk.events() == ["started", "performed"]
        assert await desk.business() == 1


@every_kind
async def test_a_refusal_is_definite_and_the_vendor_is_not_asked_again(stage: OpenStage, safety: Safety) -> None:
    async with open_desk(stage, safety, "refuse") as desk:
        work = await desk.claim()
        for _ in range(2):
            with pytest.raises(Refused, match="card declined"):
                await desk.pay(work)
        assert len(desk.vendor.calls) == 1
        assert await desk.state() == [(1, "refused")]
        stored = await desk.s.owner.fetchval("select reason from payonce.effects")
        assert "abcdef123456" not in stored


@every_kind
async def test_what_was_not_sent_is_sent_by_the_next_run(stage: OpenStage, safety: Safety) -> None:
    async with open_desk(stage, safety, "not sent", "not sent") as desk:
        work = await desk.claim()
        for _ in range(2):
            with pytest.raises(Retry, match="not sent"):
                await desk.pay(work)
            assert await desk.state() == [(1, "intended")]
        assert await desk.pay(work) == PAID
        assert desk.vendor.times() == {"p-1:1": 1}
        assert await desk.business() == 1, "the intent belongs to the first commit alone"


@every_kind
@pytest.mark.parametrize("fault", ["stop before", "stop after"])
async def test_nobody_touches_a_live_attempt(stage: OpenStage, safety: Safety, fault: str) -> None:
    async with open_desk(stage, safety) as desk:
        await desk.s.clock.freeze()
        await desk.stop_in_the_vendor(await desk.claim(), fault)
        successor = await desk.take_over()
        with pytest.raises(Retry, match="another run is performing") as waiting:
            await desk.pay(successor)
        assert waiting.value.after_s == TIMEOUT_S
        assert len(desk.vendor.calls) == 1


@pytest.mark.parametrize("fault", ["stop before", "stop after"])
@pytest.mark.parametrize("safety", [KEYED, Rebroadcast()], ids=["keyed", "rebroadcast"])
async def test_after_a_crash_the_exact_request_is_replayed(stage: OpenStage, safety: Safety, fault: str) -> None:
    async with open_desk(stage, safety, honours_keys=True) as desk:
        await desk.stop_in_the_vendor(await desk.claim(), fault)
        successor = await desk.take_over()
        await desk.s.clock.advance(TIMEOUT_S + 1)
        assert await desk.pay(successor) == PAID
        assert desk.vendor.calls[0] == desk.vendor.calls[1]
        assert desk.vendor.times() == {"p-1:1": 1}
        assert await desk.state() == [(1, "performed")]
        assert await desk.business() == 1


async def test_a_keyed_effect_is_not_replayed_once_the_vendor_forgot_the_key(stage: OpenStage) -> None:
    async with open_desk(stage, KEYED, honours_keys=True) as desk:
        await desk.stop_in_the_vendor(await desk.claim(), "stop after")
        successor = await desk.take_over()
        # The replay would end after the key: too late already.
        await desk.s.clock.advance(VALID_FOR_S - TIMEOUT_S + 1)
        assert await desk.pay(successor) == PAID
        assert len(desk.vendor.calls) == 1, "found, not replayed"
        assert (await desk.events())[-1] == "found"


@pytest.mark.parametrize("can_be_asked", [True, False])
async def test_a_forgotten_key_that_the_vendor_does_not_show_is_for_a_person(
    stage: OpenStage, can_be_asked: bool
) -> None:
    async with open_desk(stage, KEYED, "lost before") as desk:
        if not can_be_asked:
            desk.effect_type = Unasked
        work = await desk.claim()
        with pytest.raises(Unknown):
            await desk.pay(work)
        await desk.s.clock.advance(VALID_FOR_S)
        with pytest.raises(Retry, match="person: key_expired"):
            await desk.pay(work)
        assert await desk.state() == [(1, "review")]
        assert len(desk.vendor.calls) == 1


async def test_a_findable_effect_is_found_after_a_crash(stage: OpenStage) -> None:
    async with open_desk(stage, UNFENCED) as desk:
        await desk.stop_in_the_vendor(await desk.claim(), "stop after")
        successor = await desk.take_over()
        await desk.s.clock.advance(TIMEOUT_S + 1)
        assert await desk.pay(successor) == PAID
        assert desk.vendor.times() == {"p-1:1": 1}


async def test_a_vendors_silence_proves_nothing_before_the_horizon(stage: OpenStage) -> None:
    """The vendor shows a payment only after a while: whoever believes it sooner pays twice."""
    async with open_desk(stage, FENCED) as desk:
        await desk.s.clock.freeze()
        await desk.stop_in_the_vendor(await desk.claim(), "stop after")
        desk.vendor.shows_nothing = True
        successor = await desk.take_over()
        await desk.s.clock.advance(TIMEOUT_S + HORIZON_S - 1)
        with pytest.raises(Retry, match="proves nothing yet") as early:
            await desk.pay(successor)
        assert early.value.after_s == 1.0
        desk.vendor.shows_nothing = False
        await desk.s.clock.advance(1)
        assert await desk.pay(successor) == PAID
        assert desk.vendor.times() == {"p-1:1": 1}


async def test_a_findable_effect_is_sent_again_only_behind_the_vendors_fence(stage: OpenStage) -> None:
    async with open_desk(stage, FENCED) as desk:
        stale = await desk.stop_in_the_vendor(await desk.claim(), "stop before")
        successor = await desk.take_over()
        await desk.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        assert await desk.pay(successor) == PAID
        assert desk.vendor.fences == 1
        desk.vendor.resume.set()
        with pytest.raises((Refused, Unknown)):
            await stale
        assert desk.vendor.times() == {"p-1:1": 1}, "the first send landed behind the fence"
        assert (await desk.events()).count("started") == 2


async def test_what_landed_before_the_fence_is_found_and_not_sent_again(stage: OpenStage) -> None:
    async with open_desk(stage, FENCED, "lost before") as desk:
        work = await desk.claim()
        with pytest.raises(Unknown):
            await desk.pay(work)
        desk.vendor.landing_in_fence = desk.vendor.calls[0]
        await desk.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        assert await desk.pay(work) == PAID
        assert desk.vendor.times() == {"p-1:1": 1}


async def test_without_a_fence_a_person_decides_about_sending_again(stage: OpenStage) -> None:
    async with open_desk(stage, UNFENCED) as desk:
        await desk.stop_in_the_vendor(await desk.claim(), "stop before")
        successor = await desk.take_over()
        await desk.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        with pytest.raises(Retry, match="person: no_fence"):
            await desk.pay(successor)
        assert await desk.state() == [(1, "review")]
        assert len(desk.vendor.calls) == 1


async def test_a_fence_that_fails_sends_nothing(stage: OpenStage) -> None:
    async with open_desk(stage, FENCED, "lost before") as desk:
        work = await desk.claim()
        with pytest.raises(Unknown):
            await desk.pay(work)
        desk.vendor.fence_fails = True
        await desk.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        with pytest.raises(Retry, match="could not be fenced"):
            await desk.pay(work)
        assert len(desk.vendor.calls) == 1
        assert await desk.state() == [(1, "unknown")]


async def test_two_runs_that_miss_it_at_once_fence_and_send_once(stage: OpenStage) -> None:
    async with open_desk(stage, FENCED, "lost before") as desk:
        work = await desk.claim()
        with pytest.raises(Unknown):
            await desk.pay(work)
        await desk.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        results = await asyncio.gather(*(desk.pay(work) for _ in range(5)), return_exceptions=True)
        assert all(result == PAID or isinstance(result, Retry) for result in results)
        assert desk.vendor.fences == 1
        if PAID not in results:
            # What another one asked came in behind the fence: nobody has sent, and the next run does.
            assert desk.vendor.times() == {}
            await desk.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
            assert await desk.pay(work) == PAID
        assert desk.vendor.times() == {"p-1:1": 1}


async def test_what_was_given_up_during_the_fence_is_not_sent(stage: OpenStage) -> None:
    async with open_desk(stage, FENCED, "lost before") as desk:
        work = await desk.claim()
        with pytest.raises(Unknown):
            await desk.pay(work)
        await desk.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)

        async def give_up_meanwhile(order: Order) -> None:
            async with begin(desk.s.database, desk.s.feed) as tx:
                assert await give_up_effects(tx, work.message.id, "by an operator")

        desk.safety = Findable(HORIZON_S, give_up_meanwhile)
        with pytest.raises(Retry, match="person: gave_up"):
            await desk.pay(work)
        assert len(desk.vendor.calls) == 1


async def test_a_vendor_that_cannot_tell_leaves_it_unknown(stage: OpenStage) -> None:
    async with open_desk(stage, FENCED, "lost after") as desk:
        work = await desk.claim()
        with pytest.raises(Unknown):
            await desk.pay(work)
        desk.vendor.blind_for_questions = True
        await desk.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        for _ in range(2):
            with pytest.raises(Retry, match="cannot be told"):
                await desk.pay(work)
        assert await desk.state() == [(1, "unknown")]
        kept = await desk.s.owner.fetchval("select string_agg(detail, ' ') from payonce.effect_attempts")
        assert "abcdefghijkl" not in kept


@pytest.mark.parametrize("fault", ["stop before", "stop after"])
async def test_a_harmless_effect_is_abandoned_and_done_in_the_next_generation(stage: OpenStage, fault: str) -> None:
    async with open_desk(stage, Harmless()) as desk:
        await desk.stop_in_the_vendor(await desk.claim(), fault)
        successor = await desk.take_over()
        await desk.s.clock.advance(TIMEOUT_S + 1)
        assert await desk.pay(successor) == Receipt("n-p-1:2", "p-1:2")
        assert await desk.state() == [(1, "abandoned"), (2, "performed")]
        assert max(desk.vendor.times().values()) == 1, "at most once per key and generation"
        assert await desk.business() == 1, "the business state moves once, not per generation"


@pytest.mark.parametrize("fault", ["stop before", "stop after"])
async def test_a_blind_effect_is_tried_once_and_then_a_persons(stage: OpenStage, fault: str) -> None:
    async with open_desk(stage, Blind()) as desk:
        await desk.stop_in_the_vendor(await desk.claim(), fault)
        successor = await desk.take_over()
        await desk.s.clock.advance(10 * VALID_FOR_S)
        for _ in range(2):
            with pytest.raises(Retry, match="person: blind"):
                await desk.pay(successor)
        assert len(desk.vendor.calls) == 1
        assert await desk.state() == [(1, "review")]


@every_kind
@pytest.mark.parametrize("fault", ["lost before", "lost after"])
async def test_no_fault_pays_twice(stage: OpenStage, safety: Safety, fault: str) -> None:
    """Whatever the kind does next, the vendor's books hold each key and generation at most once."""
    async with open_desk(stage, safety, fault, fault, honours_keys=honours_keys(safety)) as desk:
        work = await desk.claim()
        with pytest.raises(Unknown, match="reset by peer"):
            await desk.pay(work)
        for _ in range(6):
            await desk.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
            try:
                await desk.pay(work)
            except (Retry, Unknown):
                continue
        assert all(count == 1 for count in desk.vendor.times().values())
        kept = await desk.s.owner.fetchval("select string_agg(detail, ' ') from payonce.effect_attempts")
        assert "hunter22" not in kept


@every_kind
async def test_two_runs_at_once_perform_once(stage: OpenStage, safety: Safety) -> None:
    """Two messages about one object: the second finds the first one's intent."""
    async with open_desk(stage, safety) as desk:
        work = await desk.claim()
        results = await asyncio.gather(*(desk.pay(work) for _ in range(5)), return_exceptions=True)
        assert PAID in results
        assert all(result == PAID or isinstance(result, Retry) for result in results)
        assert len(desk.vendor.calls) == 1
        assert await desk.business() == 1
