"""Rows of billing as its services write them, for pages to show; the console beside."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from payonce.services.billing.policies import QUEUES
from payonce.testing import OpenStage, Stage
from tests.console.visitor import Answer, console

MONTHS: Final = 3
"""How long each customer of `fill` has been one."""


@asynccontextmanager
async def open_console(stage: OpenStage, **options: Any) -> AsyncIterator[tuple[Stage, str]]:
    async with stage() as s:
        await s.feed.declare([*QUEUES])
        async with console(s, **options) as address:
            yield s, address


async def fill(s: Stage, customers: int, *, clock: str | None = None) -> None:
    """Customers c-1…, each with a card and a subscription that began MONTHS months ago and was paid for; every tenth is
    past due for want of funds, and of every ten the first was canceled a month ago."""
    if clock is not None:
        await s.owner.execute(
            """
            insert into subscriptions.test_clocks (id, name, now_at, target_at, made_by)
            values ($1, $1, payonce.due_now() + interval '1 year', payonce.due_now() + interval '2 years', 'test')
            """,
            clock,
        )
    for statement in _FILL:
        given = (customers, clock, "" if clock is None else f"{clock}-") if "$1" in statement else ()
        await s.owner.execute(statement, *given)


async def notify(s: Stage, event_id: str, transaction_id: str, *, delivered: bool, error: str | None = None) -> None:
    """A notification with one attempt, and its arrival where it was delivered."""
    body = {"event_id": event_id, "transaction_id": transaction_id, "action": "renewal", "status": "success"}
    await s.owner.execute(
        """
        insert into payments.notifications (event_id, transaction_id, account_id, action, body, delivered_at)
        values ($1, $2, 'c-1', 'renewal', $3, case when $4 then payonce.due_now() end)
        """,
        event_id,
        transaction_id,
        json.dumps(body).encode(),
        delivered,
    )
    await s.owner.execute(
        """
        insert into payments.webhook_outbound_requests (event_id, way, url, response_code, error, elapsed_ms)
        values ($1, 'immediate', 'http://127.0.0.1:8001/v1/webhooks/payment', $2, $3, 12)
        """,
        event_id,
        200 if delivered else None,
        None if delivered else "connection refused",
    )
    if delivered:
        await s.owner.execute(
            """
            insert into subscriptions.payment_webhook_requests
                (event_id, payload, processed, processed_at, error_message)
            values ($1, $2::text::jsonb, true, payonce.due_now(), $3)
            """,
            event_id,
            json.dumps({**body, "subscription_id": "s-1"}),
            error,
        )


def rows_of(page: Answer, what: str) -> list[str]:
    """The ids that the first column of the list leads to."""
    body = page.text.partition("<tbody>")[2].partition("</tbody>")[0]
    return re.findall(rf'<tr>\s*<td[^>]*><a class="(?:id|mail)" href="/console/billing/{what}/([^"]+)"', body)


_EACH: Final = "from generate_series(1, $1::int) as n, (select $2::text as clock, $3::text as prefix) as world"
_FILL: Final = (
    f"""
    insert into subscriptions.accounts (id, email, password_hash, name, test_clock_id, created_at)
    select prefix || 'c-' || n, prefix || 'customer' || n || '@example.com', '!', 'Customer ' || n, clock,
        payonce.due_now() - make_interval(months => {MONTHS}) - make_interval(secs => n)
    {_EACH}
    """,
    f"""
    insert into subscriptions.subscriptions (id, account_id, plan_id, state, time_zone, test_clock_id, anchor_at,
        period, period_start, period_end, due_at, due_for, ended_at, created_at)
    select prefix || 's-' || n, prefix || 'c-' || n, case when n % 5 = 0 then 'pro-v1' else 'basic-v1' end,
        case n % 10 when 0 then 'past_due' when 1 then 'canceled' else 'active' end, 'UTC', clock,
        at - make_interval(months => {MONTHS}), {MONTHS}, at - interval '1 hour', at + interval '30 days',
        case n % 10 when 0 then at + interval '30 hours' when 1 then null else at + interval '30 days' end,
        case n % 10 when 0 then 'dun' when 1 then null else 'renew' end,
        case when n % 10 = 1 then at - interval '1 month' end, payonce.due_now() - make_interval(secs => n)
    {_EACH}, lateral (select subscriptions.time_of(clock) as at) as their
    """,
    f"""
    insert into subscriptions.subscription_events (subscription_id, kind, from_state, to_state, detail, at)
    select prefix || 's-' || n, 'activated', 'incomplete', 'active', '{{}}'::jsonb,
        at - make_interval(months => {MONTHS})
    {_EACH}, lateral (select subscriptions.time_of(clock) as at) as their
    union all
    select prefix || 's-' || n, case n % 10 when 0 then 'payment_failed' else 'canceled' end, 'active',
        case n % 10 when 0 then 'past_due' else 'canceled' end, '{{"decline_code": "insufficient_funds"}}'::jsonb,
        case n % 10 when 0 then at else at - interval '1 month' end
    {_EACH}, lateral (select subscriptions.time_of(clock) as at) as their where n % 10 in (0, 1)
    """,
    f"""
    insert into subscriptions.invoices (id, number, account_id, subscription_id, action, plan_id, period, period_start,
        period_end, currency, exponent, total_minor, due_minor, state, generation, failures, first_failed_at,
        decline_code, transaction_id, paid_at, issued_at)
    select prefix || 'i-' || n || '-' || k, upper(prefix) || 'INV-' || n || '-' || k, prefix || 'c-' || n,
        prefix || 's-' || n, case k when 0 then 'initial' else 'renewal' end, p.id, k, began,
        began + interval '1 month', p.currency, p.exponent, p.price_minor, p.price_minor,
        case when owed then 'open' else 'paid' end, 1, case when owed then 1 else 0 end, case when owed then began end,
        case when owed then 'insufficient_funds' end,
        prefix || 't-' || n || '-' || k, case when not owed then began end, began
    {_EACH}, generate_series(0, {MONTHS}) as k,
        lateral (
            select subscriptions.time_of(clock) - interval '1 hour' - make_interval(months => {MONTHS} - k) as began,
                k = {MONTHS} and n % 10 = 0 as owed) as its
    join subscriptions.plans p on true
    where p.id = case when n % 5 = 0 then 'pro-v1' else 'basic-v1' end and not (n % 10 = 1 and k >= {MONTHS} - 1)
    """,
    """
    insert into subscriptions.invoice_lines (invoice_id, line, kind, text, plan_id, amount_minor, service_start,
        service_end)
    select id, 1, 'period', 'Basic or Pro, one month', plan_id, total_minor, period_start, period_end
    from subscriptions.invoices where id not in (select invoice_id from subscriptions.invoice_lines)
    """,
    f"""
    insert into payments.payment_methods (id, account_id, token, brand, last4, exp_month, exp_year, is_default)
    select prefix || 'm-' || n, prefix || 'c-' || n, 'tok-' || prefix || n, 'visa',
        case when n % 10 = 0 then '9995' else '4242' end, 12, 2030, true
    {_EACH}
    """,
    """
    insert into payments.transactions (id, charge_key, account_id, subscription_id, invoice_id, action,
        payment_method_id, currency, exponent, amount_minor, state, gateway_id, decline_code, reason, created_at,
        ended_at)
    select i.transaction_id, i.id || ':1', i.account_id, i.subscription_id, i.id, i.action,
        replace(i.account_id, 'c-', 'm-'), i.currency, i.exponent, i.due_minor,
        case i.state when 'open' then 'failed' else 'succeeded' end,
        case i.state when 'open' then null else 'ch-' || i.id end,
        case i.state when 'open' then 'insufficient_funds' end,
        case i.state when 'open' then 'the card has not enough money' end, i.created_at, i.created_at
    from subscriptions.invoices i where i.transaction_id not in (select id from payments.transactions)
    """,
)
