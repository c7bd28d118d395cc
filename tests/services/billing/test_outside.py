"""Money that went back outside the gateway, by bank or by hand: a person puts it on record, and what waited goes on."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from payonce.engine.audit import notes
from payonce.engine.controls import Executed, submit
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid, Stale
from payonce.services.billing.payments import decisions
from payonce.services.billing.payments.decisions import RefundDecision
from payonce.services.billing.payments.handlers import refunds
from payonce.services.billing.payments.model import Refund, Transaction
from payonce.services.billing.payments.model import State as ChargeState
from payonce.services.billing.payments.store import refunds as refund_store
from payonce.services.billing.payments.store import transactions
from payonce.services.billing.subscriptions.handlers import payment_events
from payonce.services.billing.subscriptions.model import InvoiceState, State, Subscription
from payonce.services.billing.subscriptions.pdf.content import printed_note
from payonce.services.billing.subscriptions.store import accounts, credit_notes
from payonce.testing import OpenStage
from payonce.vendors.gateway.port import RefundOrder
from tests.locks import waits_or_ended
from tests.services.billing.billing_stage import House, aed, open_house
from tests.services.billing.test_odd_payments import ODD_MINOR, REFUNDS, last_invoice, renewal

ODD = aed("28.00")


async def odd_charge(house: House) -> tuple[Subscription, Transaction]:
    """Another amount than the renewal's was taken. Subscriptions have asked for it back; payments has not read it."""
    await house.s.admin.pause(REFUNDS, "to be late")
    _, subscription = await renewal(house)
    await house.run()
    transaction_id = await house.s.owner.fetchval("select transaction_id from subscriptions.unapplied_payments")
    return subscription, await charge(house, transaction_id)


async def charge(house: House, transaction_id: str) -> Transaction:
    found = await transactions.find(house.s.read, transaction_id)
    assert found is not None
    return found


async def note_outside(house: House, seen: Transaction, amount: Amount | None = None) -> Refund:
    minor = None if amount is None else amount.minor
    asked = RefundDecision(
        transaction_id=seen.id, left_minor=seen.left.minor, amount_minor=minor, outside=True, note="by bank, no. 4711"
    )
    async with house.s.begin() as tx:
        done = await submit(tx, decisions.refund_action(house.s.admin), asked, "ann", asked.note)
    assert isinstance(done, Executed)
    found = await refund_store.find(house.s.read, done.result["refund"])
    assert found is not None
    return found


async def refused_by_the_gateway(house: House, odd: Transaction) -> None:
    """Less is left there than we want back."""
    assert odd.gateway_id is not None
    await house.client.refund(RefundOrder("by-hand", odd.gateway_id, 1, "AED", "by-hand"))
    await house.s.admin.resume(REFUNDS)
    await house.run()
    assert [text for text in await house.loud() if "28.00 AED was not refunded" in text]


async def not_read_yet(house: House, odd: Transaction) -> None:
    assert not house.gateway.books.refunds


@pytest.mark.parametrize("how", [refused_by_the_gateway, not_read_yet])
async def test_what_waited_for_it_goes_on_and_the_books_close(stage: OpenStage, how: Any) -> None:
    async with open_house(stage) as house:
        subscription, odd = await odd_charge(house)
        await how(house, odd)
        at_the_gateway = len(house.gateway.books.refunds)
        refund = await note_outside(house, odd)
        assert (refund.outside, refund.gateway_id, refund.amount) == (True, None, ODD)
        await house.run()
        returned = await house.s.owner.fetchval("select returned_minor from subscriptions.unapplied_payments")
        assert returned == ODD_MINOR
        assert (await charge(house, odd.id)).state is ChargeState.REFUNDED
        await house.s.admin.resume(REFUNDS)
        await house.pass_days(3)
        assert len(house.gateway.books.refunds) == at_the_gateway, "whoever reads the order later finds it given back"
        assert (await last_invoice(house, subscription)).state is InvoiceState.PAID
        assert await house.state(subscription) is State.ACTIVE
        balances = [await house.balance(each) for each in ("unapplied", "captured", "paid_outside", "gateway_clearing")]
        assert balances == [0, 0, -ODD_MINOR, 2 * 2_900 + ODD_MINOR]
        assert await house.broken() == {}
        [said] = [each for each in await notes(house.s.read) if each.location == f"brakes.{decisions.ACTION}"]
        assert (said.actor, said.text.endswith("by bank, no. 4711")) == ("ann", True)
        assert f"record as refunded outside the gateway 28.00 AED of charge {odd.id}" in said.text


