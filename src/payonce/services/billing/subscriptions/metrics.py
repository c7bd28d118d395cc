"""Gauges of subscriptions and invoices, read from the database.

Customers on test clocks are excluded, since their time is simulated.
"""

from typing import Any, Final

from prometheus_client import Gauge

from payonce.engine.database.connections import Database
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.kit.money import Amount, Asset
from payonce.services.billing.subscriptions.model import ENDED, Due, State
from payonce.services.billing.subscriptions.store.figures import A_MONTH

SUBSCRIPTIONS = Gauge(
    "payonce_billing_subscriptions", "Subscriptions that have not ended, by state.", ["state"], registry=REGISTRY
)
RECURRING = Gauge(
    "payonce_billing_recurring_amount",
    "Monthly recurring revenue of the active subscriptions, in major units.",
    ["currency"],
    registry=REGISTRY,
)
OPEN_INVOICES = Gauge("payonce_billing_open_invoices", "Unpaid invoices.", registry=REGISTRY)
OPEN_INVOICE_SECONDS = Gauge(
    "payonce_billing_oldest_open_invoice_seconds",
    "Age of the oldest unpaid invoice; 0 without one.",
    registry=REGISTRY,
)
UNANSWERED_SECONDS = Gauge(
    "payonce_billing_unanswered_seconds",
    "Age of the oldest unanswered charge request; 0 without one.",
    registry=REGISTRY,
)
LATE_SECONDS = Gauge(
    "payonce_billing_late_seconds",
    "How long the oldest due step of a subscription is overdue; 0 without one.",
    ["due"],
    registry=REGISTRY,
)
UNAPPLIED_AMOUNT = Gauge(
    "payonce_billing_unapplied_amount",
    "Captured money without a matching invoice, in major units.",
    ["currency"],
    registry=REGISTRY,
)
CLOCKS_MOVING = Gauge(
    "payonce_billing_test_clocks_moving", "Test clocks that have not reached their target.", registry=REGISTRY
)

UNAPPLIED: Final = "billing/unapplied"


async def observe_subscriptions(database: Database) -> None:
    await _running(database)
    await _invoices(database)
    await _late(database)
    await _unapplied(database)


async def _running(database: Database) -> None:
    rows = await database.engine.fetch(
        f"""
        select s.state, p.currency, p.exponent, sum(s.count) as count, round(sum(s.count * ({A_MONTH}))) as minor
        from (
            select state, plan_id, count(*) from subscriptions.subscriptions
            where state not in ('canceled', 'incomplete_expired') and test_clock_id is null group by 1, 2) s
        join subscriptions.plans p on p.id = s.plan_id group by 1, 2, 3
        """
    )
    counts: dict[str, int] = {}
    recurring: dict[Asset, int] = {}
    for row in rows:
        counts[row["state"]] = counts.get(row["state"], 0) + int(row["count"])
        if row["state"] in (State.ACTIVE, State.PAST_DUE):
            asset = Asset(row["currency"], row["exponent"])
            recurring[asset] = recurring.get(asset, 0) + int(row["minor"])
    for state in frozenset(State) - ENDED:
        SUBSCRIPTIONS.labels(state).set(counts.get(state, 0))
    _show(RECURRING, recurring)


async def _invoices(database: Database) -> None:
    row = await database.engine.fetchrow(
        """
        select count(*),
            coalesce(greatest(0, extract(epoch from payonce.due_now() - min(i.issued_at))), 0)::float8 as oldest_s,
            coalesce(greatest(0, extract(epoch from payonce.due_now() - min(i.updated_at) filter (where i.charging))),
                0)::float8 as unanswered_s,
            (select count(*) from subscriptions.test_clocks where now_at < target_at) as moving
        from subscriptions.invoices i join subscriptions.subscriptions s on s.id = i.subscription_id
        where i.state = 'open' and s.test_clock_id is null
        """
    )
    assert row is not None
    OPEN_INVOICES.set(row["count"])
    OPEN_INVOICE_SECONDS.set(row["oldest_s"])
    UNANSWERED_SECONDS.set(row["unanswered_s"])
    CLOCKS_MOVING.set(row["moving"])


async def _late(database: Database) -> None:
    """Processing a due step moves it on, so a step that has been due for long was not processed."""
    rows = await database.engine.fetch(
        """
        select due_for, extract(epoch from payonce.due_now() - min(due_at))::float8 as late_s
        from subscriptions.subscriptions
        where due_at < (select payonce.due_now()) and test_clock_id is null group by 1
        """
    )
    late_s = {row["due_for"]: row["late_s"] for row in rows}
    for due in Due:
        LATE_SECONDS.labels(due).set(late_s.get(due, 0.0))


async def _unapplied(database: Database) -> None:
    rows = await database.engine.fetch(
        "select asset, exponent, balance from payonce.balances where path = $1", UNAPPLIED
    )
    # Liabilities are negative in the ledger.
    _show(UNAPPLIED_AMOUNT, {Asset(row["asset"], row["exponent"]): -int(row["balance"]) for row in rows})


def _show(gauge: Any, found: dict[Asset, int]) -> None:
    """Removes series without a current value, which would keep their last one."""
    gauge.clear()
    for asset, minor in found.items():
        gauge.labels(asset.code).set(float(Amount(minor, asset).to_decimal()))
