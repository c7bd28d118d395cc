"""Credit: a balance with entries. It is used, paid out, expired or left; and the money and the credit never both."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from payonce.engine.audit import notes
from payonce.engine.controls import Approval, Executed, grant, set_threshold, submit
from payonce.kit.outcomes import Invalid, Stale
from payonce.services.billing.policies import BILLING_CLOCK, REFUND_INITIATION, SUBSCRIPTION_UPDATE
from payonce.services.billing.subscriptions import schedules
from payonce.services.billing.subscriptions.decisions.credit import (
    ACTION,
    CreditChange,
    CreditVerdict,
    credit_action,
)
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.handlers import dunning, payment_events, renewals
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import (
    CreditPayout,
    InvoiceState,
    LineKind,
    PayoutState,
    State,
    Subscription,
)
from payonce.services.billing.subscriptions.store import credit, credit_payouts, subscriptions
from payonce.services.billing.wire import Status
from payonce.testing import OpenStage
from payonce.vendors.gateway.port import RefundOrder
from tests.locks import waits_or_ended
from tests.services.billing.billing_stage import AED, PATIENCE_S, Customer, House, aed, open_house
from tests.services.billing.test_given_back_once import charge_of, give_back

BEGIN = datetime(2026, 2, 1, 9, tzinfo=UTC)
AT_ONCE_S = 6.0


async def change_of(house: House, verdict: CreditVerdict, amount: str, **how: Any) -> CreditChange:
    """About the balance as it is now."""
    has = await credit.balance(house.s.read, house.customers[0].id, AED)
    given = {"seen": has.revision, "note": "they wrote to us", **how}
    return CreditChange(
        account_id=house.customers[0].id,
        currency="AED",
        exponent=2,
        verdict=verdict,
        amount_minor=aed(amount).minor,
        **given,
    )


async def decide(house: House, asked: CreditChange, by: str = "ann") -> Any:
    async with house.s.begin() as tx:
        end = await submit(tx, credit_action(house.s.admin), asked, by, asked.note)
    assert isinstance(end, Executed)
    return end.result


async def change(house: House, verdict: CreditVerdict, amount: str, **how: Any) -> Any:
    return await decide(house, await change_of(house, verdict, amount, **how))


async def pay_out(house: House, amount: str, *, run: bool = True, **how: Any) -> CreditPayout:
    done = await change(house, CreditVerdict.PAY_OUT, amount, **how)
    if run:
        await house.run()
    return await payout_of(house, done["payout"])


async def payout_of(house: House, payout_id: str) -> CreditPayout:
    found = await credit_payouts.find(house.s.read, payout_id)
    assert found is not None
    return found


async def entries_of(house: House, customer: Customer) -> list[tuple[str, str]]:
    """The oldest first."""
    found = await credit.entries(house.s.read, customer.id)
    return [(each.kind.value, each.amount.to_text()) for each in found[::-1]]


async def with_credit(house: House) -> tuple[Customer, Subscription]:
    """A year of Annual Pro is paid and changed to Basic at once: 999.00 come back, of which 29.00 pay a month."""
    customer = await house.customer()
    subscription = await house.subscribe(customer, "annual-pro", run=False)
    # Not for long: every ten minutes of a year are two hundredths.
    await house.run(AT_ONCE_S)
    await house.change_plan(subscription, "basic", ChangeTiming.NOW)
    assert await house.credit(customer) == aed("970.00")
    return customer, subscription


async def test_a_refund_does_not_pay_the_money_and_leave_the_credit(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, subscription = await with_credit(house)
        first = (await house.invoices(subscription))[0]
        with pytest.raises(Invalid, match=r"pay out the credit of account acc-1 \(POST /v1/credit/payouts"):
            await give_back(house, first, aed("941.00"), beyond_credit=True)
        with pytest.raises(Invalid, match=r"0\.00 AED is refundable"):
            await give_back(house, first, aed("941.00"), outside=True, beyond_credit=True)
        await house.run()
        assert not house.gateway.books.refunds
        assert await house.credit(customer) == aed("970.00")


async def test_credit_that_is_paid_out_is_money_and_pays_no_invoice(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, subscription = await with_credit(house)
        payout = await pay_out(house, "970.00")
        assert (payout.state, payout.amount, payout.refund_id is not None) == (
            PayoutState.SUCCEEDED,
            aed("970.00"),
            True,
        )
        assert house.gateway.books.refunded_total("AED") == aed("970.00")
        assert await house.credit(customer) == aed("0.00")
        first = (await house.invoices(subscription))[0]
        assert (await charge_of(house, first)).free == aed("0.00"), "29.00 of it were used for the new plan"
        assert first.refunded == aed("0.00"), "the invoice stands: its unused time was given back by the change"
        await house.pass_days(30)
        renewal = (await house.invoices(subscription))[-1]
        assert (renewal.credit, renewal.due) == (aed("0.00"), aed("29.00"))
        assert await entries_of(house, customer) == [("granted", "970.00"), ("paid_out", "-970.00")]
        assert [await house.balance(path) for path in ("credit", "credit_payout", "captured")] == [0, 0, 0]
        assert await house.loud() == []
        assert await house.broken() == {}


async def test_what_is_not_paid_out_pays_the_next_invoice(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, subscription = await with_credit(house)
        await pay_out(house, "941.00")
        await house.pass_days(30)
        renewal = (await house.invoices(subscription))[-1]
        assert (renewal.credit, renewal.due) == (aed("29.00"), aed("0.00"))
        assert await entries_of(house, customer) == [
            ("granted", "970.00"),
            ("paid_out", "-941.00"),
            ("used", "-29.00"),
        ]
        assert await house.broken() == {}


async def test_by_hand_it_is_on_record_and_the_gateway_is_not_asked(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, _ = await with_credit(house)
        done = await change(house, CreditVerdict.PAID_BY_HAND, "970.00", note="bank transfer 4711")
        await house.run()
        payout = await payout_of(house, done["payout"])
        assert (payout.state, payout.way, payout.transaction_id) == (PayoutState.SUCCEEDED, "by_hand", None)
        assert not house.gateway.books.refunds
        assert await house.credit(customer) == aed("0.00")
        assert await house.balance("paid_outside") == -97_000
        [said] = [each for each in await notes(house.s.read) if each.location == f"brakes.{ACTION}"]
        assert (said.actor, said.text) == (
            "ann",
            "record 970.00 AED of credit as paid out by hand, account acc-1, which has 970.00 AED: bank transfer 4711",
        )
        assert await house.broken() == {}


async def test_a_payout_that_the_gateway_refuses_leaves_the_credit_and_may_be_tried_again(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, subscription = await with_credit(house)
        charge = await charge_of(house, (await house.invoices(subscription))[0])
        assert charge.gateway_id is not None
        # Somebody gave back most of it at the gateway's own context.
        await house.client.refund(RefundOrder("context", charge.gateway_id, 90_000, "AED", "context"))
        payout = await pay_out(house, "970.00")
        assert payout.state is PayoutState.FAILED
        assert payout.failure
        assert await house.credit(customer) == aed("970.00")
        assert await entries_of(house, customer) == [
            ("granted", "970.00"),
            ("paid_out", "-970.00"),
            ("paid_out", "970.00"),
        ]
        assert any("the credit was restored" in text for text in await house.loud())
        assert (await charge_of(house, (await house.invoices(subscription))[0])).paid_out_minor == 0
        assert (await pay_out(house, "99.00")).state is PayoutState.SUCCEEDED
        assert await house.broken() == {}


async def test_a_payout_that_payments_has_no_room_for_fails_once_and_for_all(stage: OpenStage) -> None:
    """Here nobody knows of the refund that is under way there. Asked once more later, when there would be room, it is
    still refused: the credit was restored."""
    async with open_house(stage, at=BEGIN) as house:
        customer = await house.customer()
        subscription = await house.subscribe(customer)
        await change(house, CreditVerdict.ADD, "29.00")
        [invoice] = await house.invoices(subscription)
        await house.s.admin.pause(REFUND_INITIATION.queue, "to be late")
        await give_back(house, invoice, aed("1.00"))
        payout = await pay_out(house, "29.00", run=False)
        await house.s.admin.resume(REFUND_INITIATION.queue)
        await house.run()
        payout = await payout_of(house, payout.id)
        assert payout.state is PayoutState.FAILED
        assert "29.00 AED of transaction" in (payout.failure or "")
        assert await house.credit(customer) == aed("29.00")
        async with house.s.begin() as tx:
            await tx.execute("update payments.transactions set refunded_minor = 0, state = 'succeeded'")
            await credit_payouts.ask_payments(tx, payout, subscription.id, again=True)
        await house.run()
        asked_for = await house.s.owner.fetchval("select count(*) from payments.refunds where from_credit")
        assert asked_for == 0, "the gateway is not even asked"
        assert house.gateway.books.refunded_total("AED") == aed("1.00")
        assert await house.credit(customer) == aed("29.00")


async def test_a_payout_asked_for_twice_is_one_refund(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, subscription = await with_credit(house)
        payout = await pay_out(house, "400.00", run=False)
        for _ in range(3):
            async with house.s.begin() as tx:
                await credit_payouts.ask_payments(tx, payout, subscription.id, again=True)
        await house.run()
        assert house.gateway.books.refunded_total("AED") == aed("400.00")
        assert await house.credit(customer) == aed("570.00")
        assert await house.broken() == {}


async def test_a_payout_whose_message_was_purged_gets_another(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        await with_credit(house)
        payout = await pay_out(house, "970.00", run=False)
        await house.s.owner.execute("delete from payonce.messages where queue = $1", REFUND_INITIATION.queue)
        await house.run()
        assert (await payout_of(house, payout.id)).state is PayoutState.PENDING
        await house.pass_days(0.02)
        async with house.s.begin() as tx:
            await tx.send(BILLING_CLOCK, {}, action=schedules.PUT_BACK)
        await house.run()
        assert (await payout_of(house, payout.id)).state is PayoutState.SUCCEEDED
        assert house.gateway.books.refunded_total("AED") == aed("970.00")
        assert await house.broken() == {}


async def test_a_pending_payout_is_told_of_after_a_day(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        await with_credit(house)
        for queue in (REFUND_INITIATION.queue, SUBSCRIPTION_UPDATE.queue):
            await house.s.admin.pause(queue, "to be late")
        payout = await pay_out(house, "970.00", run=False)
        await house.pass_days(1.1)
        assert [row["id"] for row in (await house.broken())["a credit payout ends within a day"]] == [payout.id]


async def test_operators_add_remove_and_expire_credit_with_an_entry_each(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer = await house.customer()
        await change(house, CreditVerdict.ADD, "50.00")
        await change(house, CreditVerdict.REMOVE, "20.00")
        await change(house, CreditVerdict.EXPIRE, "1.00")
        assert await entries_of(house, customer) == [
            ("adjusted", "50.00"),
            ("adjusted", "-20.00"),
            ("expired", "-1.00"),
        ]
        assert [await house.balance(path) for path in ("credit", "credit_adjustments", "credit_expired")] == [
            -2_900,
            3_000,
            -100,
        ]
        subscription = await house.subscribe(customer)
        [invoice] = await house.invoices(subscription)
        assert (invoice.credit, invoice.due) == (aed("29.00"), aed("0.00"))
        assert await house.broken() == {}


@pytest.mark.parametrize("verdict", [each for each in CreditVerdict if each is not CreditVerdict.ADD])
async def test_more_than_there_is_is_refused_and_nothing_is_written(stage: OpenStage, verdict: CreditVerdict) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, _ = await with_credit(house)
        with pytest.raises(Invalid, match=r"acc-1 has 970.00 AED of credit, which is less than 970.01 AED"):
            await change(house, verdict, "970.01")
        with pytest.raises(Invalid, match="an amount above zero"):
            await change(house, verdict, "0.00")
        assert await entries_of(house, customer) == [("granted", "970.00")]


async def test_the_largest_balance_takes_no_more_and_can_still_be_used_up(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer = await house.customer()
        await change(house, CreditVerdict.ADD, "90071992547409.91")
        with pytest.raises(Invalid, match=r"the maximum balance is 90071992547409\.91 AED"):
            await change(house, CreditVerdict.ADD, "0.01")
        for verdict in (CreditVerdict.REMOVE, CreditVerdict.EXPIRE, CreditVerdict.PAID_BY_HAND):
            await change(house, verdict, "0.01")
        assert await house.credit(customer) == aed("90071992547409.88")
        assert await house.broken() == {}


async def test_what_no_charge_has_room_for_is_paid_out_in_parts_or_by_hand(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        subscription = await house.subscribe(await house.customer())
        await change(house, CreditVerdict.ADD, "100.00")
        [invoice] = await house.invoices(subscription)
        with pytest.raises(
            Invalid, match=rf"at most 29.00 AED is refundable, through invoice {invoice.number}: pay out in parts"
        ):
            await pay_out(house, "30.00")
        with pytest.raises(
            Invalid, match=r"invoice 'INV-2000-000001' .* has no refundable charge in AED; .* or pay out by hand"
        ):
            await pay_out(house, "10.00", invoice="INV-2000-000001")
        assert (await pay_out(house, "10.00", invoice=invoice.number)).invoice_id == invoice.id
        assert not [each for each in house.gateway.books.refunds.values() if each.amount != 1_000]
        assert await house.broken() == {}


async def test_above_the_threshold_a_second_person_agrees_or_it_is_not_done(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, _ = await with_credit(house)
        async with house.s.begin() as tx:
            await set_threshold(tx, aed("100.00"), "ann")
        asked = await change_of(house, CreditVerdict.PAY_OUT, "970.00")
        action = credit_action(house.s.admin)
        async with house.s.begin() as tx:
            waits = await submit(tx, action, asked, "ann", asked.note)
        assert isinstance(waits, Approval)
        await house.run()
        assert (await house.credit(customer), house.gateway.books.refunds) == (aed("970.00"), {})
        for _ in range(2):
            async with house.s.begin() as tx:
                granted = await grant(tx, {ACTION: action}, waits.id, "bob")
            assert granted.state == "granted"
            await house.run()
        assert house.gateway.books.refunded_total("AED") == aed("970.00")
        assert (await credit.entries(house.s.read, customer.id))[0].actor == "ann, granted by bob"
        assert await house.broken() == {}


async def test_what_was_asked_before_the_balance_changed_is_not_granted(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, _ = await with_credit(house)
        async with house.s.begin() as tx:
            await set_threshold(tx, aed("100.00"), "ann")
        asked = await change_of(house, CreditVerdict.PAY_OUT, "970.00")
        action = credit_action(house.s.admin)
        async with house.s.begin() as tx:
            waits = await submit(tx, action, asked, "ann", asked.note)
        assert isinstance(waits, Approval)
        await change(house, CreditVerdict.REMOVE, "1.00")
        async with house.s.begin() as tx:
            decided = await grant(tx, {ACTION: action}, waits.id, "bob")
        assert decided.state == "denied"
        assert "has changed: it is 969.00 AED now; look again" in str(decided.result)
        assert await house.credit(customer) == aed("969.00")


@pytest.mark.parametrize("begins_with", ["nothing", "credit"])
async def test_of_two_people_who_adjust_at_once_the_second_looks_again(stage: OpenStage, begins_with: str) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer = await house.customer()
        if begins_with == "credit":
            await change(house, CreditVerdict.ADD, "5.00")
        before = await house.credit(customer)
        asked = await change_of(house, CreditVerdict.ADD, "10.00")
        action = credit_action(house.s.admin)
        async with house.s.begin() as tx:
            await submit(tx, action, asked, "ann", asked.note)
            second = asyncio.create_task(decide(house, asked, "bob"))
            assert await waits_or_ended(house.s, second)
        with pytest.raises(Stale, match="has changed"):
            await second
        assert await house.credit(customer) == before + aed("10.00")
        assert await house.broken() == {}


async def test_a_renewal_that_meets_a_payout_uses_only_what_the_payout_leaves(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, subscription = await with_credit(house)
        end = (await house.subscription(subscription)).period_end
        assert end is not None
        await house.go_to(end - timedelta(minutes=1))
        await house.s.clock.freeze(end)
        asked = await change_of(house, CreditVerdict.PAY_OUT, "950.00")
        async with house.s.begin() as tx:
            await submit(tx, credit_action(house.s.admin), asked, "ann", asked.note)
            renewal = asyncio.create_task(house.look())
            assert await waits_or_ended(house.s, renewal)
        await renewal
        await house.run()
        invoice = (await house.invoices(subscription))[-1]
        assert (invoice.credit, invoice.due, invoice.state) == (aed("20.00"), aed("9.00"), InvoiceState.PAID)
        assert house.gateway.books.refunded_total("AED") == aed("950.00")
        assert await house.credit(customer) == aed("0.00")
        assert await house.parked() == []
        assert await house.broken() == {}


async def test_a_payout_that_meets_a_renewal_waits_and_is_refused(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, subscription = await with_credit(house)
        end = (await house.subscription(subscription)).period_end
        assert end is not None
        await house.go_to(end - timedelta(minutes=1))
        await house.s.clock.freeze(end)
        asked = await change_of(house, CreditVerdict.PAY_OUT, "970.00")
        async with house.s.begin() as tx:
            standing = await subscriptions.locked(tx, subscription.id)
            await renewals._renew(tx, standing, standing.subscription.period + 1)
            payout = asyncio.create_task(decide(house, asked))
            assert await waits_or_ended(house.s, payout)
        with pytest.raises(Stale, match=r"it is 941.00 AED now"):
            await payout
        await house.run()
        assert await house.credit(customer) == aed("941.00")
        assert not house.gateway.books.refunds
        assert await house.broken() == {}


@pytest.mark.parametrize("under_way", [False, True])
async def test_a_change_of_plan_that_meets_a_payout_of_the_same_charge_gives_back_no_less(
    stage: OpenStage, under_way: bool
) -> None:
    """The payout goes back through the charge of the plan that is left, and is no refund of that plan."""
    async with open_house(stage, at=BEGIN) as house:
        customer = await house.customer()
        subscription = await house.subscribe(customer, "pro")
        [first] = await house.invoices(subscription)
        await change(house, CreditVerdict.ADD, "60.00")
        await house.go_to(BEGIN + timedelta(days=14, seconds=-PATIENCE_S))
        if under_way:
            await house.s.admin.pause(REFUND_INITIATION.queue, "to be late")
        payout = await pay_out(house, "60.00")
        await house.change_plan(subscription, "basic", ChangeTiming.NOW)
        await house.s.admin.resume(REFUND_INITIATION.queue)
        await house.run()
        assert (await payout_of(house, payout.id)).state is PayoutState.SUCCEEDED
        change_invoice = (await house.invoices(subscription))[-1]
        [unused] = [line.amount for line in change_invoice.lines if line.kind is LineKind.UNUSED]
        assert unused == aed("-49.50"), "half of 99.00, as without the payout"
        charge = await charge_of(house, first)
        assert (charge.credited, charge.left, charge.free) == (aed("49.50"), aed("39.00"), aed("39.00"))
        assert await house.credit(customer) == aed("35.00")
        # Nothing goes back twice: 39.00 are all that the gateway has left of it, and 49.50 of 99.00 were served.
        assert await house.loud() == []
        assert await house.broken() == {}


async def test_a_refund_and_a_payout_of_one_charge_together_are_no_more_than_the_charge(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, subscription = await with_credit(house)
        first = (await house.invoices(subscription))[0]
        asked = await change_of(house, CreditVerdict.PAY_OUT, "970.00")
        await asyncio.gather(decide(house, asked), give_back_or_not(house, subscription))
        await house.run()
        assert house.gateway.books.refunded_total("AED") == aed("970.00")
        charge = await charge_of(house, first)
        assert (charge.free, charge.left) == (aed("0.00"), aed("29.00"))
        with pytest.raises(Invalid, match=r"0.00 AED is refundable"):
            await give_back(house, first, aed("29.00"))
        assert await house.credit(customer) == aed("0.00")
        assert await house.broken() == {}


async def give_back_or_not(house: House, subscription: Subscription) -> None:
    first = (await house.invoices(subscription))[0]
    with pytest.raises(Invalid, match="returned as credit"):
        await give_back(house, first, aed("970.00"))


async def test_an_invoice_whose_credit_was_paid_out_after_it_was_given_up_is_not_charged(stage: OpenStage) -> None:
    """It is to be paid by 14.00 of credit and 15.00 by card; the customer got the credit back and has it in money."""
    async with open_house(stage, at=BEGIN) as house:
        customer = await house.customer()
        subscription = await house.subscribe(customer)
        await change(house, CreditVerdict.ADD, "14.00")
        house.card_will(customer, *["insufficient_funds"] * 6)
        await house.pass_days(60)
        assert await house.state(subscription) is State.UNPAID
        back = await house.credit(customer)
        assert back > aed("0.00")
        await change(house, CreditVerdict.PAID_BY_HAND, back.to_text())
        owed = (await house.invoices(subscription))[-1]
        with pytest.raises(Conflict, match=r"of that is no longer available; add as much credit, or leave it unpaid"):
            async with house.s.begin() as tx:
                await dunning.pay_invoice(tx, None, owed.id)
        await house.give_card(customer)
        await house.run()
        assert await house.state(subscription) is State.UNPAID
        assert await house.parked() == []
        await change(house, CreditVerdict.ADD, back.to_text())
        async with house.s.begin() as tx:
            await dunning.pay_invoice(tx, None, owed.id)
        await house.run()
        assert await house.state(subscription) is State.ACTIVE
        assert await house.broken() == {}


async def test_an_answer_that_does_not_fit_a_payout_changes_nothing_and_is_loud(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        customer, _ = await with_credit(house)
        payout = await pay_out(house, "970.00")
        told = await house.told("refund")
        late = replace(told, event_id="odd-1", status=Status.FAILED)
        nobodys = replace(told, event_id="odd-2", metadata={"refund_key": "credit:nobody"})
        for odd, problem in (
            (late, f"failed of payout {payout.id} arrived when it was succeeded"),
            (nobodys, "there is no payout 'nobody'"),
        ):
            async with house.s.begin() as tx:
                assert (await payment_events.apply(tx, odd)).problem == problem
        assert await house.credit(customer) == aed("0.00")
        assert await house.broken() == {}


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        ("update subscriptions.credits set minor = minor + 1", "credit granted is used, paid out, expired or left"),
        (
            "update subscriptions.credit_entries set balance_minor = 1 where kind = 'paid_out'",
            "every credit entry has the balance of all entries up to it",
        ),
        (
            "update subscriptions.invoices set credit_minor = 2, due_minor = total_minor - 2 where credit_minor > 0",
            "credit used is what invoices were paid with",
        ),
        (
            "update subscriptions.credit_entries set minor = 1 where kind = 'granted'",
            "credit granted is what a plan change credited",
        ),
        (
            "update subscriptions.credit_payouts set amount_minor = 1",
            "every credit payout has deducted its amount, unless it failed",
        ),
        (
            "update subscriptions.credit_payouts set state = 'pending', ended_at = null",
            "credit being paid out is that of pending payouts",
        ),
        (
            "update payments.transactions set paid_out_minor = 1 where paid_out_minor > 0",
            "refunds add up to the totals of their transaction",
        ),
    ],
)
async def test_an_invariant_finds_what_breaks_it(stage: OpenStage, damage: str, invariant: str) -> None:
    async with open_house(stage, at=BEGIN) as house:
        await with_credit(house)
        await pay_out(house, "500.00")
        await house.pass_days(30)
        assert await house.broken() == {}
        await house.s.owner.execute(damage)
        assert invariant in await house.broken()


async def test_the_service_cannot_rewrite_entries(stage: OpenStage) -> None:
    async with open_house(stage, at=BEGIN) as house:
        await with_credit(house)
        for statement in (
            "update subscriptions.credit_entries set minor = 1",
            "delete from subscriptions.credit_entries",
        ):
            with pytest.raises(Exception, match="permission denied"):
                async with house.s.begin() as tx:
                    await tx.execute(statement)
