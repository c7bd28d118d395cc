"""Payouts on record: reads, state changes, and holding a payout for an operator."""

from datetime import datetime
from typing import Any, Final

from payonce.engine.audit import Severity
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.messages.work import Work
from payonce.engine.webhooks import announce
from payonce.kit.money import Amount
from payonce.kit.outcomes import Retry
from payonce.services.payouts.messages.tokens import hops
from payonce.services.payouts.model import TRANSITIONS, Hold, Payout, State, payout_from

REFERENCES: Final = {
    "payout": "select id from payouts.payouts where id = any($1::text[])",
    "payout_swap": "select id from payouts.swaps where id = any($1::text[])",
}
"""The references of postings: queries that return which of some ids exist."""
NAMES: Final = """
    select id from payouts.payouts where payment_id = $1
    union select id from payouts.payouts where unique_id = upper($1)"""
"""Finds payouts by the names that callers and older services use."""
REASON_MAX_LENGTH: Final = 500
CAUSE_MAX_LENGTH: Final = 400
"""Leaves room for the sentence around the cause."""
LISTED_MAX: Final = 200

EVENTS: Final = {
    State.PRICED: "payout.priced",
    State.PAID_IN: "payout.paid",
    State.FINISHED: "payout.finished",
    State.HELD: "payout.held",
    State.REVIEW: "payout.held",
}
"""The events of customers' webhooks; they are announced in the transaction that moves the payout."""


async def payout(read: Reader | Tx, payout_id: str | None) -> Payout:
    row = await read.fetchrow("select * from payouts.payouts where id = $1", payout_id)
    if row is None:
        raise Retry(f"there is no payout {payout_id!r}")
    return payout_from(row)


async def find(read: Reader | Tx, payout_id: str) -> Payout | None:
    row = await read.fetchrow("select * from payouts.payouts where id = $1", payout_id)
    return None if row is None else payout_from(row)


async def find_now(read: Reader, payout_id: str) -> tuple[Payout, int] | None:
    """The payout and the database's time in whole seconds; None if there is no such payout."""
    row = await read.fetchrow(
        "select *, floor(extract(epoch from payonce.due_now()))::bigint as now_s from payouts.payouts where id = $1",
        payout_id,
    )
    return None if row is None else (payout_from(row), row["now_s"])


async def payout_by_unique_id(read: Reader | Tx, unique_id: str) -> Payout:
    row = await read.fetchrow("select * from payouts.payouts where unique_id = $1", unique_id)
    if row is None:
        raise Retry(f"there is no payout with the unique_id {unique_id!r}")
    return payout_from(row)


async def locked(tx: Tx, payout_id: str) -> Payout:
    """Locks the payout until the transaction ends. Raises Retry if there is none."""
    row = await tx.fetchrow("select * from payouts.payouts where id = $1 for update", payout_id)
    if row is None:
        raise Retry(f"there is no payout {payout_id!r}")
    return payout_from(row)


async def list_payouts(
    read: Reader, state: State | None, after: str | None, limit: int, since: datetime | None = None
) -> list[Payout]:
    """The newest first; `after` is the last id of the previous page."""
    rows = await read.fetch(
        """
        select * from payouts.payouts
        where ($1::text is null or state = $1)
          and ($2::text is null or (created_at, id) < (select created_at, id from payouts.payouts where id = $2))
          and created_at >= coalesce($4::timestamptz, '-infinity')
        order by created_at desc, id desc limit $3
        """,
        state,
        after,
        min(limit, LISTED_MAX),
        since,
    )
    return [payout_from(row) for row in rows]


async def move(
    tx: Tx, payout: Payout, after: State, *, value: Amount | None = None, reason: str | None = None
) -> Payout:
    """Moves a payout by compare-and-set and announces the event; raises Retry if its state has changed meanwhile."""
    if after not in TRANSITIONS[payout.state]:
        raise AssertionError(f"a payout does not go from {payout.state} to {after}")
    minor = None if value is None else value.minor
    row = await tx.fetchrow(
        """
        update payouts.payouts
        set state = $3, value_minor = coalesce($4, value_minor), reason = $5, hold = null, held_from = null,
            revision = revision + 1, updated_at = payonce.due_now()
        where id = $1 and state = $2 returning *
        """,
        payout.id,
        payout.state,
        after,
        minor,
        reason,
    )
    if row is None:
        raise Retry(f"payout {payout.id} is no longer {payout.state}")
    after_move = payout_from(row)
    _write_line(tx, after_move)
    # A payout priced again after a failed swap keeps its price.
    repriced = after is State.PRICED and payout.state is not State.RECEIVED
    return after_move if repriced else await _announced(tx, after_move)


