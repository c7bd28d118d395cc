"""Changes of plan: what they cost, to the second and at the price that was paid, and when they take effect."""

import json
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from payonce.kit.money import Amount
from payonce.services.billing.policies import PLAN_CHANGE
from payonce.services.billing.subscriptions.domain.calendar import Interval, Unit
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import InvoiceState, LineKind, State
from payonce.services.billing.subscriptions.store import plans
from payonce.services.billing.subscriptions.store.plans import Offer
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import AED, House, aed, open_house

FIRST_OF_FEBRUARY: Final = datetime(2026, 2, 1, 9, tzinfo=UTC)
IN_21_OF_56: Final = timedelta(days=10, hours=12)
"""Of the 28 days of February, 35/56 are left then."""


async def offer(house: House, code: str, minor: int, interval: Interval | None = None) -> None:
    async with house.s.begin() as tx:
        await plans.add_version(tx, Offer(code, code.title(), Amount(minor, AED), interval or Interval(Unit.MONTH)))


async def test_an_upgrade_costs_the_difference_to_the_second(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription = await house.subscribe(await house.customer())
        await house.go_to(FIRST_OF_FEBRUARY + IN_21_OF_56)
        changed = await house.change_plan(subscription, "pro")
        assert (changed.plan_id, changed.state) == ("pro-v1", State.ACTIVE)
        assert (changed.period, changed.period_end) == (0, subscription.period_end)
        [_, invoice] = await house.invoices(subscription)
        assert [(line.kind, line.amount) for line in invoice.lines] == [
            (LineKind.UNUSED, aed("-18.12")),
            (LineKind.REMAINING, aed("61.88")),
        ]
        assert (invoice.due, invoice.period, house.captures(invoice)) == (aed("43.76"), None, 1)
        await house.pass_days(20)
        assert (await house.invoices(subscription))[2].due == aed("99.00")
        assert await house.balance("revenue") == -(2_900 + 4_376)
        assert await house.broken() == {}


async def test_the_price_on_the_old_invoice_counts_and_not_todays(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription = await house.subscribe(await house.customer())
        await offer(house, "basic", 100_000)
        await house.go_to(FIRST_OF_FEBRUARY + IN_21_OF_56)
        await house.change_plan(subscription, "pro")
        [_, invoice] = await house.invoices(subscription)
        assert invoice.lines[0].amount == aed("-18.12")


async def test_a_second_change_gives_back_what_the_first_one_charged(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription = await house.subscribe(await house.customer())
        await house.go_to(FIRST_OF_FEBRUARY + timedelta(days=14))
        await house.change_plan(subscription, "pro")
        await house.go_to(FIRST_OF_FEBRUARY + timedelta(days=21))
        await house.change_plan(subscription, "enterprise")
        [_, second, third] = await house.invoices(subscription)
        assert [line.amount for line in second.lines] == [aed("-14.50"), aed("49.50")]
        assert [line.amount for line in third.lines] == [aed("-24.75"), aed("74.75")]
        await house.pass_days(7)
        assert await house.balance("revenue") == -(2_900 + 3_500 + 5_000)
        assert await house.broken() == {}


async def test_a_change_that_is_not_paid_leaves_the_plan_as_it_was(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        customer = await house.customer()
        subscription = await house.subscribe(customer)
        house.card_will(customer, "card_declined")
        same = await house.change_plan(subscription, "pro")
        assert (same.plan_id, same.state, same.due_at) == ("basic-v1", State.ACTIVE, subscription.period_end)
        [_, invoice] = await house.invoices(subscription)
        assert (invoice.state, house.captures(invoice)) == (InvoiceState.VOID, 0)
        assert await house.balance("receivable") == 0
        again = await house.change_plan(subscription, "pro")
        assert again.plan_id == "pro-v1"
        assert await house.broken() == {}


async def test_a_cheaper_plan_begins_with_the_next_period(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), "pro")
        asked = await house.change_plan(subscription, "basic")
        assert (asked.plan_id, asked.next_plan_id) == ("pro-v1", "basic-v1")
        await house.pass_days(29)
        changed = await house.subscription(subscription)
        assert (changed.plan_id, changed.next_plan_id) == ("basic-v1", None)
        assert changed.period_end == datetime(2026, 3, 31, 9, tzinfo=UTC), "the anchor stays"
        assert [each.due for each in await house.invoices(subscription)] == [aed("99.00"), aed("29.00")]
        assert await house.broken() == {}


async def test_a_change_that_waits_can_be_taken_back(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), "pro")
        await house.change_plan(subscription, "basic")
        back = await house.change_plan(subscription, "pro", ChangeTiming.PERIOD_END)
        assert back.next_plan_id is None


async def test_a_cheaper_plan_now_leaves_credit_for_the_next_invoices(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        customer = await house.customer()
        subscription = await house.subscribe(customer, "pro")
        await house.go_to(FIRST_OF_FEBRUARY + timedelta(days=14))
        changed = await house.change_plan(subscription, "basic", ChangeTiming.NOW)
        assert changed.plan_id == "basic-v1"
        [_, invoice] = await house.invoices(subscription)
        assert (invoice.total, invoice.due, invoice.state) == (aed("-35.00"), aed("0.00"), InvoiceState.PAID)
        assert await house.credit(customer) == aed("35.00")
        await house.pass_days(14)
        [_, _, next_one] = await house.invoices(subscription)
        assert (next_one.credit, next_one.due) == (aed("29.00"), aed("0.00"))
        assert await house.credit(customer) == aed("6.00")
        assert await house.broken() == {}


async def test_from_months_to_years_a_new_period_begins_at_once(stage: OpenStage) -> None:
    async with open_house(stage, at=FIRST_OF_FEBRUARY) as house:
        subscription = await house.subscribe(await house.customer(), "pro")
        await house.go_to(FIRST_OF_FEBRUARY + timedelta(days=14))
        changed = await house.change_plan(subscription, "annual-pro", ChangeTiming.NOW)
        assert (changed.period_start, changed.period) == (FIRST_OF_FEBRUARY + timedelta(days=14), 0)
        assert changed.period_end == datetime(2027, 2, 15, 9, tzinfo=UTC)
        [_, invoice] = await house.invoices(subscription)
        assert invoice.due == aed("949.50")
        await house.go_to(datetime(2027, 2, 16, 9, tzinfo=UTC))
        assert [each.period for each in await house.invoices(subscription)] == [0, None, 1]
        assert await house.broken() == {}


async def test_from_months_to_years_at_the_end_of_the_period(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), "pro")
        await house.change_plan(subscription, "annual-pro", ChangeTiming.PERIOD_END)
        await house.pass_days(30)
        changed = await house.subscription(subscription)
        assert (changed.period_start, changed.period_end) == (
            datetime(2026, 2, 28, 9, tzinfo=UTC),
            datetime(2027, 2, 28, 9, tzinfo=UTC),
        )
        assert await house.broken() == {}


@pytest.mark.parametrize(
    ("plan", "due", "ends"),
    [
        ("basic", "29.00", datetime(2026, 6, 12, 9, tzinfo=UTC)),
        ("annual-pro", "999.00", datetime(2027, 5, 12, 9, tzinfo=UTC)),
    ],
)
async def test_a_plan_asked_for_before_a_pause_begins_with_the_period_after_it(
    stage: OpenStage, plan: str, due: str, ends: datetime
) -> None:
    """The pause was longer than the period at whose end the plan was to change; the version asked for is meanwhile no
    longer for sale."""
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), "pro")
        await house.change_plan(subscription, plan, ChangeTiming.PERIOD_END)
        await house.pause(subscription)
        await offer(house, plan, 7_700)
        await house.go_to(datetime(2026, 5, 12, 9, tzinfo=UTC))
        paused = await house.subscription(subscription)
        assert (paused.plan_id, paused.next_plan_id) == ("pro-v1", f"{plan}-v1"), "nothing changes in a pause"
        resumed = await house.resume(subscription)
        assert (resumed.plan_id, resumed.next_plan_id) == (f"{plan}-v1", None)
        assert (resumed.period, resumed.period_end) == (1, ends)
        assert [each.due for each in await house.invoices(subscription)] == [aed("99.00"), aed(due)]
        assert await house.broken() == {}


