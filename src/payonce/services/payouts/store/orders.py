"""Recording orders: one payout per payment, with its postings and its first message in the same transaction."""

from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from payonce.engine.audit import Severity
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.ids import new_id
from payonce.kit.log import get_logger
from payonce.services.payouts import ledger
from payonce.services.payouts.api.webhook import DERIVED, PayoutOrder, WebhookRefused, unique_id_of
from payonce.services.payouts.domain.addresses import key_of
from payonce.services.payouts.handlers import next_messages
from payonce.services.payouts.model import Hold, Payout, State, payout_from
from payonce.services.payouts.store import payouts
from payonce.services.payouts.store.currencies import NoCurrencyList, find_currency_problem

REPEAT_WITHIN_S: Final = 86_400.0
"""Unless both have a payment id, equal orders within this time count as a repetition, and an operator decides."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Intake:
    payout: Payout
    new: bool


async def check_currency(read: Reader, asked: PayoutOrder) -> None:
    """Checks the coin against our copy of the exchange's list; raises WebhookRefused. Without a copy every coin passes,
    and the estimator checks later. A payment on record passes too: it was accepted before."""
    try:
        wrong = await find_currency_problem(read, asked)
    except NoCurrencyList:
        return
    if wrong is not None and not await _is_on_record(read, asked):
        raise WebhookRefused(HTTPStatus.UNPROCESSABLE_ENTITY, wrong.reason + wrong.advice)


async def receive(tx: Tx, asked: PayoutOrder, payout_id: str | None = None, *, estimate: bool = True) -> Intake:
    """Records one payout per payment and requests its estimate (unless `estimate` is false). Repeating the order
    returns the same payout; another body under its payment id raises WebhookRefused."""
    payout_id = payout_id or str(new_id())
    repeated = await _is_repeated(tx, asked)
    if asked.derives_payment_id:
        asked = replace(asked, payment_id=await _derived_payment_id(tx, asked))
    payment = f"payment {asked.payment_id}" if asked.payment_id is not None else f"payout {payout_id}"
    row = await _insert(tx, payout_id, unique_id_of(payment), asked, repeated)
    if row is None:
        return Intake(await _on_record(tx, asked, unique_id_of(payment)), new=False)
    payout = payout_from(row)
    await tx.post(ledger.received(payout))
    tx.log(
        "payout_received",
        payout=payout.id,
        unique_id=payout.unique_id,
        payment=payout.payment_id,
        price=str(payout.price),
        fee=str(payout.fee),
        amount=str(payout.adjusted),
    )
    if repeated:
        await payouts.hold_payout(tx, payout, Hold.REPEATED, payout.reason or "", as_state=State.REVIEW)
    elif estimate:
        await next_messages.send_estimate(tx, payout)
    return Intake(payout, new=True)


async def _insert(tx: Tx, payout_id: str, unique_id: str, asked: PayoutOrder, repeated: bool) -> Any:
    reason = (
        "an equal order arrived within a day, and without two payment ids they cannot be told apart"
        if repeated
        else None
    )
    return await tx.fetchrow(
        """
        insert into payouts.payouts (
            id, unique_id, payment_id, natural_key, user_id, closed_channel_id, wallet_address, extra_id,
            payout_currency, payout_network, price_minor, fee_minor, adjusted_minor, state, held_from, hold, reason,
            trace_id, says_extra_id)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
        on conflict do nothing returning *
        """,
        payout_id,
        unique_id,
        asked.payment_id,
        asked.natural_key,
        asked.user_id,
        asked.closed_channel_id,
        asked.wallet_address,
        asked.extra_id,
        asked.payout_currency,
        asked.payout_network,
        asked.price.minor,
        asked.fee.minor,
        asked.adjusted.minor,
        State.REVIEW if repeated else State.RECEIVED,
        State.RECEIVED if repeated else None,
        Hold.REPEATED if repeated else None,
        reason,
        tx.trace_id,
        asked.says_extra_id,
    )


async def _is_repeated(tx: Tx, asked: PayoutOrder) -> bool:
    """Two payment ids distinguish two orders; a single one does not, whichever order it came with. A payout adopted
    from an older service's token has no price of ours, so its adjusted amount is compared."""
    # Without the lock two concurrent orders would not see each other.
    client = f"{asked.user_id} {asked.closed_channel_id}"
    await tx.execute("select pg_advisory_xact_lock(hashtextextended('payouts ' || $1, 0))", client)
    found: bool = await tx.fetchval(
        """
        select exists (select from payouts.payouts
            where user_id = $4 and created_at > payonce.due_now() - make_interval(secs => $2::float8)
              and (payment_id is null or starts_with(payment_id, $11) or $3)
              and (natural_key = any($1::text[]) or (
                closed_channel_id = $5 and payouts.address_key(wallet_address) = $6 and extra_id is not distinct from $7
                and payout_currency = $8 and payout_network = $9 and adjusted_minor = $10)))
        """,
        sorted(asked.natural_keys),
        REPEAT_WITHIN_S,
        asked.payment_id is None,
        asked.user_id,
        asked.closed_channel_id,
        key_of(asked.wallet_address),
        asked.extra_id,
        asked.payout_currency,
        asked.payout_network,
        asked.adjusted.minor,
        DERIVED,
    )
    return found


async def _derived_payment_id(tx: Tx, asked: PayoutOrder) -> str:
    """Derived from the fields and their count, as a renewal has the same fields. Needs the lock of `_is_repeated`."""
    before: int = await tx.fetchval(
        "select count(*) from payouts.payouts where natural_key = any($1::text[])", sorted(asked.natural_keys)
    )
    return f"{DERIVED}{asked.natural_key[:32]}:{before + 1}"


async def _is_on_record(read: Reader, asked: PayoutOrder) -> bool:
    found: bool = await read.fetchval(
        "select exists (select from payouts.payouts where payment_id = $1)", asked.payment_id
    )
    return found


async def _on_record(tx: Tx, asked: PayoutOrder, unique_id: str) -> Payout:
    row = await tx.fetchrow("select * from payouts.payouts where payment_id = $1", asked.payment_id)
    if row is None:
        log.error("unique_id_taken", unique_id=unique_id)
        await tx.audit(
            "payouts.intake",
            unique_id,
            "two payments have the same unique_id; the second was refused and needs another payment_id",
            actor="payouts",
            severity=Severity.ERROR,
        )
        raise UniqueIdCollision(unique_id)
    known = payout_from(row)
    if known.natural_key not in asked.natural_keys:
        raise WebhookRefused(
            HTTPStatus.CONFLICT, f"payment_id {asked.payment_id} is on record with other fields; use another id"
        )
    return known


class UniqueIdCollision(WebhookRefused):
    """Two payments have the same unique id. The note in the audit log is committed nevertheless."""

    def __init__(self, unique_id: str) -> None:
        super().__init__(
            HTTPStatus.CONFLICT,
            f"the unique_id {unique_id} belongs to another payment; send it under another payment_id",
        )
