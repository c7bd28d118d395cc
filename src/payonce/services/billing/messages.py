"""The payloads on billing's queues, by queue and action. `docs/messages.md` is generated from these types."""

from datetime import datetime
from typing import Final

import msgspec

from payonce.engine.messages.contract import Contract, NoPayload
from payonce.services.billing.wire import (
    CREDITED,
    Action,
    Charge,
    CreditConfirmation,
    CreditHold,
    CreditRelease,
    NotificationDelivery,
    RefundExecution,
    ReturnedCredit,
)


class FirstInvoice(msgspec.Struct, frozen=True, kw_only=True):
    """Issue the first invoice of a subscription and request its charge."""

    subscription_id: str


class NextPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """Begin this period of an active subscription, which is due, and request its charge."""

    subscription_id: str
    period: int


class DunningRetry(msgspec.Struct, frozen=True, kw_only=True):
    """Charge an open invoice again on a dunning day."""

    subscription_id: str
    invoice_id: str | None
    """None if no invoice was open when it fell due; then nothing is charged."""


class ExpireIncomplete(msgspec.Struct, frozen=True, kw_only=True):
    """The first invoice was not paid within 23 hours."""

    subscription_id: str


class PlanChange(msgspec.Struct, frozen=True, kw_only=True):
    """Change the plan now: invoice the difference and request its charge."""

    subscription_id: str
    change_id: str
    """Also the id of the change's invoice, which makes redelivery harmless."""
    plan_id: str
    at: datetime
    """When the change was requested, in the customer's time."""


class ClockMove(msgspec.Struct, frozen=True, kw_only=True):
    """Advance a test clock to the next due moment."""

    test_clock_id: str


class MigrationStep(msgspec.Struct, frozen=True, kw_only=True):
    """Schedule or withdraw the next batch of changes of a plan migration."""

    migration_id: str


class RecordedCharge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Charge a recorded transaction, or check its state again."""

    transaction_id: str
    action: str | None = None
    """Only in raw objects."""


class RefundRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A refund that subscriptions requests and payments has not recorded yet."""

    transaction_id: str
    key: str
    """The same for every repetition of the request."""
    reason: str
    amount_minor: int | None = None
    """None refunds the rest of the charge."""
    from_credit: bool = False
    """The refund pays out credit that was already deducted from the customer's balance; payments reports the outcome
    either way."""
    account_id: str | None = None
    """The account that the credit belongs to."""
    currency: str | None = None
    """Of a credit payout; other refunds use the currency of their charge."""


HOLD: Final = "hold"
CONFIRM: Final = "confirm"
RELEASE: Final = "release"
"""The actions of `q:pay:credit_hold`."""
EXPIRE_INCOMPLETE: Final = "expire_incomplete"
MOVE_CLOCK: Final = "move_clock"
MIGRATE_PLAN: Final = "migrate_plan"
"""The actions of `q:sub:clock` with a payload; its schedules send the others."""

PAYMENT_INITIATIONS: Final = Contract({Action.INITIAL: FirstInvoice, Action.RENEWAL: (DunningRetry, NextPeriod)})
TRIAL_PAYMENTS: Final = Contract({Action.TRIAL: FirstInvoice})
PLAN_CHANGES: Final = Contract({Action.UPGRADE: PlanChange, Action.DOWNGRADE: PlanChange})
USAGE_SYNCS: Final = Contract({"": NoPayload})
BILLING_CLOCKS: Final = Contract(
    {
        EXPIRE_INCOMPLETE: ExpireIncomplete,
        MOVE_CLOCK: ClockMove,
        MIGRATE_PLAN: MigrationStep,
        **dict.fromkeys(("renew_due", "earn_revenue", "put_back_billing", "clean_up", "keep_figures"), NoPayload),
    }
)

_CHARGES: Final = (RecordedCharge, Charge)
CHARGES: Final = Contract(
    {
        Action.INITIAL: _CHARGES,
        Action.TRIAL: _CHARGES,
        Action.RENEWAL: _CHARGES,
        Action.UPGRADE: _CHARGES,
        Action.DOWNGRADE: _CHARGES,
        Action.PAYMENT: RecordedCharge,
    }
)
NOTIFICATIONS: Final = Contract(dict.fromkeys(Action, NotificationDelivery))
REFUNDS: Final = Contract({Action.REFUND: (RefundExecution, RefundRequest), CREDITED: ReturnedCredit})
CREDIT_HOLDS: Final = Contract({HOLD: CreditHold, CONFIRM: CreditConfirmation, RELEASE: CreditRelease})
PAYMENTS_CLOCKS: Final = Contract(dict.fromkeys(("put_back_payments", "clean_up_payments"), NoPayload))