async def test_it_is_noted_once_and_not_what_the_gateway_gave_back(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        _, odd = await odd_charge(house)
        await note_outside(house, odd, aed("8.00"))
        with pytest.raises(Stale, match=r"20.00 AED of charge .* which is not what you saw"):
            await note_outside(house, odd, aed("8.00"))
        await house.s.admin.resume(REFUNDS)
        await house.run()
        assert house.gateway.books.refunded_total("AED") == aed("20.00"), "the gateway gives back the rest"
        for amount in (None, aed("8.00")):
            with pytest.raises(Invalid, match=r"0\.00 AED of 28\.00 AED is left"):
                await note_outside(house, await charge(house, odd.id), amount)
        assert await house.broken() == {}


async def test_while_the_gateway_gives_back_anything_of_it_nothing_is_noted(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        _, odd = await odd_charge(house)
        async with house.s.begin() as tx:
            await refunds.request(tx, odd.id, aed("10.00"), "a part", "k")
            noting = asyncio.create_task(_note_the_rest(house, odd))
            assert await waits_or_ended(house.s, noting)
        with pytest.raises(Invalid, match=r"the gateway is processing a refund of 10\.00 AED .* wait"):
            await noting
        await house.s.admin.resume(REFUNDS)
        await house.run()
        assert house.gateway.books.refunded_total("AED") == ODD
        assert await house.broken() == {}


async def _note_the_rest(house: House, odd: Transaction) -> Refund:
    async with house.s.begin() as tx:
        return await refunds.record_outside(tx, odd.id, aed("18.00"), "by bank", "k2")


async def test_a_payment_of_an_invoice_gets_its_credit_note_as_if_the_gateway_had_given_it_back(
    stage: OpenStage,
) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        [invoice] = await house.invoices(subscription)
        assert invoice.transaction_id is not None
        await note_outside(house, await charge(house, invoice.transaction_id), aed("9.00"))
        await house.run()
        [invoice] = await house.invoices(subscription)
        assert invoice.refunded == aed("9.00")
        assert await house.balance("refunds") == -(await house.balance("paid_outside")) == 900
        assert not house.gateway.books.refunds
        assert await house.broken() == {}


async def test_a_credit_note_says_how_the_money_went_back(stage: OpenStage) -> None:
    """Also of a refund of which a version of payments before this has told."""
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        [invoice] = await house.invoices(subscription)
        assert invoice.transaction_id is not None
        await note_outside(house, await charge(house, invoice.transaction_id), aed("9.00"))
        await house.run()
        by_bank = await house.told("refund")
        older = {name: value for name, value in by_bank.metadata.items() if name != "outside"} | {"refund_id": "older"}
        told_by_older = replace(by_bank, event_id="older", amount="1.00", metadata=older)
        async with house.s.begin() as tx:
            await refunds.request(tx, invoice.transaction_id, aed("2.00"), "a bad day", "k1")
            await payment_events.apply(tx, told_by_older)
        await house.run()
        [invoice] = await house.invoices(subscription)
        account = await accounts.account(house.s.read, invoice.account_id)
        printed = [
            printed_note(each, (), invoice, account, ("payonce",), "UTC")
            for each in await credit_notes.of_invoice(house.s.read, invoice)
        ]
        assert {each.total.to_text(): each.status for each in printed} == {
            "9.00": "Refunded by another way than the card",
            "2.00": "Refunded to the visa card ending in 4242",
            "1.00": "Refunded",
        }
