"""Credit for unused time, against refunds of the same charge: what goes back one way does not go back the other.

Payments keeps both on the row of the charge. Before a change of plan is issued, its credit is reserved there by a
message; the change is issued when payments has answered that it holds what the credit was computed from.
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
    """Payments answers with a notification, whether it holds the credit or not."""
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
    """The change takes effect. Its credit is held since before it was issued, unless an earlier version issued it."""
    if shares := [each for each in credits_of(change.lines, left, {}) if each.minor]:
        message = CreditConfirmation(change_id=change.id, credits=tuple(shares))
        await tx.send(CREDIT_HOLD, msgspec.to_builtins(message), action=CONFIRM, correlation_id=change.subscription_id)


async def release(tx: Tx, change_id: str, subscription_id: str) -> None:
    """The plan does not change, so nothing comes back as credit."""
    message = CreditRelease(change_id=change_id)
    await tx.send(CREDIT_HOLD, msgspec.to_builtins(message), action=RELEASE, correlation_id=subscription_id)


def credits_of(lines: Sequence[InvoiceLine], left: Lines, refunded_minor: Mapping[str, int]) -> list[HeldCredit]:
    """Of what each invoice was paid, how much a change with these lines gives back, also where that is nothing; what
    earlier credit had paid goes back first. `refunded_minor` is by invoice."""
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
