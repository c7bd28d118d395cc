"""What gauges and counters say of billing: what runs, what is late, what was not told, and how charges ended."""

from datetime import timedelta

from payonce.engine.database.connections import Database
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.services.billing.payments.metrics import OTHER, count_charge, observe_payments
from payonce.services.billing.payments.model import State
from payonce.services.billing.subscriptions.metrics import observe_subscriptions
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import PAYS, open_house


async def observe_billing(database: Database) -> None:
    await observe_subscriptions(database)
    await observe_payments(database)


def shown(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"payonce_billing_{name}", labels)


async def test_what_runs_is_counted_with_what_a_month_of_it_brings(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        for plan in ("basic", "pro", "annual-pro"):
            await house.subscribe(await house.customer(), plan)
        await house.start_trial(await house.customer())
        clock = await house.test_clock()
        await house.subscribe(await house.customer(PAYS, test_clock=clock))
        await observe_billing(house.s.database)
        assert (shown("subscriptions", state="active"), shown("subscriptions", state="trialing")) == (3, 1)
        assert shown("subscriptions", state="canceled") is None, "what has ended is not counted every few seconds"
        # 29 and 99 a month and 999 a year; neither the trial nor whoever is on a test clock.
        assert shown("recurring_amount", currency="AED") == 29 + 99 + 83.25
        assert shown("late_seconds", due="renew") == 0
        assert (shown("open_invoices"), shown("undelivered_notifications")) == (0, 0)


async def test_what_nobody_does_grows_late_and_is_over_when_somebody_did(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        assert subscription.period_end is not None
        await house.s.clock.freeze(subscription.period_end + timedelta(hours=2))
        await observe_billing(house.s.database)
        assert shown("late_seconds", due="renew") == 7_200
        house.door.answers = [503] * 2
        await house.look()
        await house.s.clock.advance(1_800)
        await observe_billing(house.s.database)
        assert shown("late_seconds", due="renew") == 0
        assert (shown("open_invoices"), shown("oldest_open_invoice_seconds")) == (1, 1_800)
        assert (shown("unanswered_seconds"), shown("undelivered_notifications")) == (1_800, 1)
        assert shown("oldest_undelivered_seconds") == 1_800
        told = shown("notification_seconds_count") or 0
        await house.run()
        await observe_billing(house.s.database)
        assert (shown("open_invoices"), shown("unanswered_seconds"), shown("undelivered_notifications")) == (0, 0, 0)
        assert shown("notification_seconds_count") == told + 1


async def test_charges_are_counted_once_by_how_they_ended(stage: OpenStage) -> None:
    def counted() -> list[float]:
        return [
            shown("charges_total", outcome=outcome, code=code) or 0
            for outcome, code in (("succeeded", ""), ("failed", "insufficient_funds"), ("failed", OTHER))
        ]

    async with open_house(stage) as house:
        before = counted()
        customer = await house.customer()
        house.card_will(customer, "insufficient_funds")
        await house.subscribe(customer)
        await house.subscribe(await house.customer())
        assert [after - was for after, was in zip(counted(), before, strict=True)] == [1, 1, 0]
        count_charge(State.FAILED, "a word of the vendor's that nobody knew")
        assert [after - was for after, was in zip(counted(), before, strict=True)] == [1, 1, 1]


async def test_money_that_fits_no_invoice_and_clocks_on_their_way_are_shown(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock()
        await house.subscribe(await house.customer(PAYS, test_clock=clock))
        await house.s.owner.execute("update subscriptions.test_clocks set target_at = now_at + interval '1 day'")
        odd = await house.subscribe(await house.customer(), run=False)
        house.door.answers = [503]
        await house.drain()
        statement = "update subscriptions.invoices set due_minor = 1, total_minor = 1 where account_id = $1"
        await house.s.owner.execute(statement, odd.account_id)
        await house.s.admin.pause("q:pay:refund_initiation", "to see it before it is back")
        await house.run()
        await observe_billing(house.s.database)
        assert shown("unapplied_amount", currency="AED") == 29
        assert shown("test_clocks_moving") == 1
