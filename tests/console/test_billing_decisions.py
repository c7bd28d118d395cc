"""Decisions about billing in the console: only what is safe is offered, and done once it is sure, by whom it takes."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import pytest

from payonce.engine.controls import preview, set_threshold
from payonce.engine.messages.transaction import Tx
from payonce.engine.operators import Role
from payonce.kit.outcomes import Invalid
from payonce.services.billing.console import subscription as billing_subscription
from payonce.services.billing.payments import decisions as at_payments
from payonce.services.billing.subscriptions.decisions import subscriptions
from payonce.services.billing.subscriptions.decisions.subscriptions import (
    SubscriptionDecision,
    Verdict,
    subscription_action,
)
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import InvoiceState, State, Subscription
from payonce.testing import OpenStage, Servers
from tests.ablations import Ablations, cases, missed, patched
from tests.console.visitor import Answer, Visitor, console, give_login, notes_of, visiting
from tests.services.billing.billing_stage import BEGIN, DECLINES, SECRET, House, aed, open_house

SOMEBODY: Final = "operator@localhost"
ACTIONS: Final = (subscription_action, at_payments.refund_action)
FIELDS: Final = (*billing_subscription.FIELDS, "sure")


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    return shared_servers


@asynccontextmanager
async def open_console(stage: OpenStage) -> AsyncIterator[tuple[House, Visitor]]:
    async with open_house(stage) as house, console(house.s, also=ACTIONS) as address, visiting(address) as visitor:
        yield house, visitor


async def active(house: House) -> Subscription:
    subscription = await house.subscribe(await house.customer())
    assert subscription.state is State.ACTIVE
    return subscription


async def past_due(house: House, count: int = 1) -> list[Subscription]:
    """Their renewal was declined for want of funds, and that was all."""
    customers = [await house.customer() for _ in range(count)]
    found = [await house.subscribe(customer) for customer in customers]
    for customer in customers:
        house.card_will(customer, "insufficient_funds")
    ends = [each.period_end for each in found if each.period_end is not None]
    await house.go_to(max(ends) + timedelta(hours=1))
    assert {await house.state(each) for each in found} == {State.PAST_DUE}
    return found


def offered(page: Answer) -> set[str]:
    return set(re.findall(r'name="verdict" value="([^"]+)"', page.text))


def path_of(subscription: Subscription) -> str:
    return f"/billing/subscriptions/{subscription.id}"


async def choose(visitor: Visitor, subscription: Subscription, verdict: Verdict, **fields: str) -> Answer:
    """Up to the page that tells what would follow."""
    page = await visitor.get(path_of(subscription))
    form = {"verdict": verdict.value, "seen": page.field("seen"), "why": "they wrote to us", **fields}
    return await visitor.submit(page, f"{path_of(subscription)}/decide", **form)


async def confirm(visitor: Visitor, subscription: Subscription, check: Answer) -> Answer:
    form = {name: check.field(name) for name in FIELDS}
    return await visitor.submit(check, f"{path_of(subscription)}/decide", **form)


async def decide(visitor: Visitor, subscription: Subscription, verdict: Verdict) -> Answer:
    return await confirm(visitor, subscription, await choose(visitor, subscription, verdict))


async def test_a_failed_renewal_is_charged_now_and_paid(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        [subscription] = await past_due(house)
        page = await visitor.get("/billing/dunning")
        assert "insufficient_funds" in page.words
        check = await choose(visitor, subscription, Verdict.RETRY)
        assert "Nothing is changed yet." in check.words
        assert "29.00 AED" in check.words
        assert await house.state(subscription) is State.PAST_DUE
        done = await confirm(visitor, subscription, check)
        assert "The subscription is past due. The amount owed is being charged." in done.words
        again = await visitor.get(path_of(subscription))
        assert "is being charged: other decisions are possible once" in again.words
        assert Verdict.RETRY not in offered(again), "one charge at a time"
        await house.run()
        page = await visitor.get(path_of(subscription))
        for said in ("Basic active", "charge", "attempt 2", "payment event renewal: success", SOMEBODY):
            assert said in page.words, said
        [_, renewal] = await house.invoices(subscription)
        assert (renewal.state, house.captures(renewal)) == (InvoiceState.PAID, 1)
        assert await house.broken() == {}


async def test_pausing_resuming_canceling_and_taking_it_back(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        subscription = await active(house)
        for verdict, state, then in (
            (Verdict.PAUSE, "paused", {"resume", "cancel_now"}),
            (Verdict.RESUME, "active", {"pause", "cancel_at_end", "cancel_now"}),
            (Verdict.CANCEL_AT_END, "active", {"keep", "cancel_now"}),
            (Verdict.KEEP, "active", {"pause", "cancel_at_end", "cancel_now"}),
            (Verdict.CANCEL_NOW, "canceled", set()),
        ):
            done = await decide(visitor, subscription, verdict)
            assert f"The subscription is {state}." in done.words, verdict
            assert offered(done) == then, verdict
        told = [actor for actor, text in await notes_of(house.s, subscription.id) if "they wrote to us" in text]
        assert told == [SOMEBODY] * 5
        assert await house.broken() == {}


async def test_an_invoice_that_is_given_up_is_uncollectible(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        [subscription] = await past_due(house)
        done = await decide(visitor, subscription, Verdict.GIVE_UP)
        assert "The subscription is unpaid." in done.words
        assert (await house.invoices(subscription))[-1].state is InvoiceState.UNCOLLECTIBLE
        assert offered(done) == {"retry", "cancel_now"}, "a new card may still pay it"
        assert await house.broken() == {}


async def test_a_decision_about_what_has_changed_meanwhile_does_nothing(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        subscription = await active(house)
        check = await choose(visitor, subscription, Verdict.CANCEL_NOW)
        await decide(visitor, subscription, Verdict.PAUSE)
        stale = await confirm(visitor, subscription, check)
        assert (stale.status, "has changed since you looked at it" in stale.words) == (409, True)
        assert await house.state(subscription) is State.PAUSED


async def test_what_is_offered_is_what_would_be_carried_out(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        late, given_up, charging = await past_due(house, 3)
        await decide(visitor, given_up, Verdict.GIVE_UP)
        incomplete = await house.subscribe(await house.customer(DECLINES))
        trial = await house.start_trial(await house.customer())
        runs, ends, paused, gone = [await active(house) for _ in range(4)]
        await house.cancel(ends, ChangeTiming.PERIOD_END)
        await house.pause(paused)
        await house.cancel(gone)
        # From here on nothing is worked on, so that two charges stay without an answer.
        await decide(visitor, charging, Verdict.RETRY)
        waits = await house.subscribe(await house.customer(), run=False)
        everything = (late, given_up, charging, incomplete, waits, trial, runs, ends, paused, gone)
        assert {await house.state(each) for each in everything} == set(State) - {State.INCOMPLETE_EXPIRED}
        for each in everything:
            page = await visitor.get(path_of(each))
            assert offered(page) == await _accepted(house, each), await house.state(each)


async def _accepted(house: House, subscription: Subscription) -> set[str]:
    found = set()
    now = await house.subscription(subscription)
    for verdict in Verdict:
        asked = SubscriptionDecision(subscription_id=now.id, seen=now.revision, verdict=verdict, note="x")
        try:
            async with house.s.begin() as tx:
                await preview(tx, subscription_action(house.s.admin), asked, "ann")
        except Invalid:
            continue
        found.add(verdict.value)
    return found


async def test_what_is_typed_wrong_is_told_beside_the_form_and_changes_nothing(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        subscription = await active(house)
        page = await visitor.get(path_of(subscription))
        good = {"verdict": "pause", "seen": page.field("seen"), "why": "x", "sure": "yes"}
        for wrong, said in (
            ({"verdict": "pay"}, "the decision is 'pay'"),
            ({"seen": ""}, "lacks the revision that you saw"),
            ({"why": ""}, "give one of 1 to"),
            ({"verdict": "retry"}, "owes nothing"),
            ({"verdict": "resume"}, "is active; to resume, it must"),
            ({"verdict": "give_up"}, "to give up, it must be past_due"),
        ):
            refused = await visitor.submit(page, f"{path_of(subscription)}/decide", **{**good, **wrong})
            assert (refused.status, "Nothing was changed" in refused.words, said in refused.words) == (400, True, True)
        assert await house.state(subscription) is State.ACTIVE


async def test_a_refund_of_part_of_a_charge_is_given_back_with_a_credit_note(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        subscription = await active(house)
        [invoice] = await house.invoices(subscription)
        path = f"/billing/invoices/{invoice.id}"
        page = await visitor.get(path)
        form = {"charge": page.field("charge"), "left": page.field("left"), "why": "a bad day", "amount": "9.50"}
        for wrong, said in (
            ({"amount": "9.501"}, "more than the 2 decimals"),
            ({"amount": "29.01"}, "cannot be refunded"),
            ({"amount": "much"}, "much"),
            ({"charge": "t-0"}, "has no charge 't-0'"),
            ({"why": ""}, "give one of 1 to"),
            ({"left": "1", "sure": "yes"}, "which is not what you saw"),
        ):
            refused = await visitor.submit(page, f"{path}/refund", **{**form, **wrong})
            assert (refused.status in (400, 409), said in refused.words) == (True, True), (said, refused.words)
        check = await visitor.submit(page, f"{path}/refund", **form)
        assert "9.50 AED is refunded to visa …4242" in check.words
        done = await visitor.submit(check, f"{path}/refund", **form, sure="yes")
        assert "is in progress" in done.words
        twice = await visitor.submit(check, f"{path}/refund", **form, sure="yes")
        assert (twice.status, "which is not what you saw" in twice.words) == (409, True)
        await house.run()
        page = await visitor.get(path)
        for said in ("partially refunded", "9.50 AED", "a bad day", "Refund up to 19.50 AED"):
            assert said in page.words, said
        assert [each.amount for each in house.gateway.books.refunds.values()] == [aed("9.50").minor]
        assert await house.broken() == {}


async def test_what_came_back_as_credit_does_not_go_back_from_the_invoices_page(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        subscription = await active(house)
        await house.go_to(BEGIN + timedelta(days=14))
        await house.change_plan(subscription, "pro")
        [invoice, _] = await house.invoices(subscription)
        path = f"/billing/invoices/{invoice.id}"
        page = await visitor.get(path)
        for said in ("Refund up to 14.50 AED", "Empty: 14.50 AED. 14.50 AED was returned as credit"):
            assert said in page.words, said
        form = {"charge": page.field("charge"), "left": page.field("left"), "why": "a bad day"}
        refused = await visitor.submit(page, f"{path}/refund", **form, amount="29.00")
        assert (refused.status, "was returned as credit" in refused.words) == (400, True)
        check = await visitor.submit(page, f"{path}/refund", **form)
        assert "14.50 AED is refunded to visa …4242" in check.words
        assert "/billing/customers/acc-1/credit" in page.text


async def test_what_went_back_by_bank_is_put_on_record_and_the_gateway_is_not_asked(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        subscription = await active(house)
        [invoice] = await house.invoices(subscription)
        path = f"/billing/invoices/{invoice.id}"
        page = await visitor.get(path)
        form = {"charge": page.field("charge"), "left": page.field("left"), "why": "by bank", "outside": "yes"}
        check = await visitor.submit(page, f"{path}/refund", **form)
        assert "29.00 AED was refunded to acc-1@example.com outside the gateway" in check.words
        assert (check.field("outside"), "Record the refund" in check.words) == ("yes", True)
        done = await visitor.submit(check, f"{path}/refund", **form, sure="yes")
        assert "is recorded" in done.words
        twice = await visitor.submit(check, f"{path}/refund", **form, sure="yes")
        assert (twice.status, "which is not what you saw" in twice.words) == (409, True)
        await house.run()
        assert "outside the gateway" in (await visitor.get(path_of(subscription))).words
        assert not house.gateway.books.refunds
        assert await house.broken() == {}


async def test_an_invoice_is_printed_where_subscriptions_run(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        [invoice] = await house.invoices(await active(house))
        for resources, status, kind in (
            ((SubscriptionConfig((SECRET,)),), 200, "application/pdf"),
            ((), 400, "text/html; charset=utf-8"),
        ):
            async with console(house.s, resources=resources) as address, visiting(address) as visitor:
                link = f"/billing/invoices/{invoice.id}/pdf"
                assert link in (await visitor.get(f"/billing/invoices/{invoice.id}")).text
                async with visitor.http.get(visitor._url(link)) as answer:
                    body = await answer.read()
                assert (answer.status, answer.headers["Content-Type"]) == (status, kind)
                assert body.startswith(b"%PDF" if status == 200 else b"<!doctype")


async def test_a_refund_above_the_threshold_needs_a_second_person(stage: OpenStage) -> None:
    async with open_console(stage) as (house, ann), visiting(ann.address) as bob:
        subscription = await active(house)
        async with house.s.begin() as tx:
            await set_threshold(tx, aed("20"), "root")
        await give_login(house.s, "ann", Role.APPROVER)
        await give_login(house.s, "bob", Role.APPROVER)
        await ann.log_in("ann")
        await bob.log_in("bob")
        [invoice] = await house.invoices(subscription)
        path = f"/billing/invoices/{invoice.id}"
        page = await ann.get(path)
        form = {"charge": page.field("charge"), "left": page.field("left"), "why": "all of it", "amount": ""}
        check = await ann.submit(page, f"{path}/refund", **form)
        assert "29.00 AED is above the threshold" in check.words
        asked = await ann.submit(check, f"{path}/refund", **form, sure="yes")
        approval = asked.url.partition("/console")[2]
        assert (await ann.submit(asked, f"{approval}/grant")).status >= 400
        page = await bob.get(path)
        assert "Waits for a second person" in page.words
        assert f"{path}/refund" not in page.text
        granted = await bob.submit(await bob.get(approval), f"{approval}/grant", why="seen")
        assert "is granted and executed" in granted.words
        await house.run()
        assert "refunded" in (await bob.get(path)).words


async def test_a_notification_is_sent_again_and_taken_once(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        subscription = await active(house)
        event_id = await house.s.owner.fetchval("select event_id from payments.notifications where action = 'initial'")
        path = f"/billing/deliveries/{event_id}"
        page = await visitor.get(path)
        assert (await visitor.submit(page, f"{path}/resend", why="")).status == 400
        given = len(house.door.given)
        for _ in range(2):
            done = await visitor.submit(page, f"{path}/resend", why="their database was restored")
            assert "It is being sent again." in done.words
        await house.run()
        assert len(house.door.given) == given + 1, "asked for twice before it was tried, it is one message"
        page = await visitor.get(path)
        assert "their database was restored" in page.words
        assert "queued" in page.words
        assert len(await house.invoices(subscription)) == 1
        assert await house.broken() == {}
        missing = await visitor.submit(page, "/billing/deliveries/evt-none/resend", why="x")
        assert missing.status == 404


async def test_a_viewer_sees_no_form_and_is_refused(stage: OpenStage) -> None:
    async with open_console(stage) as (house, visitor):
        subscription = await active(house)
        [invoice] = await house.invoices(subscription)
        event_id = await house.s.owner.fetchval("select min(event_id) from payments.notifications")
        await give_login(house.s, "vic", Role.VIEWER)
        await visitor.log_in("vic")
        for path, way in (
            (path_of(subscription), "decide"),
            (f"/billing/invoices/{invoice.id}", "refund"),
            (f"/billing/deliveries/{event_id}", "resend"),
        ):
            page = await visitor.get(path)
            assert page.status == 200
            assert f"{path}/{way}" not in page.text
            assert (
                await visitor.submit(page, f"{path}/{way}", verdict="cancel_now", why="x", sure="yes")
            ).status == 403
        assert await house.state(subscription) is State.ACTIVE


def everything(*_: Any) -> list[Verdict]:
    return list(Verdict)


async def no_audit(*_: Any, **__: Any) -> None:
    return None


ABLATIONS: Ablations = {
    "only safe decisions": (
        patched(billing_subscription, "open_verdicts", everything),
        [test_what_is_offered_is_what_would_be_carried_out],
    ),
    "a resend is on record": (
        patched(Tx, "audit", no_audit),
        [test_a_notification_is_sent_again_and_taken_once],
    ),
    "not while a charge is under way": (
        patched(subscriptions, "_can_be_charged", lambda owed: owed is not None),
        [test_a_failed_renewal_is_charged_now_and_paid],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_the_safeguard_a_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage)
