"""Stored transfers; each function contains its SQL."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from payonce import Amount, NoPayload, Posting, Reader, Reference, Retry, Tx, Unprocessable, moved
from payonce.examples.transfers.model import (
    AT_SOUTHBANK,
    TRANSITIONS,
    BadOrder,
    Order,
    State,
    Transfer,
    requested,
    transfer_from,
)
from payonce.examples.transfers.policies import QUEUES, WITHDRAW

OPENING: Final = "opening"
REFERENCES: Final = {
    "transfer": "select id from transfers.transfers where id = any($1::text[])",
    OPENING: f"select id from unnest($1::text[]) as asked (id) where id = '{AT_SOUTHBANK}'",
}
"""The kind of a posting's reference, and the ids that exist."""


@dataclass(frozen=True)
class Seen:
    """A transfer with its state, for callers."""

    transfer: Transfer
    trace_id: str | None
    created_at: datetime
    updated_at: datetime


async def request(tx: Tx, order: Order, tenant: str | None = None, trace_id: str | None = None) -> Transfer:
    """Stores a transfer together with its first message; repeating the order changes nothing."""
    wanted = requested(order)
    row = await tx.fetchrow(
        """
        insert into transfers.transfers (id, source, target, asset, exponent, amount_minor, tenant, trace_id)
        values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (id) do nothing returning *
        """,
        wanted.id,
        wanted.source,
        wanted.target,
        wanted.amount.asset.code,
        wanted.amount.asset.exponent,
        wanted.amount.minor,
        tenant,
        trace_id,
    )
    if row is not None:
        # The lane is the tenant, to which freezes apply.
        await tx.send(WITHDRAW, NoPayload(), key=f"withdraw:{wanted.id}", correlation_id=wanted.id, lane=tenant)
        return transfer_from(row)
    known = transfer_from(await tx.fetchrow("select * from transfers.transfers where id = $1", wanted.id))
    same = (known.source, known.target, known.amount, known.tenant)
    if same != (wanted.source, wanted.target, wanted.amount, tenant):
        raise BadOrder(f"transfer {wanted.id} exists with other accounts or another amount; use another id")
    return known


async def post_opening(post: Callable[[Posting], Awaitable[object]], amounts: Iterable[Amount]) -> None:
    """Posts our balance at Southbank before the first transfer, once."""
    for amount in amounts:
        lines = moved(amount, "equity/opening", AT_SOUTHBANK)
        await post(Posting(f"opening:{amount.asset.code}", Reference(OPENING, AT_SOUTHBANK), lines))


async def transfer(read: Reader, transfer_id: str | None) -> Transfer:
    row = await read.fetchrow("select * from transfers.transfers where id = $1", transfer_id)
    if row is None:
        raise Unprocessable(f"there is no transfer {transfer_id!r}")
    return transfer_from(row)


async def seen(read: Reader | Tx, transfer_id: str, tenant: str | None) -> Seen | None:
    """A tenant's key sees only its own transfers; the platform's keys see all."""
    row = await read.fetchrow(
        "select * from transfers.transfers where id = $1 and ($2::text is null or tenant = $2)", transfer_id, tenant
    )
    if row is None:
        return None
    return Seen(transfer_from(row), row["trace_id"], row["created_at"], row["updated_at"])


async def move(
    tx: Tx,
    transfer_id: str,
    before: State,
    after: State,
    *,
    reason: str | None = None,
    withdrawal_id: str | None = None,
    payment_id: str | None = None,
    refund_id: str | None = None,
) -> None:
    """Compare-and-set: raises Retry if the transfer has changed since it was read."""
    if after not in TRANSITIONS[before]:
        raise AssertionError(f"there is no transition of a transfer from {before} to {after}")
    moved = await tx.fetchval(
        """
        update transfers.transfers
        set state = $3, reason = coalesce($4, reason), withdrawal_id = coalesce($5, withdrawal_id),
            payment_id = coalesce($6, payment_id), refund_id = coalesce($7, refund_id),
            updated_at = payonce.due_now()
        where id = $1 and state = $2 returning true
        """,
        transfer_id,
        before,
        after,
        reason,
        withdrawal_id,
        payment_id,
        refund_id,
    )
    if moved is None:
        raise Retry(f"transfer {transfer_id} is no longer {before}")


async def counts(read: Reader) -> dict[State, int]:
    rows = await read.fetch("select state, count(*) as count from transfers.transfers group by state")
    return {State(row["state"]): row["count"] for row in rows}


async def unfinished(read: Reader) -> int:
    """Messages of the example that are neither settled nor parked."""
    left: int = await read.fetchval(
        "select count(*) from payonce.live_messages where queue = any($1) and state <> 'parked'",
        [policy.queue for policy in QUEUES],
    )
    return left
