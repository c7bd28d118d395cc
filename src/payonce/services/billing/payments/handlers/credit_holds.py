"""Coordinates the credit of plan changes with refunds of the same charge: an amount is returned one way only.

Subscriptions reserves the credit before it issues a change. Refunds and holds lock the charge, so the later of two sees
the earlier.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from payonce.engine.audit import Severity
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.money import Amount
from payonce.kit.outcomes import Unprocessable
from payonce.services.billing.messages import CONFIRM, HOLD, RELEASE
from payonce.services.billing.payments.handlers.notifications import NotificationSender
from payonce.services.billing.payments.store import notifications, transactions
from payonce.services.billing.policies import CREDIT_HOLD
from payonce.services.billing.wire import CreditConfirmation, CreditHold, CreditRelease, HeldCredit, Status


@handles(CREDIT_HOLD, HOLD)
async def process_credit_hold(work: Work, notifier: NotificationSender) -> None:
    """Hold the credit of a plan change, or answer with the refunds made in between."""
    asked: CreditHold = work.payload
    async with work.commit() as tx:
        agreed, shares = await hold(tx, asked)
        status = Status.SUCCESS if agreed else Status.FAILED
        notice = notifications.of_credit_hold(str(work.message.id), asked, status, shares, await transactions.now(tx))
        await notifications.record(tx, notice)
        await notifications.send(tx, notice)
    await notifier.at_once(notice)


@handles(CREDIT_HOLD, CONFIRM)
async def process_credit_confirmation(work: Work) -> None:
    """Ensure that the credit of an applied change is held."""
    request: CreditConfirmation = work.payload
    async with work.commit() as tx:
        await locked_refunds(tx, request.credits)
        now = await transactions.now(tx)
        for share in request.credits:
            both = await hold_share(tx, request.change_id, share, now)
            charge = await transactions.find(tx, share.transaction_id) if both else None
            if charge is not None and both:
                # An earlier version issued the change without a hold, and a refund came in between.
                twice = Amount(both, charge.amount.asset)
                await tx.audit(
                    "billing.refunds",
                    charge.id,
                    f"{twice} was returned both as money and as credit; an operator may reclaim it",
                    actor="billing.payments",
                    severity=Severity.ERROR,
                )


@handles(CREDIT_HOLD, RELEASE)
async def process_credit_release(work: Work) -> None:
    """Release the credit of a change that was not applied, so that refunds may use it."""
    request: CreditRelease = work.payload
    async with work.commit() as tx:
        await tx.execute("select payments.release_credit($1)", request.change_id)


async def hold(tx: Tx, asked: CreditHold) -> tuple[bool, list[HeldCredit]]:
    """Whether the credit is held, and the request with the current refunds. A hold replaces the change's previous one
    unless that was requested later."""
    refunded = await locked_refunds(tx, asked.credits)
    known = [
        msgspec.structs.replace(share, refunded_minor=refunded.get(share.transaction_id, share.refunded_minor))
        for share in asked.credits
    ]
    if known != list(asked.credits) or await _is_outdated(tx, asked):
        return False, known
    await tx.execute("select payments.release_credit($1)", asked.change_id)
    for share in asked.credits:
        if share.minor > 0:
            await hold_share(tx, asked.change_id, share, asked.asked_at)
    return True, known


async def locked_refunds(tx: Tx, shares: Sequence[HeldCredit]) -> Mapping[str, int]:
    """The amount of each charge that is refunded or being refunded, in minor units. The charges stay locked until the
    transaction ends. Raises Unprocessable for an unknown charge."""
    rows = await tx.fetch(
        "select transaction_id, minor from payments.going_back($1::text[])", [each.transaction_id for each in shares]
    )
    found = {row["transaction_id"]: row["minor"] for row in rows}
    if missing := next((each.transaction_id for each in shares if each.transaction_id not in found), None):
        raise Unprocessable(f"there is no transaction {missing[:100]!r} to hold credit of")
    return found


async def hold_share(tx: Tx, change_id: str, share: HeldCredit, asked_at: datetime) -> int | None:
    """The amount of the charge that is now returned both ways, in minor units; None if the change already holds credit
    of it."""
    both: int | None = await tx.fetchval(
        """
        with held as (
            insert into payments.credits_held (change_id, transaction_id, minor, created_at)
            select $1, t.id, least($3, t.amount_minor - t.credited_minor), $4
            from payments.transactions t where t.id = $2
            on conflict do nothing returning transaction_id, minor
        )
        update payments.transactions t
        set credited_minor = t.credited_minor + h.minor, updated_at = payonce.due_now()
        from held h where t.id = h.transaction_id
        returning greatest(
            t.refunded_minor + t.refunding_minor - t.paid_out_minor + t.credited_minor - t.amount_minor, 0)
        """,
        change_id,
        share.transaction_id,
        share.minor,
        asked_at,
    )
    return both


async def _is_outdated(tx: Tx, asked: CreditHold) -> bool:
    found: bool = await tx.fetchval(
        "select exists (select from payments.credits_held where change_id = $1 and created_at > $2)",
        asked.change_id,
        asked.asked_at,
    )
    return found