async def test_a_plan_asked_for_before_a_pause_within_the_period_begins_at_its_end(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), "pro")
        await house.change_plan(subscription, "basic")
        await house.pause(subscription)
        await house.pass_days(5)
        resumed = await house.resume(subscription)
        assert (resumed.plan_id, resumed.next_plan_id, resumed.period) == ("pro-v1", "basic-v1", 0)
        await house.pass_days(24)
        assert (await house.subscription(subscription)).plan_id == "basic-v1"
        assert [each.due for each in await house.invoices(subscription)] == [aed("99.00"), aed("29.00")]
        assert await house.broken() == {}


async def test_a_trial_can_become_a_plan_before_it_ends(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.start_trial(await house.customer())
        await house.pass_days(3)
        changed = await house.change_plan(subscription, "pro")
        assert (changed.state, changed.plan_id) == (State.ACTIVE, "pro-v1")
        [_, invoice] = await house.invoices(subscription)
        assert invoice.due == aed("99.00"), "the trial was given back in money, so nothing of it is left"
        await house.pass_days(40)
        assert [each.period for each in await house.invoices(subscription)] == [0, None, 1]
        assert await house.broken() == {}


@pytest.mark.parametrize(
    ("plan", "when", "says"),
    [("pro", ChangeTiming.NOW, "already"), ("trial", None, "is a trial"), ("euro", None, "is priced in EUR")],
)
async def test_a_change_that_cannot_be_is_refused(
    stage: OpenStage, plan: str, when: ChangeTiming | None, says: str
) -> None:
    async with open_house(stage) as house:
        await house.s.owner.execute(
            """
            insert into subscriptions.plans (id, code, version, name, price_minor, currency, exponent, interval_unit,
                interval_count) values ('euro-v1', 'euro', 1, 'Euro', 100, 'EUR', 2, 'month', 1)
            """
        )
        subscription = await house.subscribe(await house.customer(), "pro")
        with pytest.raises(Conflict, match=says):
            await house.change_plan(subscription, plan, when)


async def test_while_an_upgrade_is_charged_nothing_else_is(stage: OpenStage) -> None:
    """A renewal that falls due meanwhile waits for the answer, and is of the new plan."""
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        assert subscription.period_end is not None
        await house.go_to(subscription.period_end - timedelta(hours=1))
        await house.s.admin.pause("q:pay:charge_initiation", "to be late")
        await house.change_plan(subscription, "pro")
        for wish in (house.pause, lambda each: house.change_plan(each, "enterprise")):
            with pytest.raises(Conflict, match="is being charged"):
                await wish(subscription)
        await house.go_to(subscription.period_end + timedelta(hours=1))
        assert len(await house.invoices(subscription)) == 2
        await house.s.admin.resume("q:pay:charge_initiation")
        await house.pass_days(1)
        assert [each.due for each in await house.invoices(subscription)][2] == aed("99.00")
        assert await house.broken() == {}


async def test_a_new_version_is_for_sale_and_those_who_have_the_old_one_keep_it(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await offer(house, "basic", 3_500)
        await house.pass_days(30)
        assert (await house.invoices(subscription))[1].due == aed("29.00")
        newer = await house.subscribe(await house.customer())
        assert newer.plan_id == "basic-v2"
        with pytest.raises(Conflict, match="no longer for sale"):
            await house.subscribe(await house.customer(), "basic-v1")
        async with house.s.begin() as tx:
            with pytest.raises(Conflict, match="trial trial converts to basic"):
                await plans.retire(tx, "basic")
            await plans.retire(tx, "trial")
            await plans.retire(tx, "basic")
        assert await house.broken() == {}


async def test_a_change_that_became_impossible_fails_and_is_told_once(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await house.s.admin.pause("q:sub:plan_change", "to be late")
        await house.change_plan(subscription, "pro")
        await house.cancel(subscription)
        [payload] = await house.s.owner.fetch("select payload from payonce.messages where queue = 'q:sub:plan_change'")
        async with house.s.begin() as tx:
            await tx.send(PLAN_CHANGE, json.loads(payload["payload"]), action="upgrade")
        await house.s.admin.resume("q:sub:plan_change")
        await house.run()
        timeline = await house.timeline(subscription)
        assert timeline == ["created", "activated", "plan_change_requested", "canceled", "plan_change_failed"]
        assert len(await house.invoices(subscription)) == 1
        assert await house.broken() == {}
