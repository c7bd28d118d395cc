"""Refunds: asked for within what was captured, then carried out at the gateway, each once; or noted as given back by
another way."""

from dataclasses import replace
from typing import Final

from payonce.engine.audit import Severity, note
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
    """A refund that cannot be, with the reason why."""


async def request(tx: Tx, transaction_id: str, amount: Amount | None, reason: str, key: str) -> Refund:
    """Puts a refund on record with the message that carries it out; the same key again is the same refund. `amount`
    None is all that can be given back. Refuses what would give back more than was captured, or a second time what came
    back as credit."""
    transaction = await _locked(tx, transaction_id)
    known = await refunds.by_key(tx, key)
    if known is not None:
        return _same(known, transaction, amount, outside=False)
    refund = await refunds.open_pending(tx, transaction, _fitting(transaction, amount), reason, key)
    await send(tx, refund, transaction, f"refund:{refund.id}")
    return refund


async def record_outside(tx: Tx, transaction_id: str, amount: Amount | None, reason: str, key: str) -> Refund:
    """Puts on record what went back by another way than the gateway, by bank or by hand: books, and what subscriptions
    are told, are as if the gateway had given it back. Refuses while the gateway may still give back something."""
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
    """Give back what a refund on record says; or put on record what subscriptions ask for."""
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
        # Nothing is given back for what cannot be a refund: a person sees it among what is parked.
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
    """Subscriptions tell by the key what of theirs was given back: a payout of credit, or an invoice."""
    if not 1 <= len(wanted.key) <= KEY_MAX_CHARS or not wanted.reason.strip():
        raise NotRefundable(f"a refund needs a reason and a key of 1 to {KEY_MAX_CHARS} characters")
    if wanted.key.startswith(CREDIT_KEY) is not wanted.from_credit:
        raise NotRefundable(
            f"key {wanted.key[:100]!r} does not fit: the key of a payout of credit begins with {CREDIT_KEY!r}, that of "
            "another refund does not"
        )


async def _record_request(work: Work, wanted: RefundRequest) -> None:
    transaction = await transactions.find(work.read, wanted.transaction_id)
    if transaction is None:
        raise NotRefundable(f"there is no transaction {wanted.transaction_id[:100]!r}")
    if transaction.state in TAKEN and not transaction.left:
        async with work.commit(rejected=f"all of transaction {transaction.id} is given back already"):
            return
    amount = None if wanted.amount_minor is None else Amount(wanted.amount_minor, transaction.amount.asset)
    async with work.commit() as tx:
        await request(tx, transaction.id, amount, wanted.reason, wanted.key)


async def _pay_out(work: Work, notifier: NotificationSender, wanted: RefundRequest) -> None:
    """Puts a payout of credit on record as a refund, or tells subscriptions why it cannot be one. Refused once it stays
    refused, however often it is asked for: the customer has the credit again."""
    if wanted.account_id is None or wanted.amount_minor is None or wanted.amount_minor <= 0 or wanted.currency is None:
        raise NotRefundable(f"payout {wanted.key} does not say an account, an amount above zero and its currency")
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
    """Only versions that held nothing as they changed a plan say so, afterwards."""
    if returned.credited_minor < 0:
        raise NotRefundable(f"credited_minor {returned.credited_minor} must not be below zero")
    async with work.commit() as tx:
        before = await transactions.locked(tx, returned.transaction_id)
        if before is None:
            raise NotRefundable(f"there is no transaction {returned.transaction_id[:100]!r}")
        after = await transactions.record_credit(tx, before, returned.credited_minor)
        if after.credited_minor > max(before.credited_minor, before.left.minor):
            # The refund was under way when a version that did not know of it changed the plan.
            await note(
                tx.connection,
                "billing.refunds",
                after.id,
                f"{after.credited - after.left} came back both in money and as credit; a person may take it back",
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
    """The money stays captured, and may be given back by another refund."""
    notice = notifications.of_refund(refund, transaction, failure, await transactions.now(work.read))
    log.error("refund_failed", refund=refund.id, transaction=transaction.id, reason=failure)
    async with work.commit(rejected=failure) as tx:
        await refunds.end(tx, refund, RefundState.FAILED, notice, failure=failure)
        await note(
            tx.connection,
            "billing.refunds",
            refund.id,
            f"{refund.amount} was not given back: {failure}",
            actor="billing.payments",
            severity=Severity.ERROR,
        )
        if notice is not None:
            await notifications.send(tx, notice)
    await notifier.at_once(notice)


async def _locked(tx: Tx, transaction_id: str) -> Transaction:
    """Of two refunds that fit each alone, the second sees the first."""
    transaction = await transactions.locked(tx, transaction_id)
    if transaction is None:
        raise NotRefundable(f"there is no transaction {transaction_id[:100]!r}")
    return transaction


def chosen(transaction: Transaction, amount: Amount | None) -> Amount:
    """The amount, or for None all that did not come back as credit. Refuses to give that back a second time, in
    money."""
    free = transaction.free
    amount = free if amount is None else amount
    again = amount.asset == free.asset and free < amount <= transaction.left
    if again or (not amount and transaction.credited):
        raise already_credited(transaction)
    return amount


def already_credited(transaction: Transaction) -> NotRefundable:
    return NotRefundable(
        f"{transaction.credited} of charge {transaction.id} came back as credit when the plan changed: "
        f"{transaction.free} can be given back without giving that twice; for more, pay out the credit of account "
        f"{transaction.account_id} (POST /v1/credit/payouts, or on the customer's page)"
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
            f"{amount} cannot be given back of transaction {transaction.id}: {transaction.left} of "
            f"{transaction.amount} is left"
        )


def _refuse_while_refunding(transaction: Transaction) -> None:
    if transaction.refunding:
        raise NotRefundable(
            f"a refund of {transaction.refunding} of transaction {transaction.id} is under way at the gateway; wait "
            "for its end, and note what went back outside if it fails"
        )


def _same(known: Refund, transaction: Transaction, amount: Amount | None, *, outside: bool) -> Refund:
    other = known.transaction_id != transaction.id or known.outside is not outside
    if other or (amount is not None and amount != known.amount):
        raise NotRefundable(f"a refund with the key {known.refund_key!r} is on record for something else; use another")
    return known
