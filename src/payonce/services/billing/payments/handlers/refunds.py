"""Refunds: requested within the captured amount, then executed once at the gateway; or recorded as made outside it."""

from dataclasses import replace
from typing import Final

from payonce.engine.audit import Severity
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.log import get_logger
from payonce.kit.money import Amount, asset_of
from payonce.kit.outcomes import Invalid, Refused, Unprocessable
from payonce.services.billing.messages import RefundRequest
from payonce.services.billing.payments import ledger
from payonce.services.billing.payments.effects import GatewayResult, RefundCharge
from payonce.services.billing.payments.handlers.notifications import NotificationSender
from payonce.services.billing.payments.handlers.refused_key import or_pause
from payonce.services.billing.payments.model import TAKEN, Refund, RefundState, Transaction
from payonce.services.billing.payments.store import notifications, refunds, transactions
from payonce.services.billing.policies import REFUND_INITIATION
from payonce.services.billing.wire import CREDIT_KEY, Action, RefundExecution, ReturnedCredit
from payonce.vendors.gateway.port import Gateway

KEY_MAX_CHARS: Final = 200

log = get_logger(__name__)


class NotRefundable(Invalid):
    """A refund that is not possible, with the reason."""


async def request(tx: Tx, transaction_id: str, amount: Amount | None, reason: str, key: str) -> Refund:
    """Records a refund with the message that executes it; a repeated key returns the same refund. Without `amount`,
    everything refundable is refunded. Raises NotRefundable for more than was captured, or for what was returned as
    credit."""
    transaction = await _locked(tx, transaction_id)
    known = await refunds.by_key(tx, key)
    if known is not None:
        return _same(known, transaction, amount, outside=False)
    refund = await refunds.open_pending(tx, transaction, _fitting(transaction, amount), reason, key)
    await send(tx, refund, transaction, f"refund:{refund.id}")
    return refund


async def record_outside(tx: Tx, transaction_id: str, amount: Amount | None, reason: str, key: str) -> Refund:
    """Records a refund made outside the gateway, by bank or in cash. The ledger and subscriptions see it like any other
    refund. Raises NotRefundable while the gateway may still process a refund of the charge."""
    transaction = await _locked(tx, transaction_id)
    known = await refunds.by_key(tx, key)
    if known is not None:
        return _same(known, transaction, amount, outside=True)
    _refuse_while_refunding(transaction)
    refund = await refunds.open_pending(tx, transaction, _fitting(transaction, amount), reason, key, outside=True)
    notice = notifications.of_refund(refund, transaction, None, await transactions.now(tx))
    await refunds.end(tx, refund, RefundState.SUCCEEDED, notice)
    await tx.post(ledger.refunded(refund, transaction))
    if notice is not None:
        await notifications.send(tx, notice)
    return replace(refund, state=RefundState.SUCCEEDED)


async def send(tx: Tx, refund: Refund, transaction: Transaction, key: str, *, delay_s: float = 0.0) -> None:
    await tx.send(
        REFUND_INITIATION,
        {"refund_id": refund.id},
        action=Action.REFUND.value,
        key=key,
        correlation_id=transaction.about,
        delay_s=delay_s,
    )


@handles(REFUND_INITIATION)
async def process_refund_initiation(work: Work, gateway: Gateway, notifier: NotificationSender) -> None:
    """Execute a recorded refund, or record a refund that subscriptions requests."""
    asked: ReturnedCredit | RefundRequest | RefundExecution = work.payload
    try:
        match asked:
            case ReturnedCredit():
                await _record_returned_credit(work, asked)
                return
            case RefundRequest():
                _check_key(asked)
                await (_pay_out(work, notifier, asked) if asked.from_credit else _record_request(work, asked))
                return
            case RefundExecution(refund_id=refund_id):
                refund, transaction = await _on_record(work, refund_id)
    except Invalid as refusal:
        # An invalid refund request is never executed; it is parked for an operator.
        raise Unprocessable(str(refusal)) from None
    if refund.state is not RefundState.PENDING:
        return
    assert transaction.gateway_id is not None
    try:
        async with or_pause(work):
            result = await work.effect(RefundCharge(gateway, refund, transaction.gateway_id), key=refund.id)
    except Refused as refused:
        await _fail(work, notifier, refund, transaction, refused.reason)
        return
    await _succeed(work, notifier, refund, transaction, result)


