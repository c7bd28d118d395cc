"""Never more than the limit leaves within any window, however many send at once, and no money is dropped
because of it."""

import asyncio

import pytest

from payonce.engine.controls import limits, remove_limit, set_limit
from payonce.engine.controls.velocity_limits import LOOK_MAX_S
from payonce.engine.effects import Harmless, Keyed, give_up_effects, next_generation
from payonce.engine.messages.transaction import Tx, begin
from payonce.kit.money import Amount, Asset, well_known
from payonce.kit.outcomes import Held, Invalid, Refused, Retry, Unknown
from payonce.testing import OpenStage, eventually
from tests.engine.controls_stage import PayCoins, PayEuros, Till, euros, open_till
from tests.engine.effects_stage import Receipt
from tests.locks import apart

KEYED = Keyed(36_000.0)


async def limit(till: Till, most: str, window_s: int = 3_600, vendor: str | None = None) -> int:
    async with till.begin() as tx:
        return (await set_limit(tx, euros(most), "ada", window_s=window_s, vendor=vendor)).id


async def used(till: Till) -> str:
    [found] = await limits(till.read)
    return found.used.to_text()


async def test_twenty_intents_at_once_never_pass_the_limit(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await limit(till, "7.50")
        results = await till.pay_all(await till.claim(20), minor=100)
        assert len(till.vendor.booked) == 7
        assert sum(isinstance(result, Held) for result in results) == 13
        assert await used(till) == "7.00"


async def test_a_second_intent_waits_until_the_first_one_counts(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await limit(till, "1.50")
        first, second = await till.claim(2)
        others: list[asyncio.Task[Receipt]] = []

        async def waits_or_is_through() -> bool:
            waiting = "select exists (select from pg_locks where not granted)"
            return others[0].done() or bool(await till.s.owner.fetchval(waiting))

        async def let_the_second_begin(tx: Tx) -> None:
            others.append(apart(till.pay(second, "p-2")))
            await eventually(waits_or_is_through)

        await first.effect(PayEuros(till.vendor, till.safety), key="p-1", intent=let_the_second_begin)
        [result] = await asyncio.gather(*others, return_exceptions=True)
        assert isinstance(result, Held)
        assert till.vendor.times() == {"p-1:1": 1}


async def test_intents_of_several_processes_never_pass_several_limits(stage: OpenStage) -> None:
    async with open_till(stage) as till, stage() as other:
        await limit(till, "30.00", 86_400)
        await limit(till, "5.00", vendor="bank")
        works = await till.claim(20)
        for work in works[10:]:
            work._database, work._feed = other.database, other.feed
        await till.pay_all(works)
        assert len(till.vendor.booked) == 5


async def test_what_leaves_the_window_makes_room_and_the_wait_says_when(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.s.clock.freeze()
        await limit(till, "3.00", 100)
        works = await till.claim(4)
        for number in range(3):
            await till.pay(works[number], f"p-{number}")
            await till.s.clock.advance(10)
        with pytest.raises(
            Held, match=r"2\.00 EUR on top of 3\.00 EUR exceeds limit 1 .* there is room in 80 s"
        ) as held:
            await till.pay(works[3], "p-3", minor=200)
        assert held.value.after_s == 80
        await till.s.clock.advance(79.9)
        with pytest.raises(Held):
            await till.pay(works[3], "p-3", minor=200)
        await till.s.clock.advance(0.1)
        await till.pay(works[3], "p-3", minor=200)
        assert len(till.vendor.booked) == 4


async def test_a_long_wait_is_cut_into_looks(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await limit(till, "1.00", 86_400)
        first, second = await till.claim(2)
        await till.pay(first, "p-1")
        with pytest.raises(Held) as held:
            await till.pay(second, "p-2")
        assert held.value.after_s == LOOK_MAX_S
        async with till.begin() as tx:
            await set_limit(tx, euros("2.00"), "bob", window_s=86_400)
        await till.pay(second, "p-2")


async def test_an_amount_above_the_limit_itself_waits_for_a_person_and_is_not_dropped(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await limit(till, "9.99")
        [work] = await till.claim()
        with pytest.raises(Held, match=r"10\.00 EUR alone exceeds limit 1 .* raise"):
            await till.pay(work, "p-1", minor=1_000)
        await limit(till, "10.00")
        await till.pay(work, "p-1", minor=1_000)
        assert len(till.vendor.booked) == 1


@pytest.mark.parametrize(("fault", "counted"), [("refuse", "0.00"), ("lost after", "1.00"), ("", "1.00")])
async def test_only_what_definitely_did_not_happen_frees_its_share(stage: OpenStage, fault: str, counted: str) -> None:
    async with open_till(stage, KEYED, fault) as till:
        await limit(till, "1.00")
        first, second = await till.claim(2)
        await asyncio.gather(till.pay(first, "p-1"), return_exceptions=True)
        assert await used(till) == counted
        [result] = await asyncio.gather(till.pay(second, "p-2"), return_exceptions=True)
        assert isinstance(result, Held) is (counted == "1.00")


async def test_a_replay_is_neither_counted_twice_nor_held_back(stage: OpenStage) -> None:
    async with open_till(stage, KEYED, "lost before") as till:
        await limit(till, "1.00")
        [work] = await till.claim()
        with pytest.raises(Unknown):
            await till.pay(work, "p-1")
        await limit(till, "0.50")
        await till.pay(work, "p-1")
        assert await used(till) == "1.00"
        assert till.vendor.times() == {"p-1:1": 1}


async def test_a_send_afresh_within_the_window_is_not_counted_twice(stage: OpenStage) -> None:
    async with open_till(stage, KEYED, "not sent", "not sent") as till:
        await limit(till, "1.00")
        [work] = await till.claim()
        for _ in range(2):
            with pytest.raises(Retry, match="was not sent"):
                await till.pay(work, "p-1")
        await till.pay(work, "p-1")
        assert await used(till) == "1.00"


async def test_what_never_left_counts_when_it_is_sent_at_last(stage: OpenStage) -> None:
    """After hours without the vendor, waiting payments leave within the limit, not all at once."""
    async with open_till(stage, KEYED, *["not sent"] * 4) as till:
        await limit(till, "2.00")
        works = await till.claim(4)
        for number, work in enumerate(works):
            with pytest.raises((Held, Retry)):
                await till.pay(work, f"p-{number}")
            await till.s.clock.advance(1_801)
        results = await till.pay_all(works)
        assert len(till.vendor.booked) == 2
        assert sum(isinstance(result, Held) for result in results) == 2


async def test_a_next_generation_counts_anew_and_the_abandoned_one_no_more(stage: OpenStage) -> None:
    async with open_till(stage, Harmless(), "lost after", "lost after") as till:
        await limit(till, "1.00")
        [work] = await till.claim()
        for _ in range(2):
            with pytest.raises(Unknown):
                await till.pay(work, "p-1")
        assert await used(till) == "1.00"
        await limit(till, "0.99")
        with pytest.raises(Held):
            await till.pay(work, "p-1")
        await limit(till, "1.00")
        await till.pay(work, "p-1")


async def test_a_generation_after_a_refusal_is_held_like_any_other(stage: OpenStage) -> None:
    async with open_till(stage, KEYED, "refuse") as till:
        first, second = await till.claim(2)
        with pytest.raises(Refused):
            await till.pay(first, "p-1")
        await limit(till, "1.00")
        await till.pay(second, "p-2")
        async with till.begin() as tx:
            await next_generation(tx, "bank.pay", "p-1", after=1)
        with pytest.raises(Held):
            await till.pay(first, "p-1")


async def test_a_limit_of_a_vendor_counts_that_vendor_alone(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await limit(till, "1.00", vendor="exchange")
        first, second = await till.claim(2)
        await till.pay(first, "p-1", minor=500)
        await limit(till, "4.00")
        with pytest.raises(Held):
            await till.pay(second, "p-2")


async def test_other_assets_and_what_moves_nothing_pass(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await limit(till, "0.00")
        async with till.begin() as tx:
            await set_limit(tx, Amount(0, Asset("TON", 6)), "ada")
        first, second = await till.claim(2)
        await till.pay(first, "p-1", kind=PayCoins)
        await till.pay(second, "p-2", minor=0)
        assert len(till.vendor.booked) == 2


async def test_giving_up_keeps_the_share_until_a_person_says_that_it_did_not_happen(stage: OpenStage) -> None:
    async with open_till(stage, KEYED, "lost after") as till:
        await limit(till, "1.00")
        [work] = await till.claim()
        with pytest.raises(Unknown):
            await till.pay(work, "p-1")
        async with begin(till.s.database, till.s.feed) as tx:
            await give_up_effects(tx, work.message.id, "enough")
        assert await used(till) == "1.00"


async def test_limits_are_set_changed_and_removed_under_their_makers_name(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        first = await limit(till, "5.00")
        assert await limit(till, "6.00") == first
        second = await limit(till, "6.00", 60, "bank")
        assert [found.limit.what for found in await limits(till.read)] == [
            "6.00 EUR in 60 s through bank",
            "6.00 EUR in 3,600 s",
        ]
        async with till.begin() as tx:
            await remove_limit(tx, second, "bob")
        with pytest.raises(Invalid, match=f"no limit {second}"):
            async with till.begin() as tx:
                await remove_limit(tx, second, "bob")
        assert [actor for actor, _ in await till.notes()] == ["ada", "ada", "ada", "bob"]
        for most, window_s in ((Amount(-1, well_known("EUR")), 60), (euros("1"), 0), (euros("1"), 32 * 86_400)):
            with pytest.raises(Invalid):
                async with till.begin() as tx:
                    await set_limit(tx, most, "ada", window_s=window_s)
