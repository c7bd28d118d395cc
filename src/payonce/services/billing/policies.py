"""Billing's queues, under the names that operators of the earlier system know, and their policies.

`max_attempts` counts the first run: five retries are six attempts. The lock is the lease, which is renewed while a
handler runs; the visibility timeout is the hard limit of one run.
"""

from typing import Final

from payonce.engine.messages.policy import Exponential, Policy
from payonce.services.billing import messages

_SLOW: Final = Exponential(60.0, 2.0, 3_600.0, 10.0)
_QUICK: Final = Exponential(60.0, 2.0, 600.0, 5.0)

PAYMENT_INITIATION: Final = Policy(
    "q:sub:payment_initiation",
    max_attempts=6,
    backoff=_SLOW,
    lease_s=180.0,
    run_limit_s=300.0,
    contract=messages.PAYMENT_INITIATIONS,
)
"""Issues an invoice, or charges one again."""
TRIAL_PAYMENT: Final = Policy(
    "q:sub:trial_payment",
    max_attempts=4,
    backoff=_QUICK,
    lease_s=120.0,
    run_limit_s=240.0,
    contract=messages.TRIAL_PAYMENTS,
)
PLAN_CHANGE: Final = Policy(
    "q:sub:plan_change",
    max_attempts=6,
    backoff=_SLOW,
    lease_s=180.0,
    run_limit_s=300.0,
    contract=messages.PLAN_CHANGES,
)
USAGE_SYNC: Final = Policy(
    "q:sub:usage_sync",
    max_attempts=6,
    backoff=_SLOW,
    lease_s=180.0,
    run_limit_s=300.0,
    contract=messages.USAGE_SYNCS,
)

CHARGE_INITIATION: Final = Policy(
    "q:pay:charge_initiation",
    max_attempts=6,
    backoff=_SLOW,
    lease_s=180.0,
    run_limit_s=300.0,
    contract=messages.CHARGES,
)
"""Charge requests from subscriptions to payments, sent in the commit that issues the invoice: neither exists without
the other."""
SUBSCRIPTION_UPDATE: Final = Policy(
    "q:pay:subscription_update",
    max_attempts=6,
    backoff=_SLOW,
    lease_s=180.0,
    run_limit_s=300.0,
    contract=messages.NOTIFICATIONS,
)
REFUND_INITIATION: Final = Policy(
    "q:pay:refund_initiation",
    max_attempts=4,
    backoff=_QUICK,
    lease_s=120.0,
    run_limit_s=240.0,
    contract=messages.REFUNDS,
)

CREDIT_HOLD: Final = Policy(
    "q:pay:credit_hold",
    max_attempts=6,
    backoff=_SLOW,
    lease_s=180.0,
    run_limit_s=300.0,
    contract=messages.CREDIT_HOLDS,
)
"""Reserves the credit of a plan change at payments, so that a refund cannot return it a second time."""

BILLING_CLOCK: Final = Policy(
    "q:sub:clock",
    max_attempts=6,
    backoff=Exponential(10.0, 2.0, 300.0, 5.0),
    lease_s=60.0,
    log="failures",
    contract=messages.BILLING_CLOCKS,
)
"""Periodic work: enqueues what is due, recognises revenue, and advances test clocks."""

PAYMENTS_CLOCK: Final = Policy(
    "q:pay:clock",
    max_attempts=6,
    backoff=Exponential(10.0, 2.0, 300.0, 5.0),
    lease_s=60.0,
    log="failures",
    contract=messages.PAYMENTS_CLOCKS,
)
"""Periodic work of payments: re-enqueues work that lost its message, and deletes old delivery attempts."""

SUBSCRIPTIONS_QUEUES: Final = (PAYMENT_INITIATION, TRIAL_PAYMENT, PLAN_CHANGE, USAGE_SYNC, BILLING_CLOCK)
PAYMENTS_QUEUES: Final = (CHARGE_INITIATION, SUBSCRIPTION_UPDATE, REFUND_INITIATION, CREDIT_HOLD, PAYMENTS_CLOCK)
QUEUES: Final = (*SUBSCRIPTIONS_QUEUES, *PAYMENTS_QUEUES)
