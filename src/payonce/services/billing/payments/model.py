"""Cards, transactions and refunds, with each state machine as one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from payonce.kit.money import Amount
from payonce.services.billing.wire import Action


class State(StrEnum):
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUNDED = "refunded"
    PARTIALLY_REFUNDED = "partially_refunded"


MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.PENDING: frozenset({State.SUCCEEDED, State.FAILED}),
    State.SUCCEEDED: frozenset({State.PARTIALLY_REFUNDED, State.REFUNDED}),
    State.PARTIALLY_REFUNDED: frozenset({State.PARTIALLY_REFUNDED, State.REFUNDED}),
    State.FAILED: frozenset(),
    State.REFUNDED: frozenset(),
}

TAKEN: Final = frozenset({State.SUCCEEDED, State.PARTIALLY_REFUNDED, State.REFUNDED})
"""The gateway has captured the amount."""


class RefundState(StrEnum):
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True)
class PaymentMethod:
    """A gateway token, and the card's details that people recognise."""

    id: str
    account_id: str
    token: str
    brand: str
    last4: str
    exp_month: int
    exp_year: int
    is_default: bool
    created_at: datetime


@dataclass(frozen=True)
class Transaction:
    id: str
    charge_key: str
    account_id: str
    subscription_id: str | None
    invoice_id: str | None
    generation: int
    action: Action
    payment_method_id: str | None
    amount: Amount
    state: State
    gateway_id: str | None
    decline_code: str | None
    hard: bool
    reason: str | None
    refunded: Amount
    refunding: Amount
    metadata: Mapping[str, Any]
    trace_id: str | None
    created_at: datetime
    updated_at: datetime
    credited_minor: int = 0
    """The part that was returned as credit at a plan change, as reported by subscriptions."""
    paid_out_minor: int = 0
    """The part of the refunds, completed or in progress, that paid out the customer's credit."""

    @property
    def told(self) -> bool:
        """Whether the outcome is reported to subscriptions, which is not the case for payments without an invoice."""
        return self.action is not Action.PAYMENT

    @property
    def left(self) -> Amount:
        """The refundable amount."""
        if self.state not in TAKEN:
            return Amount.zero(self.amount.asset)
        return self.amount - self.refunded - self.refunding

    @property
    def credited(self) -> Amount:
        return Amount(self.credited_minor, self.amount.asset)

    @property
    def free(self) -> Amount:
        """The refundable amount that was not returned as credit. Credit that was paid out through this charge is
        already money, and is not deducted a second time."""
        kept = Amount(max(self.credited_minor - self.paid_out_minor, 0), self.amount.asset)
        return max(self.left - kept, Amount.zero(self.amount.asset))

    @property
    def about(self) -> str:
        """The correlation id of its messages: the subscription, if there is one."""
        return self.subscription_id or self.id


NOT_RECORDED: Final = datetime.min.replace(tzinfo=UTC)
"""The creation time of a transaction that is not recorded yet."""


def pending_transaction(
    transaction_id: str,
    charge_key: str,
    account_id: str,
    action: Action,
    amount: Amount,
    *,
    subscription_id: str | None = None,
    invoice_id: str | None = None,
    generation: int = 1,
    payment_method_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    trace_id: str | None = None,
) -> Transaction:
    """A transaction before it is recorded."""
    return Transaction(
        id=transaction_id,
        charge_key=charge_key,
        account_id=account_id,
        subscription_id=subscription_id,
        invoice_id=invoice_id,
        generation=generation,
        action=action,
        payment_method_id=payment_method_id,
        amount=amount,
        state=State.PENDING,
        gateway_id=None,
        decline_code=None,
        hard=False,
        reason=None,
        refunded=Amount.zero(amount.asset),
        refunding=Amount.zero(amount.asset),
        metadata=metadata or {},
        trace_id=trace_id,
        created_at=NOT_RECORDED,
        updated_at=NOT_RECORDED,
    )


@dataclass(frozen=True)
class Refund:
    id: str
    refund_key: str
    transaction_id: str
    amount: Amount
    reason: str
    state: RefundState
    gateway_id: str | None
    failure: str | None
    created_at: datetime
    updated_at: datetime
    outside: bool = False
    """The money was returned outside the gateway, which was not called."""
    from_credit: bool = False
    """It pays out credit, which subscriptions deducted from the customer's balance first."""
