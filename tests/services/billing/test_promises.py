"""Every promise can be broken, and what breaks it is found; and what the store itself refuses, it refuses."""

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from payonce.kit.outcomes import Retry
from payonce.services.billing.subscriptions.handlers import renewals
from payonce.services.billing.subscriptions.invariants.subscriptions import INVARIANTS
from payonce.services.billing.subscriptions.model import State
from payonce.services.billing.subscriptions.store import invoices as invoice_store
from payonce.services.billing.subscriptions.store import subscriptions as store
from payonce.services.billing.wire import Action
from payonce.testing import OpenStage
from tests.locks import all_wait, stopped_at, waits_or_ended
from tests.services.billing.billing_stage import House, open_house

BREAKS = {
    "every period that began has exactly one invoice": "update subscriptions.subscriptions set period = period + 1",
    "no invoice belongs to a period that has not begun": "update subscriptions.invoices set period = 7",
    "an invoice is the sum of its lines": "update subscriptions.invoice_lines set amount_minor = amount_minor + 1",
    "numbers have no gaps": "update subscriptions.number_series set last = last + 1",
    "a paid invoice has its transaction, or nothing was due": (
        "update subscriptions.invoices set transaction_id = null"
    ),
    "receivables are the open invoices' amounts due": (
        "update subscriptions.invoices set state = 'open', paid_at = null"
    ),
    "deferred revenue is what is billed and not earned": (
        "update subscriptions.invoice_lines set earned_minor = earned_minor + 1"
    ),
    "revenue is what the lines have earned": "update subscriptions.invoice_lines set earned_minor = earned_minor + 1",
    "paid invoices are fully earned in the end": "update subscriptions.invoices set earn_at = null",
    "customers' credit is what the ledger owes them": (
        "insert into subscriptions.credits (account_id, currency, exponent, minor) values ('acc-1', 'AED', 2, 5)"
    ),
    "refunds are their credit notes": "update subscriptions.invoices set refunded_minor = 1",
    "money without a matching invoice is recorded and being refunded": """
        insert into subscriptions.unapplied_payments
            (transaction_id, event_id, currency, exponent, amount_minor, refund_asked, reason)
        values ('t', 'e', 'AED', 2, 5, false, 'for nothing')
    """,
    "an unpaid invoice belongs to an unpaid subscription": (
        "update subscriptions.invoices set state = 'open', paid_at = null"
    ),
    "a past due subscription waits for a dunning day or an answer": (
        "update subscriptions.subscriptions set state = 'past_due'"
    ),
    "due work is enqueued within an hour": (
        "update subscriptions.subscriptions set due_at = payonce.due_now() - interval '2 hours'"
    ),
    "enqueued work is processed within a day": """
        update subscriptions.subscriptions set due_at = payonce.due_now() - interval '25 hours',
            put_for = payonce.due_now() - interval '25 hours'
    """,
    "a requested charge is answered within a day": """
        update subscriptions.invoices set state = 'open', paid_at = null, charging = true,
            updated_at = payonce.due_now() - interval '25 hours'
    """,
    "the price of a trial is refunded within a day": "update subscriptions.invoices set action = 'trial'",
    "an accepted plan change ends": """
        insert into subscriptions.plan_changes
            (id, subscription_id, from_plan_id, to_plan_id, at_period_end, requested_at)
        select 'c', id, plan_id, plan_id, true, payonce.due_now() from subscriptions.subscriptions
    """,
    "limits reset as the plan says": """
        update subscriptions.subscriptions set allowance_starts = array[period_start],
            updated_at = payonce.due_now() - interval '61 minutes'
    """,
    "a test clock with work to do advances within an hour": """
        insert into subscriptions.test_clocks (id, name, now_at, target_at, made_by, updated_at)
        values ('tc', 'stuck', payonce.due_now(), payonce.due_now() + interval '1 day', 'test',
            payonce.due_now() - interval '61 minutes')
    """,
    "revenue is recognised within a day of its time": """
        update subscriptions.invoices set earn_at = payonce.due_now() - interval '25 hours',
            updated_at = payonce.due_now() - interval '25 hours'
    """,
    "every payment event was processed": (
        "update subscriptions.payment_webhook_requests set processed = false, processed_at = null"
    ),
}
FURTHER_BREAKS = [
    (
        "money without a matching invoice is recorded and being refunded",
        """
        insert into subscriptions.unapplied_payments
            (transaction_id, event_id, currency, exponent, amount_minor, refund_asked, reason, created_at)
        values ('t', 'e', 'AED', 2, 5, true, 'asked for, and never given', payonce.due_now() - interval '25 hours')
        """,
    ),
    (
        "due work is enqueued within an hour",
        """
        update subscriptions.invoices set state = 'open', paid_at = null;
        update subscriptions.subscriptions set state = 'past_due', due_for = 'dun',
            due_at = payonce.due_now() - interval '61 minutes'
        """,
    ),
    (
        "an accepted plan change ends",
        """
        insert into subscriptions.plan_changes
            (id, subscription_id, from_plan_id, to_plan_id, at_period_end, requested_at, created_at)
        select 'c', id, plan_id, plan_id, false, payonce.due_now(), payonce.due_now() - interval '25 hours'
        from subscriptions.subscriptions
        """,
    ),
    (
        "the price of a trial is refunded within a day",
        """
        update subscriptions.invoices set action = 'trial', refunding = true,
            updated_at = payonce.due_now() - interval '25 hours'
        """,
    ),
    *(
        (
            name,
            f"""
        insert into subscriptions.test_clocks (id, name, now_at, target_at, made_by, updated_at)
        select 'tc', 'arrived', due_at, due_at, 'test', payonce.due_now() - interval '25 hours'
        from subscriptions.subscriptions;
        update subscriptions.subscriptions set test_clock_id = 'tc', put_for = {put_for}
        """,
        )
        for name, put_for in (
            ("a test clock with work to do advances within an hour", "null"),
            ("enqueued work is processed within a day", "due_at"),
        )
    ),
]
"""Of the same promise, in another way."""


