"""The same key with another request, amount or service is an error that names both, never an answer."""

import asyncio
import itertools
from typing import Any

import pytest

from payonce.engine.effects import Blind, Findable, Harmless, Keyed, Safety, next_generation
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import Reader, begin
from payonce.engine.messages.work import Work, handles
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, KeyReused, Refused, Retry, Unknown
from payonce.testing import OpenStage, Stage
from tests.engine.effects_stage import (
    HORIZON_S,
    PAY,
    VALID_FOR_S,
    AppContext,
    Order,
    Pay,
    Receipt,
    Vendor,
    open_context,
)

EUR, USD = Asset("EUR", 2), Asset("USD", 2)
KEYED = Keyed(VALID_FOR_S)


class Transfer(Pay):
    """Its amount is not part of the request, so that the two can differ independently."""

    def __init__(
        self,
        vendor: Vendor,
        safety: Safety = KEYED,
        *,
        minor: int = 100,
        amount: Amount | None = None,
        note: bytes = b"",
        version: int = 1,
    ) -> None:
        super().__init__(vendor, safety)
        self.minor, self.counted, self.note, self.version = minor, amount, note, version

    async def prepare(self) -> Order:
        return Order(self.reference, self.minor, self.note)

    def amount(self, request: Order) -> Amount | None:
        return self.counted


class Quoted(Transfer):
    """The request contains a quote that changes every time; recipient and amount stay the same."""

    quotes = itertools.count(1)

    def __init__(self, vendor: Vendor, safety: Safety = KEYED, **asked: Any) -> None:
        super().__init__(vendor, safety, **asked)
        self.quotes_read = 0

    def identity(self) -> object:
        return {"minor": self.minor}

    async def prepare(self) -> Order:
        await asyncio.sleep(0)
        self.quotes_read += 1
        return Order(self.reference, self.minor, f"quote {next(self.quotes)}".encode())


async def ask(work: Work, effect: Pay) -> Receipt:
    return await work.effect(effect, key="p-1")


async def on_record(context: AppContext) -> list[tuple[Any, ...]]:
    rows = await context.s.owner.fetch("select * from payonce.effects order by generation")
    return [tuple(row.values()) for row in rows]


EURO = Amount(100, EUR)


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ({"minor": 100}, {"minor": 150}, [r"request\.minor_units=100,", r"request\.minor_units=150;"]),
        ({"amount": EURO}, {"amount": Amount(150, EUR)}, [r'amount="1\.00 EUR",', r'amount="1\.50 EUR";']),
        ({"amount": EURO}, {"amount": Amount(100, USD)}, [r'amount="1\.00 EUR",', r'amount="1\.00 USD";']),
        ({"amount": EURO}, {"amount": Amount(100, Asset("EUR", 3))}, [r'amount="1\.00 EUR",', r'amount="0\.100 EUR";']),
    ],
)
@pytest.mark.parametrize("fault", ["", "refuse", "lost after", "not sent"])
async def test_the_same_key_with_another_request_or_amount_is_an_error_that_names_both(
    stage: OpenStage, first: dict[str, Any], second: dict[str, Any], named: list[str], fault: str
) -> None:
    """Whether it was performed, refused, lost on the way or never sent."""
    async with open_context(stage, KEYED, fault) as context:
        work = await context.claim()
        try:
            await ask(work, Transfer(context.vendor, **first))
        except (Refused, Unknown, Retry):
            assert fault
        before, calls = await on_record(context), len(context.vendor.calls)
        with pytest.raises(
            KeyReused, match=rf"test\.pay p-1:1 is on record with {named[0]} but was requested with {named[1]}"
        ):
            await ask(work, Transfer(context.vendor, **second))
        assert await on_record(context) == before
        assert len(context.vendor.calls) == calls


