"""What came back as credit when a plan changed is not given back in money as well."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from payonce.engine.controls import Executed, submit
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid
from payonce.services.billing.payments import decisions
from payonce.services.billing.payments.decisions import RefundDecision
from payonce.services.billing.payments.handlers import credit_holds, refunds
from payonce.services.billing.payments.model import Transaction
from payonce.services.billing.payments.store import transactions
from payonce.services.billing.policies import BILLING_CLOCK, CHARGE_INITIATION, CREDIT_HOLD, REFUND_INITIATION
from payonce.services.billing.subscriptions.handlers import payment_events, plan_changes
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import Invoice, LineKind, Subscription
from payonce.services.billing.wire import CREDITED, CreditHold, HeldCredit
from payonce.testing import OpenStage
from payonce.vendors.gateway.port import RefundOrder
from tests.locks import waits_or_ended
from tests.services.billing.billing_stage import House, aed, open_house

FIRST_OF_FEBRUARY = datetime(2026, 2, 1, 9, tzinfo=UTC)
HALFWAY = FIRST_OF_FEBRUARY + timedelta(days=14)


async def charge_of(house: House, invoice: Invoice) -> Transaction:
    assert invoice.transaction_id is not None
    found = await transactions.find(house.s.read, invoice.transaction_id)
    assert found is not None
    return found


async def give_back(house: House, invoice: Invoice, amount: Amount | None = None, **how: Any) -> Amount:
    charge = await charge_of(house, invoice)
    minor = None if amount is None else amount.minor
    asked = RefundDecision(
        transaction_id=charge.id, left_minor=charge.left.minor, amount_minor=minor, note="they left us", **how
    )
    async with house.s.begin() as tx:
        done = await submit(tx, decisions.refund_action(house.s.admin), asked, "ann", asked.note)
    assert isinstance(done, Executed)
    await house.run()
    return aed(done.result["amount"])


async def with_changes(house: House, *plans: tuple[int, str], first: str = "basic") -> Subscription:
    """On these days after the first of February, when each change takes effect at once."""
    subscription = await house.subscribe(await house.customer(), first)
    for day, plan in plans:
        await house.go_to(FIRST_OF_FEBRUARY + timedelta(days=day))
        await house.change_plan(subscription, plan, ChangeTiming.NOW)
    return subscription


async def test_a_refund_without_an_amount_leaves_out_what_came_back_as_credit(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription = await with_changes(house, (14, "pro"))
        first, change = await house.invoices(subscription)
        assert (await charge_of(house, first)).credited == aed("14.50")
        assert await give_back(house, first) == aed("14.50")
        assert await give_back(house, change) == aed("35.00"), "nothing of the change came back"
        with pytest.raises(Invalid, match=r"14.50 AED of charge .* was returned as credit .* 0.00 AED is refundable"):
            await give_back(house, first)
        assert await house.broken() == {}


async def test_more_than_that_is_refused_and_the_way_to_it_named(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription = await with_changes(house, (14, "basic"), first="pro")
        [first, _] = await house.invoices(subscription)
        for amount in (aed("49.51"), aed("99.00")):
            with pytest.raises(Invalid, match=r"49\.50 AED is refundable"):
                await give_back(house, first, amount)
        with pytest.raises(
            Invalid, match=r"99.01 AED of transaction .* cannot be refunded: 99.00 AED of 99.00 AED is left"
        ):
            await give_back(house, first, aed("99.01"))
        for meant in (None, aed("99.00")):
            with pytest.raises(Invalid, match=r"for more, pay out the credit of account acc-1"):
                await give_back(house, first, meant, beyond_credit=True)
        assert not house.gateway.books.refunds
        assert await house.broken() == {}


async def test_what_was_given_back_before_the_change_is_counted_once(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription = await house.subscribe(await house.customer())
        [first] = await house.invoices(subscription)
        await give_back(house, first, aed("10.00"))
        await house.go_to(FIRST_OF_FEBRUARY + timedelta(days=14))
        await house.change_plan(subscription, "pro")
        assert await give_back(house, first) == aed("4.50"), "29.00 less 10.00 in money less 14.50 in credit"


async def test_two_changes_and_credit_that_paid_leave_what_was_served(stage: OpenStage) -> None:
    """Basic for 14 days is 14.50, Pro for a week 24.75: so much of what was paid never came back."""
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription = await with_changes(house, (14, "pro"), (21, "enterprise"))
        first, second, third = [await charge_of(house, each) for each in await house.invoices(subscription)]
        assert (first.free, second.free) == (aed("14.50"), aed("24.75"))
        assert third.free == third.amount


async def halfway(house: House, plan: str = "basic") -> tuple[Subscription, Invoice]:
    """Paid for February, of which half is left."""
    subscription = await house.subscribe(await house.customer(), plan)
    [first] = await house.invoices(subscription)
    await house.go_to(HALFWAY)
    return subscription, first


def a_hold(invoice: Invoice, minor: int, asked_at: datetime) -> CreditHold:
    """Of a change to its subscription, as subscriptions ask for it."""
    assert invoice.transaction_id is not None
    share = HeldCredit(transaction_id=invoice.transaction_id, minor=minor, refunded_minor=0)
    return CreditHold(
        change_id="change-1",
        subscription_id=invoice.subscription_id,
        account_id=invoice.account_id,
        changed_at=HALFWAY,
        round=1,
        asked_at=asked_at,
        credits=(share,),
    )


@asynccontextmanager
async def refunds_are_late(house: House) -> AsyncIterator[None]:
    """Asked for, and not at the gateway yet."""
    await house.s.admin.pause(REFUND_INITIATION.queue, "to be late")
    yield
    await house.s.admin.resume(REFUND_INITIATION.queue)
    await house.run()


@pytest.mark.parametrize(
    ("before", "after", "refund", "unused"),
    [("basic", "pro", "29.00", None), ("pro", "basic", "60.00", "-39.00")],
)
async def test_a_refund_that_is_under_way_as_the_plan_changes_is_left_out_of_the_credit(
    stage: OpenStage, before: str, after: str, refund: str, unused: str | None
) -> None:
    """Half of the period is unused, 14.50 or 49.50: of what was paid, that and the refund would be too much."""
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription, first = await halfway(house, before)
        async with refunds_are_late(house):
            await give_back(house, first, aed(refund))
            changed = await house.change_plan(subscription, after, ChangeTiming.NOW)
            assert changed.plan_id.startswith(after), "it does not wait for the refund"
        change = (await house.invoices(subscription))[1]
        credit = [line.amount for line in change.lines if line.kind is LineKind.UNUSED]
        assert credit == ([] if unused is None else [aed(unused)])
        assert (await charge_of(house, first)).free == aed("0.00")
        assert house.gateway.books.refunded_total("AED") == aed(refund)
        assert await house.loud() == []
        assert await house.broken() == {}


@pytest.mark.parametrize(
    "wanted", [{}, {"key": "credit:k"}, {"from_credit": True, "account_id": "acc-1", "currency": "AED"}]
)
async def test_a_refund_that_is_asked_for_by_its_queue_leaves_out_what_came_back_as_credit(
    stage: OpenStage, wanted: dict[str, Any]
) -> None:
    """Nor is it one when it calls itself a payout of credit: nobody took any from the customer."""
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription = await with_changes(house, (14, "pro"))
        first, _ = await house.invoices(subscription)
        asked = {"transaction_id": first.transaction_id, "reason": "they left us"}
        for payload in ({"key": "1", "amount_minor": 1_451, **wanted}, {"key": "2"}, {"key": "3"}):
            async with house.s.begin() as tx:
                await tx.send(REFUND_INITIATION, asked | payload, action="refund")
            await house.run()
        assert house.gateway.books.refunded_total("AED") == aed("14.50")
        reasons = sorted(await house.parked())
        assert len(reasons) == 2
        assert "0.00 AED is refundable" in reasons[0]
        said = "keys of credit payouts begin with 'credit:'" if wanted else "14.50 AED is refundable"
        assert said in reasons[1]
        assert await house.loud() == []
        assert await house.broken() == {}


async def test_a_refund_that_fails_after_the_change_may_be_given_back_again_and_no_more(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription, first = await halfway(house)
        async with refunds_are_late(house):
            await give_back(house, first, aed("20.00"))
            await house.change_plan(subscription, "pro")
            # Somebody gave back half of it at the gateway's own context.
            charge = await charge_of(house, first)
            assert charge.gateway_id is not None
            await house.client.refund(RefundOrder("by-hand", charge.gateway_id, 1_450, "AED", "by-hand"))
        assert (await charge_of(house, first)).free == aed("20.00"), "29.00 less 9.00 in credit"


async def test_while_a_change_is_being_charged_its_credit_is_not_given_back_in_money(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription, first = await halfway(house)
        await house.s.admin.pause(CHARGE_INITIATION.queue, "to be late")
        await house.change_plan(subscription, "pro")
        assert (await house.invoices(subscription))[1].charging
        with pytest.raises(Invalid, match=r"14\.50 AED is refundable"):
            await give_back(house, first, aed("14.51"))
        assert await give_back(house, first) == aed("14.50")
        await house.s.admin.resume(CHARGE_INITIATION.queue)
        await house.run()
        assert (await house.subscription(subscription)).plan_id == "pro-v1"
        assert (await charge_of(house, first)).free == aed("0.00")
        assert await house.loud() == []
        assert await house.broken() == {}


@pytest.mark.parametrize("ends", ["declines", "is canceled"])
async def test_the_credit_of_a_change_that_is_not_paid_goes_back_in_money(stage: OpenStage, ends: str) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription, first = await halfway(house)
        await house.s.admin.pause(CHARGE_INITIATION.queue, "to be late")
        await house.change_plan(subscription, "pro")
        assert (await charge_of(house, first)).credited == aed("14.50")
        if ends == "declines":
            house.card_will(house.customers[0], "card_declined")
        else:
            await house.cancel(subscription)
        await house.s.admin.resume(CHARGE_INITIATION.queue)
        await house.run()
        assert (await charge_of(house, first)).credited == aed("0.00")
        assert await give_back(house, first) == aed("29.00")
        assert await house.broken() == {}


async def test_a_change_at_the_end_of_the_period_credits_nothing_and_hinders_no_refund(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription, first = await halfway(house, "pro")
        async with refunds_are_late(house):
            await give_back(house, first, aed("60.00"))
            await house.change_plan(subscription, "basic", ChangeTiming.PERIOD_END)
            assert (await charge_of(house, first)).free == aed("39.00")
        await house.pass_days(20)
        assert [each.total for each in await house.invoices(subscription)] == [aed("99.00"), aed("29.00")]
        assert (await charge_of(house, first)).credited == aed("0.00")
        assert await house.broken() == {}


async def test_a_change_that_meets_a_refund_waits_for_it_and_leaves_it_out(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription, first = await halfway(house)
        assert first.transaction_id is not None
        async with house.s.begin() as tx:
            await plan_changes.request_plan(tx, subscription.account_id, subscription.id, "pro")
        async with house.s.begin() as tx:
            await refunds.request(tx, first.transaction_id, aed("20.00"), "they left us", "k")
            change = asyncio.create_task(house.drain())
            assert await waits_or_ended(house.s, change)
        await change
        await house.run()
        credit = (await house.invoices(subscription))[1].lines[0]
        assert (credit.kind, credit.amount) == (LineKind.UNUSED, aed("-9.00"))
        assert await house.broken() == {}


async def test_a_refund_that_meets_a_change_waits_for_it_and_is_refused(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        _, first = await halfway(house)
        async with house.s.begin() as tx:
            assert (await credit_holds.hold(tx, a_hold(first, 1_450, HALFWAY)))[0]
            refund = asyncio.create_task(give_back(house, first, aed("20.00")))
            assert await waits_or_ended(house.s, refund)
        with pytest.raises(Invalid, match=r"14\.50 AED is refundable"):
            await refund
        await house.run()
        assert not house.gateway.books.refunds
        assert await house.broken() == {}


@pytest.mark.parametrize("when", [ChangeTiming.NOW, ChangeTiming.PERIOD_END])
async def test_a_cancellation_before_the_credit_is_held_leaves_all_to_refunds(
    stage: OpenStage, when: ChangeTiming
) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription, first = await halfway(house)
        await house.s.admin.pause(CREDIT_HOLD.queue, "to be late")
        await house.change_plan(subscription, "pro")
        assert len(await house.invoices(subscription)) == 1, "nothing is invoiced before the credit is held"
        await house.cancel(subscription, when)
        await house.s.admin.resume(CREDIT_HOLD.queue)
        await house.run()
        assert (await charge_of(house, first)).credited == aed("0.00")
        assert len(await house.invoices(subscription)) == 1
        assert await house.loud() == []
        assert await house.broken() == {}


async def test_a_hold_that_comes_late_replaces_none_that_was_asked_for_after_it(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        _, first = await halfway(house)
        for minor, asked_at in ((1_450, HALFWAY), (29, HALFWAY - timedelta(seconds=1)), (900, HALFWAY)):
            async with house.s.begin() as tx:
                await credit_holds.hold(tx, a_hold(first, minor, asked_at))
            held = (await charge_of(house, first)).credited_minor
            assert held == (1_450 if minor == 29 else minor)


async def test_an_answer_that_comes_twice_and_late_invoices_once(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription, first = await halfway(house)
        await house.change_plan(subscription, "pro")
        answer = await house.told("credit_hold")
        async with house.s.begin() as tx:
            await payment_events.apply(tx, msgspec.structs.replace(answer, event_id="again"))
        await house.run()
        assert len(await house.invoices(subscription)) == 2
        assert (await charge_of(house, first)).credited == aed("14.50")
        assert await house.broken() == {}


async def test_a_hold_that_was_lost_is_asked_for_again(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription, _ = await halfway(house)
        await house.s.admin.pause(CREDIT_HOLD.queue, "to lose it")
        await house.change_plan(subscription, "pro")
        await house.s.owner.execute("delete from payonce.messages where queue = $1", CREDIT_HOLD.queue)
        await house.s.admin.resume(CREDIT_HOLD.queue)
        await house.s.clock.freeze(await house.s.clock.now() + timedelta(minutes=16))
        async with house.s.begin() as tx:
            await tx.send(BILLING_CLOCK, {}, action="put_back_billing")
        await house.run()
        assert (await house.subscription(subscription)).plan_id == "pro-v1"
        assert await house.broken() == {}


async def test_a_change_of_a_version_that_held_nothing_is_told_to_a_person(stage: OpenStage) -> None:
    """It was being charged as the new version came, and so was not known to the refund."""
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription, first = await halfway(house)
        await house.s.admin.pause(CHARGE_INITIATION.queue, "to be late")
        await house.change_plan(subscription, "pro")
        await house.s.owner.execute("delete from payments.credits_held")
        await house.s.owner.execute("update payments.transactions set credited_minor = 0")
        await give_back(house, first, aed("20.00"))
        await house.s.admin.resume(CHARGE_INITIATION.queue)
        await house.run()
        assert await house.loud() == ["5.50 AED was returned both as money and as credit; an operator may reclaim it"]
        assert await house.broken() == {}


async def test_an_earlier_version_may_tell_of_credit_twice_and_late_and_changes_nothing(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription = await with_changes(house, (14, "pro"))
        [first, _] = await house.invoices(subscription)
        for minor, transaction_id in ((1_450, first.transaction_id), (3, first.transaction_id), (3, "nobody")):
            async with house.s.begin() as tx:
                told = {"transaction_id": transaction_id, "credited_minor": minor}
                await tx.send(REFUND_INITIATION, told, action=CREDITED)
        await house.run()
        assert (await charge_of(house, first)).credited == aed("14.50")
        assert await house.loud() == []
        [parked] = await house.parked()
        assert "there is no transaction 'nobody'" in parked


async def test_a_change_that_waited_beyond_the_period_tells_of_its_credit_too(stage: OpenStage) -> None:
    """Asked for in the middle of the period and carried out after its end, before the renewal."""
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription = await house.subscribe(await house.customer())
        await house.go_to(FIRST_OF_FEBRUARY + timedelta(days=14))
        for queue in ("q:sub:plan_change", "q:sub:payment_initiation"):
            await house.s.admin.pause(queue, "to be late")
        await house.change_plan(subscription, "pro", ChangeTiming.NOW)
        await house.pass_days(20)
        await house.s.admin.resume("q:sub:plan_change")
        await house.run()
        first, change = await house.invoices(subscription)
        assert change.total == aed("35.00")
        assert (await charge_of(house, first)).credited == aed("14.50")
        await house.s.admin.resume("q:sub:payment_initiation")
        await house.run()
        assert [each.due for each in await house.invoices(subscription)][2:] == [aed("99.00")]
        assert await house.broken() == {}