async def _on_record(work: Work, refund_id: str) -> tuple[Refund, Transaction]:
    refund = await refunds.find(work.read, refund_id)
    transaction = None if refund is None else await transactions.find(work.read, refund.transaction_id)
    if refund is None or transaction is None:
        raise Invalid(f"there is no refund {refund_id[:100]!r}")
    return refund, transaction


def _check_key(wanted: RefundRequest) -> None:
    """The key tells subscriptions what was refunded: a credit payout or an invoice."""
    if not 1 <= len(wanted.key) <= KEY_MAX_CHARS or not wanted.reason.strip():
        raise NotRefundable(f"a refund needs a reason and a key of 1 to {KEY_MAX_CHARS} characters")
    if wanted.key.startswith(CREDIT_KEY) is not wanted.from_credit:
        raise NotRefundable(
            f"key {wanted.key[:100]!r} does not match: keys of credit payouts begin with {CREDIT_KEY!r}, other "
            "keys do not"
        )


async def _record_request(work: Work, wanted: RefundRequest) -> None:
    transaction = await transactions.find(work.read, wanted.transaction_id)
    if transaction is None:
        raise NotRefundable(f"there is no transaction {wanted.transaction_id[:100]!r}")
    if transaction.state in TAKEN and not transaction.left:
        async with work.commit(rejected=f"transaction {transaction.id} is fully refunded already"):
            return
    amount = None if wanted.amount_minor is None else Amount(wanted.amount_minor, transaction.amount.asset)
    async with work.commit() as tx:
        await request(tx, transaction.id, amount, wanted.reason, wanted.key)


async def _pay_out(work: Work, notifier: NotificationSender, wanted: RefundRequest) -> None:
    """Records a credit payout as a refund, or notifies subscriptions why it is refused. A refusal is final, since the
    customer then has the credit again."""
    if wanted.account_id is None or wanted.amount_minor is None or wanted.amount_minor <= 0 or wanted.currency is None:
        raise NotRefundable(f"payout {wanted.key} lacks an account, an amount above zero or its currency")
    amount, notice = Amount(wanted.amount_minor, asset_of(wanted.currency)), None
    async with work.commit() as tx:
        transaction = await transactions.locked(tx, wanted.transaction_id)
        known = await refunds.by_key(tx, wanted.key)
        if known is not None or await refunds.was_refused(tx, notifications.refused_id(wanted.key)):
            return
        try:
            if transaction is None or transaction.account_id != wanted.account_id:
                raise NotRefundable(f"account {wanted.account_id} has no transaction {wanted.transaction_id[:100]!r}")
            _check_left(transaction, amount)
        except NotRefundable as refusal:
            about = work.message.correlation_id or wanted.account_id
            notice = notifications.of_refused(
                wanted.key, wanted.account_id, amount, str(refusal), about, await transactions.now(tx)
            )
            await refunds.record_refusal(tx, notice)
            await notifications.send(tx, notice)
        else:
            refund = await refunds.open_pending(tx, transaction, amount, wanted.reason, wanted.key, from_credit=True)
            await send(tx, refund, transaction, f"refund:{refund.id}")
    await notifier.at_once(notice)


async def _record_returned_credit(work: Work, returned: ReturnedCredit) -> None:
    """Sent after a plan change by earlier versions, which held no credit before it."""
    if returned.credited_minor < 0:
        raise NotRefundable(f"credited_minor {returned.credited_minor} must not be below zero")
    async with work.commit() as tx:
        before = await transactions.locked(tx, returned.transaction_id)
        if before is None:
            raise NotRefundable(f"there is no transaction {returned.transaction_id[:100]!r}")
        after = await transactions.record_credit(tx, before, returned.credited_minor)
        if after.credited_minor > max(before.credited_minor, before.left.minor):
            # The refund was in progress when an earlier version changed the plan.
            await tx.audit(
                "billing.refunds",
                after.id,
                f"{after.credited - after.left} was returned both as money and as credit; an operator may reclaim it",
                actor="billing.payments",
                severity=Severity.ERROR,
            )