async def hold_payout(
    tx: Tx, payout: Payout, hold: Hold, reason: str, *, as_state: State = State.HELD, goes_on: State | None = None
) -> Payout:
    """Holds a payout: `HELD` if something about it must change, `REVIEW` if it is unknown what happened. A payout held
    already only gets the newer reason. `goes_on` is the state from which it continues, if not the present one."""
    was_kept = payout.held_from is not None
    if not was_kept and as_state not in TRANSITIONS[payout.state]:
        raise AssertionError(f"a payout that is {payout.state} cannot be held")
    row = await tx.fetchrow(
        """
        update payouts.payouts
        set state = $3, held_from = coalesce($6, held_from, state), hold = $4, reason = $5,
            revision = revision + 1, updated_at = payonce.due_now()
        where id = $1 and state = $2 returning *
        """,
        payout.id,
        payout.state,
        as_state,
        hold,
        reason[:REASON_MAX_LENGTH],
        goes_on,
    )
    if row is None:
        raise Retry(f"payout {payout.id} is no longer {payout.state}")
    await tx.audit(
        "payouts.held",
        payout.id,
        f"{as_state} at {payout.standing}, {hold}: {reason}",
        actor="payouts",
        severity=Severity.WARNING,
    )
    kept = payout_from(row)
    tx.log("payout_held", level="warning", payout=kept.id, state=kept.state.value, hold=str(hold), reason=reason)
    return kept if was_kept else await _announced(tx, kept)


async def give_up(work: Work) -> None:
    """Sends the payout to review when its queue's policy gives up. A payout that has moved on stays as it is; a message
    without a payout is parked."""
    reason = f"{(work.cause or 'no reason given')[:CAUSE_MAX_LENGTH]} ({work.message.queue} gave up on it)"
    if hops.OLDER in work.message.payload:
        # Only the message is on record; raising here parks it.
        raise Retry("no payout is on record for the older service's token, so its message is parked")
    async with work.commit(rejected=reason) as tx:
        found = await find(tx, work.message.correlation_id or "")
        if found is None:
            raise Retry(f"no payout is on record for the message: {work.cause or 'no reason given'}")
        if State.REVIEW in TRANSITIONS[found.state]:
            await hold_payout(tx, found, Hold.GAVE_UP, reason, as_state=State.REVIEW)


async def next_put(tx: Tx, payout_id: str) -> int:
    """Counts a requeued message and returns the number, which makes the message's key unique."""
    puts: int = await tx.fetchval("update payouts.payouts set puts = puts + 1 where id = $1 returning puts", payout_id)
    return puts


async def counts(read: Reader) -> dict[State, int]:
    rows = await read.fetch("select state, count(*) as count from payouts.payouts group by state")
    return {State(row["state"]): row["count"] for row in rows}


def payout_document(payout: Payout) -> dict[str, Any]:
    """The payout as customers' webhooks and our routes show it."""
    return {
        "id": payout.id,
        "unique_id": payout.unique_id,
        "payment_id": payout.payment_id,
        "state": payout.state.value,
        "user_id": str(payout.user_id),
        "closed_channel_id": payout.closed_channel_id,
        "wallet_address": payout.wallet_address,
        "payout_currency": payout.payout_currency,
        "payout_network": payout.payout_network,
        "price_usdt": payout.price.to_text(),
        "fee_usdt": payout.fee.to_text(),
        "adjusted_usdt": payout.adjusted.to_text(),
        "value_eth": None if payout.value is None else payout.value.to_text(),
        "hold": None if payout.hold is None else payout.hold.value,
        "reason": payout.reason,
    }


LINES: Final = {
    State.PRICED: "payout_priced",
    State.SWAP_CREATING: "exchange_requested",
    State.SWAPPED: "hostpay_triggered",
    State.PAYING: "deposit_signed",
    State.PAID_IN: "deposit_paid",
    State.FINISHED: "payout_finished",
    State.ACCUMULATING: "payout_accumulating",
    State.REJECTED: "payout_rejected",
    State.REFUNDED: "payout_refunded",
}
"""Log events by the state that a payout reaches."""


def _write_line(tx: Tx, payout: Payout) -> None:
    if (event := LINES.get(payout.state)) is not None:
        value = payout.adjusted if payout.value is None else payout.value
        tx.log(event, payout=payout.id, unique_id=payout.unique_id, amount=str(value), state=payout.state.value)


async def _announced(tx: Tx, payout: Payout) -> Payout:
    if (event := EVENTS.get(payout.state)) is not None:
        await announce(tx, event, payout_document(payout), trace_id=payout.trace_id)
    return payout
