"""Each promise of payments finds what breaks it."""

from typing import Final

import pytest

from payonce.testing import OpenStage
from tests.services.billing.payments.till import INVARIANTS, Till, open_till

BROKEN: Final = {
    "refunds add up to the totals of their transaction": "update payments.refunds set amount_minor = 99",
    "credit held for plan changes is counted by its charges": """
        insert into payments.credits_held (change_id, transaction_id, minor)
        select 'change', id, 1 from payments.transactions
    """,
    "no charge or refund is pending for longer than a day": """
        update payments.transactions set state = 'pending', gateway_id = null, ended_at = null,
            created_at = payonce.due_now() - interval '25 hours' where invoice_id = 'inv-2'
    """,
    "the price of a trial is refunded, or being refunded": """
        update payments.transactions set state = 'succeeded', refunded_minor = 0 where action = 'trial'
    """,
    "every pending charge and refund has a message": """
        update payments.transactions set state = 'pending', gateway_id = null, ended_at = null,
            updated_at = payonce.due_now() - interval '16 minutes' where invoice_id = 'inv-2'
    """,
    "no notification is undelivered for longer than an hour": """
        update payments.notifications set delivered_at = null, created_at = payonce.due_now() - interval '61 minutes'
        where action = 'payment_method'
    """,
    "every outcome is reported to subscriptions exactly once": """
        delete from payments.webhook_outbound_requests; delete from payments.notifications where action = 'refund'
    """,
    "the clearing balance is what was captured and not refunded": """
        update payments.transactions set amount_minor = 2800 where invoice_id = 'inv-2'
    """,
    "amounts in transit are those not yet reported to subscriptions": """
        select payonce.post('stray', 'test', 'stray', null, '', array['billing/captured', 'test/stray'],
            array['AED', 'AED'], array[2, 2]::smallint[], array[-1, 1]::numeric[])
    """,
    "no invoice is paid by two charges": """
        insert into payments.transactions (id, charge_key, account_id, invoice_id, action, currency, exponent,
            amount_minor, state, gateway_id, ended_at)
        select 'two', 'inv-2:2', account_id, invoice_id, action, currency, exponent, amount_minor, state, 'ch_two',
            ended_at
        from payments.transactions where invoice_id = 'inv-2'
    """,
    "every capture and refund is a performed effect": """
        update payments.transactions set gateway_id = 'ch_another' where invoice_id = 'inv-2'
    """,
    "refunds outside the gateway have succeeded and have no order there": """
        update payments.refunds set outside = true, gateway_id = null
    """,
    "nothing has ended while its order at the gateway is open": "update payonce.effects set state = 'unknown'",
}
BROKEN_IN_ANOTHER_WAY: Final = {
    name: f"""
        update payments.refunds set state = 'pending', gateway_id = null, ended_at = null,
            {column} = payonce.due_now() - interval '25 hours'
    """
    for name, column in (
        ("no charge or refund is pending for longer than a day", "created_at"),
        ("every pending charge and refund has a message", "updated_at"),
    )
}


async def after_a_day(till: Till) -> None:
    await till.card()
    await till.charged(action="trial", amount_minor=100)
    await till.charged("inv-2")


async def test_they_hold_after_a_day_of_payments_and_each_finds_what_breaks_it(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await after_a_day(till)
        assert await till.broken() == {}
        assert set(BROKEN) == set(INVARIANTS)
        for name, change in (*BROKEN.items(), *BROKEN_IN_ANOTHER_WAY.items()):
            undo = till.s.owner.transaction()
            await undo.start()
            await till.s.owner.execute(change)
            assert await till.s.owner.fetch(INVARIANTS[name]), name
            await undo.rollback()


@pytest.mark.parametrize("answers", [[503], [503] * 3])
async def test_they_hold_while_subscriptions_have_not_been_told(stage: OpenStage, answers: list[int]) -> None:
    async with open_till(stage) as till:
        await till.card()
        await till.run()
        till.subscriptions.answers = answers
        await till.ask(action="trial", amount_minor=100)
        for _ in range(8):
            await till.drain()
            assert await till.broken() == {}
            await till.s.clock.advance(30)
