"""Accounts, subscriptions, plans and invoices; states, each as one table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from payonce.kit.money import Amount
from payonce.services.billing.wire import Action


@dataclass(frozen=True)
class Account:
    """A customer, or an operator."""

    id: str
    email: str
    name: str
    role: str
    time_zone: str
    locale: str
    test_clock_id: str | None
    version: int
    """Grows when all tokens given out so far are to count no longer."""
    external_id: str | None
    """The merchant's own id for the customer."""
    has_password: bool
    revision: int
    """Grows with every edit."""
    created_at: datetime
    updated_at: datetime


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


class ChangeTiming(StrEnum):
    """When a change of plan or a cancellation takes effect."""

    NOW = "now"
    PERIOD_END = "period_end"


class ChangeState(StrEnum):
    """Of a change of plan: pending, then one of the others for ever."""

    PENDING = "pending"
    APPLIED = "applied"
    FAILED = "failed"
    CANCELED = "canceled"
    """Withdrawn, or replaced by another change."""


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
    allowance_unit: str | None
    allowance_count: int | None
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
    converts_to_plan_id: str | None
    """Of a trial: the version that was for sale as it began."""
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
    allowance_starts: tuple[datetime, ...] | None = None
    """Of the windows in the running period; None when the period is the only one."""


@dataclass(frozen=True)
class PlanChangeRecord:
    """A change of plan that was accepted."""

    id: str
    """Of one that is to be now: also the id of its invoice."""
    subscription_id: str
    from_plan_id: str
    to_plan_id: str
    timing: ChangeTiming
    state: ChangeState
    reason: str | None
    """Why it failed or was canceled."""
    migration_id: str | None
    requested_at: datetime
    ended_at: datetime | None
    not_before: datetime | None = None
    """A scheduled one is applied with the first period that ends then or later; None: with the next one."""

    def effective_at(self, subscription: Subscription) -> datetime | None:
        """When it was applied, or will be. None: as soon as it is paid, or never."""
        if self.state is ChangeState.PENDING:
            if self.timing is ChangeTiming.NOW or subscription.period_end is None:
                return None
            return max(subscription.period_end, self.not_before or subscription.period_end)
        return self.ended_at if self.state is ChangeState.APPLIED else None


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
    paid_with: str | None = None
    """The card that was charged, as the customer knows it."""


class EntryKind(StrEnum):
    """Why a customer's credit changed."""

    OPENING = "opening"
    """The balance from before entries were kept."""
    GRANTED = "granted"
    """A change of plan gave back more than it charged."""
    USED = "used"
    """On an invoice; above zero when that invoice was voided or given up."""
    PAID_OUT = "paid_out"
    """As money; above zero when the payout failed."""
    EXPIRED = "expired"
    ADJUSTED = "adjusted"
    """By an operator."""


@dataclass(frozen=True)
class CreditEntry:
    id: int
    account_id: str
    kind: EntryKind
    amount: Amount
    """Above zero the customer has more."""
    balance: Amount
    """After it."""
    invoice_id: str | None
    invoice_number: str | None
    payout_id: str | None
    reason: str
    actor: str
    at: datetime
    """In the customer's time."""


class PayoutWay(StrEnum):
    CARD = "card"
    """As a refund of an earlier charge, through payments."""
    BY_HAND = "by_hand"
    """By bank or in cash: it has happened, and is only put on record."""


class PayoutState(StrEnum):
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


PAYOUT_MOVES: Final[Mapping[PayoutState, frozenset[PayoutState]]] = {
    PayoutState.PENDING: frozenset({PayoutState.SUCCEEDED, PayoutState.FAILED}),
    PayoutState.SUCCEEDED: frozenset(),
    PayoutState.FAILED: frozenset(),
}


@dataclass(frozen=True)
class CreditPayout:
    id: str
    account_id: str
    amount: Amount
    way: PayoutWay
    invoice_id: str | None
    transaction_id: str | None
    state: PayoutState
    refund_id: str | None
    failure: str | None
    reason: str
    asked_by: str
    at: datetime
    trace_id: str | None
    created_at: datetime
    ended_at: datetime | None