async def _succeed(
    work: Work, notifier: NotificationSender, refund: Refund, transaction: Transaction, result: GatewayResult
) -> None:
    notice = notifications.of_refund(refund, transaction, None, await transactions.now(work.read))
    async with work.commit() as tx:
        await refunds.end(tx, refund, RefundState.SUCCEEDED, notice, gateway_id=result.id)
        await tx.post(ledger.refunded(refund, transaction))
        if notice is not None:
            await notifications.send(tx, notice)
    await notifier.at_once(notice)


async def _fail(
    work: Work, notifier: NotificationSender, refund: Refund, transaction: Transaction, failure: str
) -> None:
    """The money stays captured, and another refund may be requested."""
    notice = notifications.of_refund(refund, transaction, failure, await transactions.now(work.read))
    log.error("refund_failed", refund=refund.id, transaction=transaction.id, reason=failure)
    async with work.commit(rejected=failure) as tx:
        await refunds.end(tx, refund, RefundState.FAILED, notice, failure=failure)
        await tx.audit(
            "billing.refunds",
            refund.id,
            f"{refund.amount} was not refunded: {failure}",
            actor="billing.payments",
            severity=Severity.ERROR,
        )
        if notice is not None:
            await notifications.send(tx, notice)
    await notifier.at_once(notice)


async def _locked(tx: Tx, transaction_id: str) -> Transaction:
    """Locks the charge: of two refunds that each fit on their own, the second sees the first."""
    transaction = await transactions.locked(tx, transaction_id)
    if transaction is None:
        raise NotRefundable(f"there is no transaction {transaction_id[:100]!r}")
    return transaction


def chosen(transaction: Transaction, amount: Amount | None) -> Amount:
    """The amount to refund, by default everything that was not returned as credit. Raises NotRefundable for an amount
    that was returned as credit."""
    free = transaction.free
    amount = free if amount is None else amount
    again = amount.asset == free.asset and free < amount <= transaction.left
    if again or (not amount and transaction.credited):
        raise already_credited(transaction)
    return amount


def already_credited(transaction: Transaction) -> NotRefundable:
    return NotRefundable(
        f"{transaction.credited} of charge {transaction.id} was returned as credit at a plan change, so "
        f"{transaction.free} is refundable; for more, pay out the credit of account {transaction.account_id} "
        "(POST /v1/credit/payouts, or on the customer's page)"
    )


def _fitting(transaction: Transaction, amount: Amount | None) -> Amount:
    amount = chosen(transaction, amount)
    _check_left(transaction, amount)
    return amount


def _check_left(transaction: Transaction, amount: Amount) -> None:
    if transaction.state not in TAKEN:
        raise NotRefundable(f"transaction {transaction.id} is {transaction.state}: nothing was captured")
    if amount.asset != transaction.amount.asset or not 0 < amount.minor <= transaction.left.minor:
        raise NotRefundable(
            f"{amount} of transaction {transaction.id} cannot be refunded: {transaction.left} of "
            f"{transaction.amount} is left"
        )


def _refuse_while_refunding(transaction: Transaction) -> None:
    if transaction.refunding:
        raise NotRefundable(
            f"the gateway is processing a refund of {transaction.refunding} of transaction {transaction.id}; wait "
            "for its end, and record a refund outside the gateway if it fails"
        )


def _same(known: Refund, transaction: Transaction, amount: Amount | None, *, outside: bool) -> Refund:
    other = known.transaction_id != transaction.id or known.outside is not outside
    if other or (amount is not None and amount != known.amount):
        raise NotRefundable(
            f"a refund with the key {known.refund_key!r} is recorded for something else; use another key"
        )
    return known
