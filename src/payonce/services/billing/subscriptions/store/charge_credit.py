"""Coordinates credit for unused time with refunds of the same charge: an amount is returned one way only.

Payments records both on the charge's row. Before a plan change is invoiced, a message reserves its credit there; the
change is invoiced once payments has confirmed that it holds the amounts that the credit was computed from.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from payonce.engine.messages.transaction import Tx
from payonce.services.billing.messages import CONFIRM, HOLD, RELEASE
from payonce.services.billing.policies import CREDIT_HOLD
from payonce.services.billing.subscriptions.model import Invoice, InvoiceLine, LineKind, Subscription
from payonce.services.billing.wire import CreditConfirmation, CreditHold, CreditRelease, HeldCredit

Lines = Sequence[tuple[Invoice, InvoiceLine]]


async def request_hold(
    tx: Tx,
    subscription: Subscription,
    change_id: str,
    changed_at: datetime,
    round_: int,
    shares: Sequence[HeldCredit],
) -> None:
    """Requests a hold; payments answers with a notification in any case."""
    asked = CreditHold(
        change_id=change_id,
        subscription_id=subscription.id,
        account_id=subscription.account_id,
        changed_at=changed_at,
        round=round_,
        asked_at=await tx.fetchval("select payonce.due_now()"),
        credits=tuple(shares),
    )
    await tx.send(CREDIT_HOLD, msgspec.to_builtins(asked), action=HOLD, correlation_id=subscription.id)


async def confirm(tx: Tx, change: Invoice, left: Lines) -> None:
    """Confirms the credit of a change that takes effect. It is already held, unless an earlier version issued the
    change."""
    if shares := [each for each in credits_of(change.lines, left, {}) if each.minor]:
        message = CreditConfirmation(change_id=change.id, credits=tuple(shares))
        await tx.send(CREDIT_HOLD, msgspec.to_builtins(message), action=CONFIRM, correlation_id=change.subscription_id)


async def release(tx: Tx, change_id: str, subscription_id: str) -> None:
    """Releases the credit of a change that is not applied."""
    message = CreditRelease(change_id=change_id)
    await tx.send(CREDIT_HOLD, msgspec.to_builtins(message), action=RELEASE, correlation_id=subscription_id)


def credits_of(lines: Sequence[InvoiceLine], left: Lines, refunded_minor: Mapping[str, int]) -> list[HeldCredit]:
    """The share of each invoice's charge that a change with these lines returns, including shares of zero; what was
    paid from earlier credit is returned first. `refunded_minor` is by invoice."""
    unused = [line for line in lines if line.kind is LineKind.UNUSED]
    back = Counter[str]()
    for older, line in left:
        given = next((each for each in unused if each.service_end == line.service_end), None)
        if given is not None:
            unused.remove(given)
            back[older.id] -= given.amount.minor
    found = []
    for older in {older.id: older for older, _ in left}.values():
        billed = sum(line.amount.minor for line in older.lines if line.amount.minor > 0)
        minor = max(older.due.minor - billed + back[older.id], 0)
        if older.transaction_id is not None and not older.refunding:
            refunded = refunded_minor.get(older.id, older.refunded.minor)
            found.append(HeldCredit(transaction_id=older.transaction_id, minor=minor, refunded_minor=refunded))
    return sorted(found, key=lambda each: each.transaction_id)
