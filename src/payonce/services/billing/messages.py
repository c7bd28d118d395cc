"""The payloads on billing's queues, by queue and action. `docs/messages.md` is made from these types."""

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
    """Issue the first invoice of a subscription, and ask for its charge."""

    subscription_id: str


class NextPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """Begin this period of a running subscription, which is due, and ask for its charge."""

    subscription_id: str
    period: int


class DunningRetry(msgspec.Struct, frozen=True, kw_only=True):
    """Charge an open invoice once more, when the next try of dunning is due."""

    subscription_id: str
    invoice_id: str | None
    """None: none was open when it fell due, and nothing is tried."""


class ExpireIncomplete(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody has paid the first invoice for 23 hours."""

    subscription_id: str


class PlanChange(msgspec.Struct, frozen=True, kw_only=True):
    """Change the plan now: issue the difference, and ask for its charge."""

    subscription_id: str
    change_id: str
    """Becomes the id of its invoice: a repetition finds that."""
    plan_id: str
    at: datetime
    """When it was asked for, in the customer's time."""


class ClockMove(msgspec.Struct, frozen=True, kw_only=True):
    """Move a test clock on to what falls due next."""

    test_clock_id: str


class MigrationStep(msgspec.Struct, frozen=True, kw_only=True):
    """Schedule or withdraw the next batch of changes of a plan migration."""

    migration_id: str


class RecordedCharge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transaction that is on record, to be carried out or looked at again."""

    transaction_id: str
    action: str | None = None
    """In a raw object alone."""


class RefundRequest(msgspec.Struct, frozen=True, kw_only=True):
    """From subscriptions: a refund that is not on record yet."""

    transaction_id: str
    key: str
    """The same for the same refund, however often it is asked for."""
    reason: str
    amount_minor: int | None = None
    """None: whatever is left of the charge."""
    from_credit: bool = False
    """It pays out credit, which the customer no longer has: whether it can be or not, subscriptions are told."""
    account_id: str | None = None
    """Whose credit."""
    currency: str | None = None
    """Of a payout of credit; other refunds are of the charge's currency."""


HOLD: Final = "hold"
CONFIRM: Final = "confirm"
RELEASE: Final = "release"
"""The actions of `q:pay:credit_hold`."""
EXPIRE_INCOMPLETE: Final = "expire_incomplete"
MOVE_CLOCK: Final = "move_clock"
MIGRATE_PLAN: Final = "migrate_plan"
"""The actions of `q:sub:clock` that come with a payload; its schedules put the others."""

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