async def test_every_promise_is_found_out_when_it_is_broken(stage: OpenStage) -> None:
    assert BREAKS.keys() == INVARIANTS.keys()
    async with open_house(stage) as house:
        await house.subscribe(await house.customer())
        assert await house.broken() == {}
        for name, change in (*BREAKS.items(), *FURTHER_BREAKS):
            undone = house.s.owner.transaction()
            await undone.start()
            await house.s.owner.execute(change)
            assert await house.s.owner.fetch(INVARIANTS[name]), name
            await undone.rollback()
        assert await house.broken() == {}


async def test_a_period_has_one_invoice_by_the_stores_own_word(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        [invoice] = await house.invoices(subscription)
        another = replace(invoice, id="another")
        with pytest.raises(asyncpg.UniqueViolationError, match="invoices_one_per_period"):
            async with house.s.begin() as tx:
                await invoice_store.insert(tx, another, None)
        assert await house.broken() == {}, "and the number that it took is free again"


async def test_what_was_read_before_somebody_else_moved_it_is_not_written(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        before = await house.subscribe(await house.customer())
        await house.pause(before)
        with pytest.raises(Retry, match="was changed since it was read"):
            async with house.s.begin() as tx:
                await store.move(
                    tx, before, "canceled", before.created_at, state=State.CANCELED, ended_at=before.created_at
                )
        assert await house.state(before) is State.PAUSED


async def test_an_invoice_that_was_charged_anew_is_not_marked_by_an_earlier_answer(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer("4000000000000002"))
        [before] = await house.invoices(subscription)
        async with house.s.begin() as tx:
            await invoice_store.begin_charge(tx, before)
        # As it was read when the first try was under way.
        earlier = replace(before, charging=True)
        with pytest.raises(Retry, match="was changed since it was read"):
            async with house.s.begin() as tx:
                await invoice_store.mark_failed(tx, earlier, "late", False, before.issued_at)


async def test_numbers_of_many_at_the_same_moment_have_no_gaps(stage: OpenStage) -> None:
    """Some of them are given up after they took their number."""
    async with open_house(stage) as house:
        subscriptions = [await house.subscribe(await house.customer(), run=False) for _ in range(8)]

        async def bill(number: int) -> None:
            async with house.s.begin() as tx:
                standing = await store.locked(tx, subscriptions[number].id)
                await renewals.bill_first(tx, standing, Action.INITIAL)
                if number % 3 == 0:
                    raise Retry("given up")

        async with stopped_at(house.s, "insert", "subscriptions.invoices"):
            billing = [asyncio.create_task(bill(number)) for number in range(8)]
            await all_wait(house.s, 8)
        await asyncio.gather(*billing, return_exceptions=True)
        numbers = await house.s.owner.fetch("select number from subscriptions.invoices order by number")
        assert [row["number"][-1] for row in numbers] == ["1", "2", "3", "4", "5"]
        assert "numbers have no gaps" not in await house.broken()


async def test_two_workers_with_one_renewal_issue_it_once(stage: OpenStage) -> None:
    """The second looks when the first has looked and not written yet: it waits, and finds nothing left to do."""
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        assert subscription.due_at is not None
        await house.s.clock.freeze(subscription.due_at)
        async with house.s.begin() as tx:
            standing = await store.locked(tx, subscription.id)
            second = asyncio.create_task(renew(house, subscription.id))
            assert await waits_or_ended(house.s, second)
            await renewals._renew(tx, standing, 1)
        await second
        await house.run()
        invoices = await house.invoices(subscription)
        assert [invoice.period for invoice in invoices] == [0, 1]
        assert [house.captures(invoice) for invoice in invoices] == [1, 1]


async def renew(house: House, subscription_id: str) -> None:
    async with house.s.begin() as tx:
        await renewals._renew(tx, await store.locked(tx, subscription_id), 1)
