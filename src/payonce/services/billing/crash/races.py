"""Scenarios in which several operations run at the same moment and their order decides the result. Every accepted plan
change must end, and credit must be used once."""

from datetime import datetime
from typing import Final

from payonce.engine.messages.transaction import Tx
from payonce.services.billing.crash.customers import CANCEL, CHANGE, EXPIRE, PAY_OUT, PERSON
from payonce.services.billing.crash.scenarios import (
    ACCOUNT,
    BASIC,
    CHANGED_AFTER,
    CREDIT,
    PAID_OUT,
    PRO,
    RENEWED_AFTER_S,
    BillingScenario,
    Ending,
    begin_with_credit,
    change_later,
)
from payonce.services.billing.policies import BILLING_CLOCK
from payonce.services.billing.subscriptions import schedules
from payonce.services.billing.subscriptions.handlers import new_subscriptions
from payonce.services.billing.wire import Action

INITIAL: Final = ("initial", 0, BASIC)


class CanceledChange(BillingScenario):
    """Seven days into the period the customer requests an upgrade and cancels at the end of the period, which then
    arrives."""

    def __init__(self) -> None:
        super().__init__(
            "billing-change-canceled",
            Ending("canceled", "basic-v1", [INITIAL]),
            Ending("canceled", "pro-v1", [INITIAL, ("upgrade", None, CREDIT)]),
        )

    async def _begin(self, tx: Tx, now: datetime) -> None:
        await new_subscriptions.start(tx, ACCOUNT, "basic", self.name)
        about, delay_s = {"subscription_id": self.name}, CHANGED_AFTER.total_seconds()
        await tx.send(PERSON, {**about, "plan_id": "pro"}, action=CHANGE, correlation_id=self.name, delay_s=delay_s)
        await tx.send(PERSON, about, action=CANCEL, correlation_id="cancel", delay_s=delay_s)
        await tx.send(BILLING_CLOCK, {}, action=schedules.RENEW, correlation_id="due", delay_s=RENEWED_AFTER_S)


class RenewedChange(BillingScenario):
    """A plan change requested within the period waits on its queue until the period is over, and runs beside the
    renewal."""

    def __init__(self) -> None:
        renewal = ("renewal", 1, BASIC)
        super().__init__(
            "billing-change-renewal",
            Ending("active", "pro-v1", [INITIAL, ("upgrade", None, CREDIT), ("renewal", 1, PRO)]),
            Ending("active", "basic-v1", [INITIAL, renewal]),
            Ending("active", "pro-v1", [INITIAL, renewal, ("upgrade", None, PRO - BASIC)]),
        )

    async def _begin(self, tx: Tx, now: datetime) -> None:
        await new_subscriptions.start(tx, ACCOUNT, "basic", self.name)
        await change_later(tx, self.name, "pro-v1", Action.UPGRADE, now, RENEWED_AFTER_S)
        await tx.send(BILLING_CLOCK, {}, action=schedules.RENEW, correlation_id="due", delay_s=RENEWED_AFTER_S)


class SharedCredit(BillingScenario):
    """At the end of the period the renewal uses credit, one operator pays out most of it, and another one lets the rest
    expire."""

    def __init__(self) -> None:
        left = CREDIT - PAID_OUT

        def ending(due: int, *paid_out: int) -> Ending:
            paid = [("initial", 0, PRO), ("downgrade", None, 0), ("renewal", 1, due)]
            return Ending("active", "basic-v1", paid, paid_out=paid_out)

        super().__init__(
            "billing-credit-shared", ending(0), ending(BASIC), ending(BASIC - left, PAID_OUT), ending(BASIC, PAID_OUT)
        )

    async def _begin(self, tx: Tx, now: datetime) -> None:
        await begin_with_credit(tx, now, self.name)
        about = {"account_id": ACCOUNT}
        await tx.send(
            PERSON, {**about, "minor": PAID_OUT}, action=PAY_OUT, correlation_id="pay-out", delay_s=RENEWED_AFTER_S
        )
        await tx.send(PERSON, about, action=EXPIRE, correlation_id="expire", delay_s=RENEWED_AFTER_S)
        await tx.send(BILLING_CLOCK, {}, action=schedules.RENEW, correlation_id="due", delay_s=RENEWED_AFTER_S)


RACES: Final = (CanceledChange(), RenewedChange(), SharedCredit())
