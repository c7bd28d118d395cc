"""Accounts, subscriptions, plans and invoices, with each state machine as one table."""

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
    """Grows when all issued tokens are revoked."""
    external_id: str | None
    """The merchant's own id for the customer."""
    has_password: bool
    revision: int
    """Grows with every edit."""
    created_at: datetime
    updated_at: datetime


class State(StrEnum):
    INCOMPLETE = "incomplete"
    """Awaits its first payment; `pending` in the earlier system."""
    INCOMPLETE_EXPIRED = "incomplete_expired"
    TRIALING = "trialing"
    """`trial` in the earlier system."""
    ACTIVE = "active"
    PAST_DUE = "past_due"
    UNPAID = "unpaid"
    """`revoked` in the earlier system."""
    PAUSED = "paused"
    CANCELED = "canceled"


ENDED: Final = frozenset({State.INCOMPLETE_EXPIRED, State.CANCELED})
ENTITLED: Final = frozenset({State.TRIALING, State.ACTIVE, State.PAST_DUE})
"""The states in which a subscription may be used."""
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
    """When a plan change or a cancellation takes effect."""

    NOW = "now"
    PERIOD_END = "period_end"


class ChangeState(StrEnum):
    """The state of a plan change: pending, then one final state."""

    PENDING = "pending"
    APPLIED = "applied"
    FAILED = "failed"
    CANCELED = "canceled"
    """Withdrawn, or replaced by another change."""


class Due(StrEnum):
    """The next scheduled step of a subscription."""

    EXPIRE = "expire"
    TRIAL_END = "trial_end"
    RENEW = "renew"
    DUN = "dun"


class InvoiceState(StrEnum):
    OPEN = "open"
    PAID = "paid"
    VOID = "void"
    """Canceled by a credit note: nothing is owed, and nothing counts as provided."""
    UNCOLLECTIBLE = "uncollectible"


WRONG_AMOUNT: Final = "wrong_amount"
"""The failure code of an attempt that captured another amount than the invoice's. No gateway returns it."""


CHANGES: Final = frozenset({Action.UPGRADE, Action.DOWNGRADE})
"""Actions of plan changes, whose invoices belong to no period."""


class LineKind(StrEnum):
    PERIOD = "period"
    UNUSED = "unused"
    """Unused time of the old plan: a credit."""
    REMAINING = "remaining"
    """The rest of the period on the new plan."""


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
    """For a trial: the version that was for sale when it began."""
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
    """The starts of the allowance windows in the current period; None if the period is the only window."""


@dataclass(frozen=True)
class PlanChangeRecord:
    """An accepted plan change."""

    id: str
    """For an immediate change, also the id of its invoice."""
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
    """A scheduled change is applied at the first period end at or after this time; None for the next one."""

    def effective_at(self, subscription: Subscription) -> datetime | None:
        """When the change was or will be applied. None while it awaits payment, or if it was not applied."""
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
    """The charged card, as printed on the invoice."""


class EntryKind(StrEnum):
    """Why a customer's credit changed."""

    OPENING = "opening"
    """The balance from before entries were recorded."""
    GRANTED = "granted"
    """A plan change credited more than it charged."""
    USED = "used"
    """Used for an invoice; positive when that invoice was voided or written off."""
    PAID_OUT = "paid_out"
    """Paid out as money; positive when the payout failed."""
    EXPIRED = "expired"
    ADJUSTED = "adjusted"
    """Changed by an operator."""


@dataclass(frozen=True)
class CreditEntry:
    id: int
    account_id: str
    kind: EntryKind
    amount: Amount
    """Positive amounts increase the credit."""
    balance: Amount
    """The balance after this entry."""
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
    """By bank or in cash: already made, and only recorded."""


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
