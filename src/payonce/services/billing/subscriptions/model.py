"""Subscriptions, plans and invoices, with their states each as one table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from payonce.kit.money import Amount
from payonce.services.billing.wire import Action


class State(StrEnum):
    INCOMPLETE = "incomplete"
    """Waits for its first payment; the seed's `pending`."""
    INCOMPLETE_EXPIRED = "incomplete_expired"
    TRIALING = "trialing"
    """The seed's `trial`."""
    ACTIVE = "active"
    PAST_DUE = "past_due"
    UNPAID = "unpaid"
    """The seed's `revoked`."""
    PAUSED = "paused"
    CANCELED = "canceled"


ENDED: Final = frozenset({State.INCOMPLETE_EXPIRED, State.CANCELED})
ENTITLED: Final = frozenset({State.TRIALING, State.ACTIVE, State.PAST_DUE})
"""Who may use what they subscribed to."""
INCOMPLETE_EXPIRES_S: Final = 23 * 3_600

MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.INCOMPLETE: frozenset({State.ACTIVE, State.TRIALING, State.INCOMPLETE_EXPIRED, State.CANCELED}),
    State.TRIALING: frozenset({State.ACTIVE, State.PAST_DUE, State.PAUSED, State.CANCELED}),
    State.ACTIVE: frozenset({State.PAST_DUE, State.PAUSED, State.CANCELED}),
    State.PAST_DUE: frozenset({State.ACTIVE, State.UNPAID, State.CANCELED}),
    State.UNPAID: frozenset({State.ACTIVE, State.CANCELED}),
    State.PAUSED: frozenset({State.ACTIVE, State.TRIALING, State.CANCELED}),
    State.INCOMPLETE_EXPIRED: frozenset(),
    State.CANCELED: frozenset(),
}


class Due(StrEnum):
    """What the clock does next with a subscription."""

    EXPIRE = "expire"
    TRIAL_END = "trial_end"
    RENEW = "renew"
    DUN = "dun"


class InvoiceState(StrEnum):
    OPEN = "open"
    PAID = "paid"
    VOID = "void"
    """Taken back: nothing is owed, and nothing of it was service."""
    UNCOLLECTIBLE = "uncollectible"


WRONG_AMOUNT: Final = "wrong_amount"
"""The code of a try that failed because another amount than the invoice's was taken. No gateway says this."""


CHANGES: Final = frozenset({Action.UPGRADE, Action.DOWNGRADE})
"""Invoices of a change of plan, which are of no period."""


class LineKind(StrEnum):
    PERIOD = "period"
    UNUSED = "unused"
    """Of the plan that is left: a credit."""
    REMAINING = "remaining"
    """Of the plan that is taken up, for the rest of the period."""


class AfterDunning(StrEnum):
    UNPAID = "unpaid"
    CANCELED = "canceled"


@dataclass(frozen=True)
class Plan:
    id: str
    code: str
    version: int
    name: str
    price: Amount
    interval_unit: str
    interval_count: int
    trial_days: int | None
    renews_to: str | None
    features: Mapping[str, int | None]
    after_dunning: AfterDunning
    retired_at: datetime | None
    created_at: datetime


@dataclass(frozen=True)
class Subscription:
    id: str
    account_id: str
    plan_id: str
    state: State
    time_zone: str
    test_clock_id: str | None
    anchor_at: datetime | None
    anchor_period: int
    period: int
    period_start: datetime | None
    period_end: datetime | None
    trial_ends_at: datetime | None
    next_plan_id: str | None
    cancel_at_period_end: bool
    paused_at: datetime | None
    ended_at: datetime | None
    due_at: datetime | None
    due_for: Due | None
    reason: str | None
    revision: int
    trace_id: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class InvoiceLine:
    line: int
    kind: LineKind
    text: str
    plan_id: str
    amount: Amount
    service_start: datetime
    service_end: datetime
    earned: Amount
    closed_at: datetime | None = None


@dataclass(frozen=True)
class Invoice:
    id: str
    number: str
    account_id: str
    subscription_id: str
    action: Action
    plan_id: str
    period: int | None
    period_start: datetime
    period_end: datetime
    total: Amount
    credit: Amount
    due: Amount
    state: InvoiceState
    generation: int
    charging: bool
    failures: int
    first_failed_at: datetime | None
    decline_code: str | None
    declined_hard: bool
    try_at_once: bool
    transaction_id: str | None
    paid_at: datetime | None
    refunding: bool
    refunded: Amount
    earn_at: datetime | None
    issued_at: datetime
    trace_id: str | None
    lines: tuple[InvoiceLine, ...] = field(default=())
