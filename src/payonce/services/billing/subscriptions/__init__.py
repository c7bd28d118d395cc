"""The subscription service: plans, subscriptions and invoices, and the work that falls due in the customer's time."""

from payonce.services.billing.subscriptions.handlers.new_subscriptions import process_trial_payment
from payonce.services.billing.subscriptions.handlers.plan_changes import process_plan_change
from payonce.services.billing.subscriptions.handlers.plan_migrations import migrate_plan
from payonce.services.billing.subscriptions.handlers.renewals import expire_incomplete, process_payment_initiation
from payonce.services.billing.subscriptions.handlers.test_clocks import move_clock
from payonce.services.billing.subscriptions.handlers.usage_sync import (
    USAGE_INVARIANTS,
    USAGE_SCHEDULES,
    process_usage_sync,
)
from payonce.services.billing.subscriptions.invariants.credit import CREDIT_INVARIANTS
from payonce.services.billing.subscriptions.invariants.subscriptions import APART_INVARIANTS
from payonce.services.billing.subscriptions.invariants.subscriptions import INVARIANTS as LIFE_INVARIANTS
from payonce.services.billing.subscriptions.metrics import observe_subscriptions
from payonce.services.billing.subscriptions.schedules import SCHEDULES as LIFE_SCHEDULES
from payonce.services.billing.subscriptions.schedules import clean_up, earn_revenue, put_back_billing, renew_due
from payonce.services.billing.subscriptions.store.lookup import find_subscriptions
from payonce.services.billing.subscriptions.store.monthly_figures import FIGURES_SCHEDULES, keep_figures
from payonce.services.billing.subscriptions.store.queries import is_used
from payonce.services.billing.subscriptions.store.subscriptions import APART_REFERENCES, NAMES, REFERENCES

HANDLERS = (
    process_payment_initiation,
    process_trial_payment,
    process_plan_change,
    expire_incomplete,
    renew_due,
    earn_revenue,
    put_back_billing,
    clean_up,
    move_clock,
    process_usage_sync,
    keep_figures,
    migrate_plan,
)

INVARIANTS = {**LIFE_INVARIANTS, **CREDIT_INVARIANTS, **USAGE_INVARIANTS}
SCHEDULES = (*LIFE_SCHEDULES, *USAGE_SCHEDULES, *FIGURES_SCHEDULES)

LOOKUPS = (find_subscriptions,)

__all__ = [
    "APART_INVARIANTS",
    "APART_REFERENCES",
    "HANDLERS",
    "INVARIANTS",
    "LOOKUPS",
    "NAMES",
    "REFERENCES",
    "SCHEDULES",
    "is_used",
    "observe_subscriptions",
]
