"""Putting what a caller asks for on record: once for each payment, with the books and the first message beside it."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from payonce.engine.audit import Severity, note
from payonce.engine.transaction import Reader, Tx
from payonce.kit.ids import new_id
from payonce.kit.log import get_logger
from payonce.services.payouts import books, sending, store
from payonce.services.payouts.currencies import NoList, what_is_wrong
from payonce.services.payouts.intake import Asked, NotTaken, unique_id_of
from payonce.services.payouts.model import Hold, Payout, State, payout_from

REPEAT_WITHIN_S: Final = 86_400.0
"""Unless both have a payment id, the same again within this time is taken for a repetition, and a person decides."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Taken:
    payout: Payout
    new: bool


async def check_currency(read: Reader, asked: Asked) -> None:
    """Against what the exchange said last. Before it ever said anything, nobody is refused: the estimator sees. Nor is
    a payment that is on record: it was taken, whatever the list says now."""
    try:
        wrong = await what_is_wrong(read, asked)
    except NoList:
        return
    if wrong is not None and not await _is_on_record(read, asked):
        raise NotTaken(HTTPStatus.UNPROCESSABLE_ENTITY, wrong.reason + wrong.advice)


async def receive(tx: Tx, asked: Asked, payout_id: str | None = None) -> Taken:
    """One payout for each payment. The same again is the same payout; another body under its id is refused."""
    payout_id = payout_id or str(new_id())
    payment = f"payment {asked.payment_id}" if asked.payment_id is not None else f"payout {payout_id}"
    repeated = await _is_repeated(tx, asked)
    row = await _insert(tx, payout_id, unique_id_of(payment), asked, repeated)
    if row is None:
        return Taken(await _on_record(tx, asked, unique_id_of(payment)), new=False)
    payout = payout_from(row)
    await tx.post(books.received(payout))
    if repeated:
        await store.keep(tx, payout, Hold.REPEATED, payout.reason or "", as_state=State.REVIEW)
    else:
        await sending.send_estimate(tx, payout)
    return Taken(payout, new=True)


async def _insert(tx: Tx, payout_id: str, unique_id: str, asked: Asked, repeated: bool) -> Any:
    reason = (
        "the same was asked for within a day, and not both had a payment id to tell them apart" if repeated else None
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
        payout_id, unique_id, asked.payment_id, asked.natural_key, asked.user_id, asked.closed_channel_id,
        asked.wallet_address, asked.extra_id, asked.payout_currency, asked.payout_network, asked.price.minor,
        asked.fee.minor, asked.adjusted.minor, State.REVIEW if repeated else State.RECEIVED,
        State.RECEIVED if repeated else None, Hold.REPEATED if repeated else None, reason, tx.trace_id,
        asked.says_extra_id,
    )  # fmt: skip


async def _is_repeated(tx: Tx, asked: Asked) -> bool:
    """Two payment ids tell two orders apart; one alone does not, whichever of both came with it."""
    # Two at the same moment would not see each other.
    await tx.execute("select pg_advisory_xact_lock(hashtextextended('payouts ' || $1, 0))", asked.natural_key)
    found: bool = await tx.fetchval(
        """
        select exists (select from payouts.payouts
            where natural_key = $1 and (payment_id is null or $3)
              and created_at > payonce.due_now() - make_interval(secs => $2::float8))
        """,
        asked.natural_key, REPEAT_WITHIN_S, asked.payment_id is None,
    )  # fmt: skip
    return found


async def _is_on_record(read: Reader, asked: Asked) -> bool:
    found: bool = await read.fetchval(
        "select exists (select from payouts.payouts where payment_id = $1)", asked.payment_id
    )
    return found


async def _on_record(tx: Tx, asked: Asked, unique_id: str) -> Payout:
    row = await tx.fetchrow("select * from payouts.payouts where payment_id = $1", asked.payment_id)
    if row is None:
        log.error("unique_id_taken", unique_id=unique_id)
        await note(
            tx.connection, "payouts.intake", unique_id,
            "two payments have the same unique_id; the later one was refused and needs another payment_id",
            actor="payouts", severity=Severity.ERROR,
        )  # fmt: skip
        raise Collision(unique_id)
    known = payout_from(row)
    if known.natural_key != asked.natural_key:
        raise NotTaken(
            HTTPStatus.CONFLICT, f"payment_id {asked.payment_id} is on record with other fields; use another id"
        )
    return known


class Collision(NotTaken):
    """Two payments whose unique ids meet. What says so in the audit log is written all the same."""

    def __init__(self, unique_id: str) -> None:
        super().__init__(
            HTTPStatus.CONFLICT,
            f"the unique_id {unique_id} belongs to another payment; send it under another payment_id",
        )