async def test_the_same_key_of_another_service_is_an_error_that_names_both(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        work = await context.claim()
        await ask(work, Transfer(context.vendor))
        others = Work(
            work._claim, context.queue, context.s.database, context.s.feed, Reader(context.s.database), "billing"
        )
        with pytest.raises(KeyReused, match=r'on record with service="", but was requested with service="billing"'):
            await ask(others, Transfer(context.vendor))


@pytest.mark.parametrize("effect", [Transfer, Quoted])
async def test_the_same_request_is_answered_from_the_record(stage: OpenStage, effect: type[Transfer]) -> None:
    async with open_context(stage, KEYED) as context:
        work = await context.claim()
        paid = await ask(work, effect(context.vendor, amount=EURO))
        again = effect(context.vendor, amount=EURO)
        assert await ask(work, again) == paid
        assert len(context.vendor.calls) == 1


async def test_what_an_effect_declares_is_compared_without_preparing_again(stage: OpenStage) -> None:
    """Preparing may query the vendor, but a recorded answer needs no query."""
    async with open_context(stage, KEYED, "lost after", honours_keys=True) as context:
        work = await context.claim()
        with pytest.raises(Unknown):
            await ask(work, Quoted(context.vendor, amount=EURO))
        again = Quoted(context.vendor, amount=EURO)
        await ask(work, again)
        assert again.quotes_read == 0
        assert len(context.vendor.calls) == 2
        assert len(context.vendor.booked) == 1
        with pytest.raises(KeyReused, match=r"identity\.minor=100, but was requested with identity\.minor=150"):
            await ask(work, Quoted(context.vendor, minor=150))
        with pytest.raises(KeyReused, match=r'amount="1\.00 EUR", but was requested with amount="9\.00 EUR"'):
            await ask(work, Quoted(context.vendor, amount=Amount(900, EUR)))


async def test_a_secret_is_not_told_with_what_differs(stage: OpenStage) -> None:
    class Secret(Quoted):
        def identity(self) -> object:
            return {"card_token": f"tok-{self.minor}-abcdefgh"}

    async with open_context(stage, KEYED) as context:
        work = await context.claim()
        await ask(work, Secret(context.vendor))
        with pytest.raises(KeyReused) as told:
            await ask(work, Secret(context.vendor, minor=150))
    assert "identity.card_token=[redacted], but was requested with identity.card_token=[redacted]" in str(told.value)


@pytest.mark.parametrize("safety", [Harmless(), Findable(HORIZON_S)])
async def test_a_doubtful_effect_is_neither_resolved_nor_made_anew_for_another_request(
    stage: OpenStage, safety: Safety
) -> None:
    async with open_context(stage, safety, "lost before") as context:
        work = await context.claim()
        with pytest.raises(Unknown):
            await ask(work, Transfer(context.vendor, safety))
        before = await on_record(context)
        with pytest.raises(KeyReused):
            await ask(work, Transfer(context.vendor, safety, minor=150))
        assert await on_record(context) == before


async def test_the_next_generation_after_a_refusal_may_ask_otherwise(stage: OpenStage) -> None:
    """Like the next attempt of a charge with another card."""
    async with open_context(stage, KEYED, "refuse") as context:
        work = await context.claim()
        with pytest.raises(Refused):
            await ask(work, Transfer(context.vendor, note=b"card 1", amount=EURO))
        async with begin(context.s.database, context.s.feed) as tx:
            await next_generation(tx, "test.pay", "p-1", after=1)
        second = Transfer(context.vendor, note=b"card 2", amount=EURO)
        assert (await ask(work, second)).reference == "p-1:2"
        assert (await ask(work, second)).reference == "p-1:2"
        with pytest.raises(KeyReused, match=r"p-1:2 is on record"):
            await ask(work, Transfer(context.vendor, note=b"card 3", amount=EURO))


async def test_an_earlier_generation_that_happened_after_all_answers_for_the_same_amount_alone(
    stage: OpenStage,
) -> None:
    async with open_context(stage, KEYED, "refuse") as context:
        work = await context.claim()
        with pytest.raises(Refused):
            await ask(work, Transfer(context.vendor, note=b"card 1", amount=EURO))
        async with begin(context.s.database, context.s.feed) as tx:
            await next_generation(tx, "test.pay", "p-1", after=1)
        await context.s.owner.execute(
            """
            update payonce.effects set state = 'performed', outcome = '{"number": "n-1", "reference": "p-1:1"}'
            """
        )
        with pytest.raises(KeyReused, match=r'amount="1\.00 EUR", but was requested with amount="1\.50 EUR"'):
            await ask(work, Transfer(context.vendor, note=b"card 2", amount=Amount(150, EUR)))
        answered = await ask(work, Transfer(context.vendor, note=b"card 2", amount=EURO))
    assert answered == Receipt("n-1", "p-1:1")


async def test_rows_from_before_the_comparison_keep_answering(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        work = await context.claim()
        paid = await ask(work, Transfer(context.vendor))
        await context.s.owner.execute("update payonce.effects set identity = null")
        assert await ask(work, Transfer(context.vendor, minor=150)) == paid


async def test_a_request_of_an_older_version_is_compared_by_its_amount_alone(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        work = await context.claim()
        paid = await ask(work, Transfer(context.vendor, note=b"as it was", amount=EURO))
        newer = Transfer(context.vendor, note=b"with a word more", amount=EURO, version=2)
        assert await ask(work, newer) == paid
        with pytest.raises(KeyReused, match="amount"):
            await ask(work, Transfer(context.vendor, amount=Amount(150, EUR), version=2))


async def test_an_effect_that_declares_its_identity_since_goes_on_from_its_record(stage: OpenStage) -> None:
    """The remedy for an effect that turned out to prepare different requests."""
    async with open_context(stage, KEYED) as context:
        work = await context.claim()
        paid = await ask(work, Transfer(context.vendor, amount=EURO))
        assert await ask(work, Quoted(context.vendor, amount=EURO)) == paid


async def test_a_request_that_would_differ_in_the_next_run_is_refused_in_the_first(stage: OpenStage) -> None:
    class Numbered(Transfer):
        numbers = itertools.count(1)

        async def prepare(self) -> Order:
            return Order(self.reference, 100, b"%d" % next(self.numbers))

    class Waiting(Transfer):
        async def prepare(self) -> Order:
            await asyncio.sleep(0)
            return await super().prepare()

    class Restless(Numbered):
        def identity(self) -> object:
            return next(self.numbers)

    async with open_context(stage, KEYED) as context:
        work = await context.claim()
        for effect, why in (
            (
                Numbered,
                r"prepare\(\) of test\.pay returned two results for p-1:1: result\.signed=.* declare identity\(\)",
            ),
            (Waiting, r"prepare\(\) of test\.pay waits for an answer from outside.* declare identity\(\)"),
            (Restless, r"identity\(\) of test\.pay returned two results"),
        ):
            with pytest.raises(Invalid, match=why):
                await ask(work, effect(context.vendor))
        assert await context.state() == []
        assert context.vendor.calls == []


async def test_a_message_that_reuses_a_key_is_parked_at_once_and_its_business_object_not_given_up(
    stage: OpenStage,
) -> None:
    """However long its policy would retry, since the next run would request the same."""
    vendor, given_up = Vendor(), []

    async def give_up(work: Work) -> None:
        given_up.append(work.message.id)

    policy = Policy("pay", lease_s=PAY.lease_s, max_attempts=None, on_give_up=give_up)

    @handles(policy)
    async def pay(work: Work) -> None:
        await work.effect(Transfer(vendor, Blind(), minor=work.message.payload["minor"]), key="p-1")

    async with stage() as s:
        worker = await s.worker(pay)
        for minor in (100, 150):
            await s.feed.put([Message(queue="pay", payload={"minor": minor})])
            assert await worker.step()
        [parked] = await parked_messages(s)
        assert parked["attempts"] == 1
        assert "request.minor_units=100, but was requested with request.minor_units=150" in parked["last_error"]
        assert given_up == []
        assert [order.minor_units for order in vendor.calls] == [100]
        assert await s.owner.fetchval("select state from payonce.effects") == "performed"


async def parked_messages(s: Stage) -> list[Any]:
    return list(await s.owner.fetch("select * from payonce.messages where state = 'parked'"))
