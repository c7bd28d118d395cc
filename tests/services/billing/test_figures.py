"""Months that are over are kept and not counted again; the running one is counted from what runs."""

from datetime import timedelta

from payonce.engine.messages.model import Message
from payonce.services.billing.policies import BILLING_CLOCK
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.store import figures, monthly_figures
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import AED, BEGIN, DECLINES, House, open_house


async def test_kept_months_and_the_running_one_are_what_the_invoices_say(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await a_quarter_of_many(house)
        read = house.s.read
        from_invoices = await figures.count_months(read, 12, AED)
        assert from_invoices[-1].running == 4
        assert [(month.won, month.lost) for month in from_invoices[-3:]] == [(0, 0), (1, 1), (1, 1)]
        assert await monthly_figures.months(read, 12, AED) == from_invoices, "nothing is kept yet"
        assert await figures.running_month(read, AED) == from_invoices[-1]
        await keep(house)
        assert await monthly_figures.kept(read, 11, AED) == from_invoices[:-1]
        assert await monthly_figures.months(read, 12, AED) == from_invoices
        assert await monthly_figures.months(read, 36, AED) == await figures.count_months(read, 36, AED)
        assert len(await monthly_figures.months(read, 1, AED)) == 1


async def test_a_month_is_counted_anew_while_its_invoices_may_change_and_then_no_more(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await house.subscribe(await house.customer())
        await house.go_to(BEGIN + timedelta(days=125))
        await keep(house)
        right = await monthly_figures.kept(house.s.read, 12, AED)
        await house.s.owner.execute("update subscriptions.kept_months set won = 77")
        await keep(house)
        assert [each.won for each in await monthly_figures.kept(house.s.read, 3, AED)] == [77, 77, 77], "within a day"
        await house.s.clock.advance(86_401)
        await keep(house)
        assert [each.won for each in await monthly_figures.kept(house.s.read, 3, AED)] == [77, 0, 0]
        await house.s.owner.execute("delete from subscriptions.kept_months where begin_at < $1", BEGIN)
        await keep(house)
        assert await monthly_figures.kept(house.s.read, 12, AED) == right, "all of them, where one is missing"


async def keep(house: House) -> None:
    await house.s.feed.put([Message(queue=BILLING_CLOCK.queue, action=monthly_figures.KEEP)])
    await house.drain()


async def a_quarter_of_many(house: House) -> None:
    """Who stays, who takes more, who tries, who does not pay, who pauses and who leaves: on 20 April four run."""
    stays, grows, leaves, pauses, fails = [await house.subscribe(await house.customer()) for _ in range(5)]
    assert stays.plan_id == grows.plan_id
    await house.go_to(BEGIN + timedelta(days=40))
    await house.change_plan(grows, "pro", ChangeTiming.NOW)
    await house.cancel(leaves, ChangeTiming.NOW)
    await house.start_trial(await house.customer())
    debtor = next(each for each in house.customers if each.id == fails.account_id)
    await house.give_card(debtor, DECLINES)
    await house.go_to(BEGIN + timedelta(days=65))
    await house.pause(pauses)
    await house.subscribe(await house.customer(), "annual-pro")
    await house.go_to(BEGIN + timedelta(days=79))
