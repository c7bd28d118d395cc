"""Charges requested by subscriptions or by payments' own API, each executed once at the gateway."""

from datetime import datetime
from typing import Any, Final

from payonce.engine.messages.work import Work, handles
from payonce.kit.ids import new_id
from payonce.kit.log import get_logger
from payonce.kit.money import asset_of
from payonce.kit.outcomes import Invalid, Refused, Unprocessable
from payonce.services.billing.messages import RecordedCharge
from payonce.services.billing.payments import ledger
from payonce.services.billing.payments.effects import NO_CARD, ChargeCard, ChargeFailure, GatewayResult, read_failure
from payonce.services.billing.payments.handlers import refunds
from payonce.services.billing.payments.handlers.notifications import NotificationSender
from payonce.services.billing.payments.handlers.refused_key import or_pause
from payonce.services.billing.payments.metrics import count_charge
from payonce.services.billing.payments.model import State, Transaction, pending_transaction
from payonce.services.billing.payments.store import notifications, transactions
from payonce.services.billing.policies import CHARGE_INITIATION
from payonce.services.billing.wire import Action, Charge
from payonce.vendors.gateway.port import AMOUNT_MAX, Gateway

ID_MAX_CHARS: Final = 100
ASKED_FOR: Final = frozenset({Action.INITIAL, Action.TRIAL, Action.RENEWAL, Action.UPGRADE, Action.DOWNGRADE})
ALREADY_PAID: Final = "already_paid"
TRIAL_REASON: Final = "the trial price is refunded"

log = get_logger(__name__)


@handles(CHARGE_INITIATION)
async def process_charge_initiation(work: Work, gateway: Gateway, notifier: NotificationSender) -> None:
    """Charges the account's card. Running twice is harmless: the key consists of invoice and attempt."""
    try:
        wanted = await _requested_transaction(work)
        standing = await transactions.charge_context(work.read, wanted.charge_key, wanted.account_id, wanted.invoice_id)
        known = standing.transaction
        if known is not None and _order(known) != _order(wanted):
            raise Invalid(f"charge {wanted.charge_key} is recorded with another amount, account or purpose")
    except Invalid as refusal:
        # An invalid charge request is never sent; it is parked for an operator.
        raise Unprocessable(str(refusal)) from None
    if known is not None and known.state is not State.PENDING:
        return
    wanted = known or wanted
    if wanted.payment_method_id is None and standing.paid_by is not None:
        log.error("invoice_charged_again", invoice=wanted.invoice_id, transaction=standing.paid_by)
        why = f"transaction {standing.paid_by} has already paid invoice {wanted.invoice_id}"
        await _fail(work, notifier, wanted, ChargeFailure(ALREADY_PAID, False, why), standing.now)
        return
    if standing.card is None:
        await _fail(
            work, notifier, wanted, ChargeFailure(NO_CARD, True, "the account has no payment method"), standing.now
        )
        return
    card = standing.card
    try:
        async with or_pause(work):
            result = await work.effect(
                ChargeCard(gateway, wanted, card.token),
                key=wanted.charge_key,
                scope=_scope(wanted),
                intent=lambda tx: transactions.begin(tx, wanted, card),
            )
    except Refused as refused:
        await _fail(work, notifier, wanted, read_failure(refused), standing.now)
        return
    await _succeed(work, notifier, wanted, result, card, standing.now)


async def _succeed(
    work: Work,
    notifier: NotificationSender,
    transaction: Transaction,
    result: GatewayResult,
    card: transactions.ChargedCard,
    now: datetime,
) -> None:
    notice = notifications.of_charge(transaction, None, now, {"card_brand": card.brand, "card_last4": card.last4})
    async with work.commit() as tx:
        await transactions.end(tx, transaction.id, State.SUCCEEDED, notice, gateway_id=result.id)
        await tx.post(ledger.captured(transaction))
        if notice is not None:
            await notifications.send(tx, notice)
        if transaction.action is Action.TRIAL:
            await refunds.request(tx, transaction.id, None, TRIAL_REASON, f"trial:{transaction.id}")
    count_charge(State.SUCCEEDED, None)
    await notifier.at_once(notice)


async def _fail(
    work: Work, notifier: NotificationSender, transaction: Transaction, failure: ChargeFailure, now: datetime
) -> None:
    notice = notifications.of_charge(transaction, failure, now)
    async with work.commit(rejected=f"{failure.code}: {failure.reason}") as tx:
        await transactions.open_pending(tx, transaction)
        await transactions.end(tx, transaction.id, State.FAILED, notice, gateway_id=failure.charge_id, failure=failure)
        if notice is not None:
            await notifications.send(tx, notice)
    count_charge(State.FAILED, failure.code)
    await notifier.at_once(notice)


async def _requested_transaction(work: Work) -> Transaction:
    """The requested transaction. Raises Invalid for one that can never be charged."""
    asked: Charge | RecordedCharge = work.payload
    if isinstance(asked, RecordedCharge):
        found = await transactions.find(work.read, asked.transaction_id)
        if found is None:
            raise Invalid(f"there is no transaction {asked.transaction_id[:ID_MAX_CHARS]!r} to charge")
        return found
    _check(asked)
    return pending_transaction(
        str(new_id()),
        asked.key,
        asked.account_id,
        asked.action,
        asked.amount,
        subscription_id=asked.subscription_id,
        invoice_id=asked.invoice_id,
        generation=asked.generation,
        trace_id=work.message.trace,
    )


def _check(asked: Charge) -> None:
    for name, text in (
        ("invoice_id", asked.invoice_id),
        ("account_id", asked.account_id),
        ("subscription_id", asked.subscription_id),
    ):
        if not 1 <= len(text) <= ID_MAX_CHARS or not text.isascii() or not text.isprintable() or ":" in text:
            raise Invalid(f"{name} {text[:40]!r} must have 1 to {ID_MAX_CHARS} printable characters and no colon")
    if asked.action not in ASKED_FOR:
        raise Invalid(f"action {asked.action} is not a charge; it must be one of {', '.join(sorted(ASKED_FOR))}")
    if not 0 < asked.amount_minor <= AMOUNT_MAX or asked.generation < 1:
        raise Invalid(f"amount_minor {asked.amount_minor} and generation {asked.generation} must be above zero")
    currency = asset_of(asked.currency)
    if asked.amount.asset != currency:
        # The gateway uses its own exponents: with different decimals it would charge another amount.
        raise Invalid(f"{currency.code} has {currency.exponent} decimals, not {asked.exponent}")


def _order(transaction: Transaction) -> tuple[Any, ...]:
    """The fields that every request with the same key must repeat."""
    return (
        transaction.account_id,
        transaction.subscription_id,
        transaction.invoice_id,
        transaction.generation,
        transaction.action,
        transaction.amount,
    )


def _scope(transaction: Transaction) -> str:
    """Serialises the charges of one invoice, also across attempts."""
    if transaction.invoice_id is None:
        return f"billing_transaction:{transaction.id}"
    return f"billing_invoice:{transaction.invoice_id}"
