"""Swaps on record: the payouts that each serves, and how its states move them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from payonce.engine.messages.model import clean_text
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount
from payonce.kit.outcomes import Retry
from payonce.services.payouts import ledger
from payonce.services.payouts.domain.addresses import hash_key
from payonce.services.payouts.model import (
    BY_WALLET,
    DIRECT,
    ETH,
    REPLACED,
    SWAP_TRANSITIONS,
    TRANSITIONS,
    Payout,
    Share,
    State,
    Swap,
    SwapState,
    payout_from,
    share_from,
    state_by,
    swap_from,
)
from payonce.services.payouts.store import payouts
from payonce.vendors.changenow.port import Exchange
from payonce.vendors.changenow.port import Swap as Made

HASH_MAX_LENGTH: Final = 200


async def swap(read: Reader | Tx, swap_id: str) -> Swap:
    row = await read.fetchrow("select * from payouts.swaps where id = $1", swap_id)
    if row is None:
        raise Retry(f"there is no swap {swap_id!r}")
    return swap_from(row)


async def swap_of_exchange(read: Reader | Tx, unique_id: str, cn_api_id: str) -> Swap | None:
    """The swap by the ids in hostpay's message."""
    row = await read.fetchrow(
        "select * from payouts.swaps where unique_id = $1 and cn_api_id = $2", unique_id, cn_api_id
    )
    return None if row is None else swap_from(row)


async def locked_swap(tx: Tx, swap_id: str) -> Swap:
    row = await tx.fetchrow("select * from payouts.swaps where id = $1 for update", swap_id)
    if row is None:
        raise Retry(f"there is no swap {swap_id!r}")
    return swap_from(row)


async def shares_of(read: Reader | Tx, swap_id: str) -> list[Share]:
    rows = await read.fetch("select * from payouts.shares where swap_id = $1 order by payout_id, part", swap_id)
    return [share_from(row) for row in rows]


async def active_swaps(read: Reader | Tx, payout_id: str) -> list[Swap]:
    """The active swaps of a payout, one per part that has one."""
    rows = await read.fetch(
        """
        select s.* from payouts.shares h join payouts.swaps s on s.id = h.swap_id
        where h.payout_id = $1 and h.active order by h.part
        """,
        payout_id,
    )
    return [swap_from(row) for row in rows]


async def count_parts(read: Reader | Tx, payout_id: str) -> int:
    """Counts all parts, including those without an active swap."""
    count: int = await read.fetchval("select count(*) from payouts.parts where payout_id = $1", payout_id)
    return count


async def split_part(tx: Tx, payout_id: str, amounts: Sequence[Amount]) -> None:
    """Splits the only part of a payout; if it has several, the table refuses the new ones."""
    first, *others = amounts
    await tx.execute(
        "update payouts.parts set amount_minor = $2 where payout_id = $1 and part = 1", payout_id, first.minor
    )
    for part, amount in enumerate(others, start=2):
        await tx.execute(
            "insert into payouts.parts (payout_id, part, amount_minor) values ($1, $2, $3)",
            payout_id,
            part,
            amount.minor,
        )


async def payouts_of(tx: Tx, swap_id: str) -> list[Payout]:
    """The payouts that the swap serves, locked in the order of their ids."""
    rows = await tx.fetch(
        """
        select p.* from payouts.payouts p
        where p.id = any(array(select payout_id from payouts.shares where swap_id = $1)) order by p.id for update
        """,
        swap_id,
    )
    return [payout_from(row) for row in rows]


async def begin_swap(
    tx: Tx, lead: Payout, part: int, shares: Sequence[tuple[str, int, Amount]], *, first: bool = False
) -> Swap:
    """Records a swap to be created under the lead's name for these parts of payouts; `first` also records the parts.
    The table, not this function, guarantees that a part has no other active swap."""
    amount = Amount.total((share for _, _, share in shares), ETH)
    row = await tx.fetchrow(
        """
        with new as (
            select $1::text || '/' || $2 || '/' || round as id, round from (
                select coalesce(max(round), 0) + 1 as round from payouts.swaps where unique_id = $1 and part = $2) r
        ), share as (
            select * from unnest($9::text[], $10::int[], $11::numeric[]) as share (payout_id, part, amount_minor)
        ), parted as (
            insert into payouts.parts (payout_id, part, amount_minor)
            select payout_id, part, amount_minor from share where $12
        ), shared as (
            insert into payouts.shares (swap_id, payout_id, part, amount_minor)
            select new.id, share.payout_id, share.part, share.amount_minor from share cross join new
        )
        insert into payouts.swaps
            (id, unique_id, part, round, currency, network, address, extra_id, amount_minor, direct)
        select id, $1, $2, round, $3, $4, $5, $6, $7, $8 from new
        returning *
        """,
        lead.unique_id,
        part,
        lead.payout_currency,
        lead.payout_network,
        lead.wallet_address,
        lead.extra_id,
        amount.minor,
        lead.is_direct,
        [payout_id for payout_id, _, _ in shares],
        [number for _, number, _ in shares],
        [share.minor for _, _, share in shares],
        first,
    )
    return swap_from(row)


async def record_exchange(tx: Tx, swap: Swap, made: Made) -> Swap:
    """Records the created exchange. Its payouts move when `split_payout_que` has it."""
    row = await _change(
        tx,
        swap,
        SwapState.CREATED,
        cn_api_id=made.id,
        payin_address=made.payin_address,
        payin_extra_id=made.payin_extra_id,
        valid_until=made.valid_until,
    )
    return swap_from(row)


async def record_direct(tx: Tx, swap: Swap) -> Swap:
    """Records a direct payment, which needs no exchange."""
    row = await _change(
        tx,
        swap,
        SwapState.CREATED,
        cn_api_id=f"{DIRECT}-{swap.id}",
        payin_address=swap.address,
        payin_extra_id=swap.extra_id,
    )
    return swap_from(row)


async def replace(tx: Tx, swap: Swap, reason: str) -> Swap:
    """Abandons the swap and begins another round for the same shares."""
    await abandon(tx, swap, reason)
    shares = await shares_of(tx, swap.id)
    [lead] = [payout for payout in await payouts_of(tx, swap.id) if payout.unique_id == swap.unique_id]
    return await begin_swap(tx, lead, swap.part, [(share.payout_id, share.part, share.amount) for share in shares])


async def trigger(tx: Tx, swap: Swap, paid_by: str = BY_WALLET) -> Swap:
    """Marks the swap as triggered: from now on only hostpay can replace it, and `paid_by` never changes."""
    row = await tx.fetchrow(
        """
        update payouts.swaps
        set triggered_at = coalesce(triggered_at, payonce.due_now()),
            paid_by = case when triggered_at is null then $3 else paid_by end
        where id = $1 and state = $2 and active returning *
        """,
        swap.id,
        swap.state,
        paid_by,
    )
    if row is None:
        raise Retry(f"swap {swap.id} is no longer {swap.state}", after_s=0.0)
    return swap_from(row)


async def record_handover(tx: Tx, swap: Swap) -> None:
    """Recorded before the task is sent: from now on the operator's GCHostPay may pay the swap."""
    handed = await tx.fetchval(
        """
        update payouts.swaps set handed_over_at = payonce.due_now(), updated_at = payonce.due_now()
        where id = $1 and state = 'created' and paid_by = 'external' and handed_over_at is null returning id
        """,
        swap.id,
    )
    if handed is None:
        raise Retry(f"swap {swap.id} can no longer be handed over", after_s=0.0)


async def advance(
    tx: Tx, swap: Swap, after: SwapState, *, reason: str | None = None, carried: list[Payout] | None = None
) -> Swap:
    """Moves the swap and its payouts, as far as all their parts allow. A held payout stays held; only the state from
    which it continues moves. `carried` are those payouts if the caller has locked them already."""
    # Payouts are locked before their swaps, everywhere.
    carried = await payouts_of(tx, swap.id) if carried is None else carried
    row = await _change(tx, swap, after, reason=reason)
    if after not in REPLACED:
        # Read with the swap under the payouts' locks; without them another part could move concurrently.
        beside = [word.partition(" ") for word in row["beside"]]
        for payout in carried:
            others = [SwapState(state) if state else None for state, _, whose in beside if whose == payout.id]
            await follow(tx, payout, [after, *others])
    return swap_from(row)


async def follow(tx: Tx, payout: Payout, parts: Sequence[SwapState | None]) -> None:
    """Moves a payout to the state that its parts' swaps imply; None stands for a part without a swap."""
    states = [state for state in parts if state is not None]
    if len(states) < len(parts):
        # While a part waits for another swap, the state of the whole is undetermined.
        return
    wanted = state_by(states)
    if payout.held_from is not None:
        await _move_held(tx, payout, wanted)
    elif wanted is not payout.state:
        await payouts.move(tx, payout, wanted)


async def finish(tx: Tx, swap: Swap) -> Swap:
    """The client was paid: posts every share once, and any refund of the deposit as a gain."""
    moved = await advance(tx, swap, SwapState.FINISHED)
    rows = await tx.fetch(
        """
        select h.*, (select coalesce(sum(r.counted_minor), 0) from payouts.refunds r where r.swap_id = h.swap_id)
            as back_minor
        from payouts.shares h where h.swap_id = $1 order by h.payout_id, h.part
        """,
        swap.id,
    )
    postings = [ledger.finished(swap, share_from(row)) for row in rows]
    if back := int(rows[0]["back_minor"]):
        postings.append(ledger.sent_back_and_finished(swap, Amount(back, ETH)))
    await tx.post_all(postings)
    return moved


async def record_transactions(tx: Tx, swap: Swap, exchange: Exchange) -> None:
    """Records the exchange's transaction hashes, as far as it reports them, for searches. Call it after moving the
    swap, since payouts are locked before their swaps."""
    hashes = [
        hash_key(clean_text(each))[:HASH_MAX_LENGTH] or None if each else None
        for each in (exchange.payin_hash, exchange.payout_hash)
    ]
    await tx.execute(
        """
        update payouts.swaps set payin_hash = coalesce($2, payin_hash), payout_hash = coalesce($3, payout_hash)
        where id = $1
        """,
        swap.id,
        *hashes,
    )


async def abandon(tx: Tx, swap: Swap, reason: str) -> Swap:
    """Gives up a swap before hostpay is triggered; an unfunded exchange moves no money. The table refuses others."""
    return await advance(tx, swap, SwapState.ABANDONED, reason=reason)


async def lapse(tx: Tx, swap: Swap, reason: str, *, unpaid_by: str | None = None) -> Swap:
    """Gives up a swap that hostpay has not paid, as it has no row of it. For a swap that was handed over, operators
    must declare this, unless its task was never created."""
    if swap.handed_over_at is not None and unpaid_by is None and not await _never_handed_over(tx, swap):
        raise AssertionError(f"swap {swap.id} was handed over: it may have been paid, and is not replaced")
    paid = await tx.fetchval(
        "select exists (select from payouts.split_payout_hostpay where unique_id = $1 and cn_api_id = $2)",
        swap.unique_id,
        swap.cn_api_id,
    )
    if paid:
        raise AssertionError(f"swap {swap.id} has a row of hostpay: it may have been paid, and is not replaced")
    return await advance(tx, swap, SwapState.LAPSED, reason=reason)


async def _never_handed_over(tx: Tx, swap: Swap) -> bool:
    found: bool = await tx.fetchval(
        "select bool_and(state = 'refused') from payonce.effects where kind = 'hostpay.task' and key = $1", swap.id
    )
    return bool(found)


async def _move_held(tx: Tx, payout: Payout, wanted: State) -> None:
    if wanted is State.FINISHED:
        await payouts.move(tx, payout, State.FINISHED)
        return
    if wanted is not payout.held_from:
        assert payout.held_from is not None and wanted in TRANSITIONS[payout.held_from]
        await tx.execute(
            """
            update payouts.payouts set held_from = $2, revision = revision + 1, updated_at = payonce.due_now()
            where id = $1
            """,
            payout.id,
            wanted,
        )


async def _change(
    tx: Tx,
    swap: Swap,
    after: SwapState,
    *,
    cn_api_id: str | None = None,
    payin_address: str | None = None,
    payin_extra_id: str | None = None,
    valid_until: datetime | None = None,
    reason: str | None = None,
) -> Any:
    """Changes the swap by compare-and-set and returns the new row; raises Retry if its state has changed meanwhile."""
    if after not in SWAP_TRANSITIONS[swap.state]:
        raise AssertionError(f"a swap does not go from {swap.state} to {after}")
    # `beside`: of the payouts that it carries, the parts that other swaps carry, each as the state of its swap (empty
    # where it has none) and the payout's id. Looked up row by row: a join planned for an empty table would read all of
    # a full one.
    row = await tx.fetchrow(
        """
        update payouts.swaps s
        set state = $3, active = $4, cn_api_id = coalesce($5, s.cn_api_id),
            payin_address = coalesce($6, s.payin_address), payin_extra_id = coalesce($7, s.payin_extra_id),
            reason = coalesce($8, s.reason), valid_until = coalesce($9, s.valid_until), updated_at = payonce.due_now()
        where s.id = $1 and s.state = $2
        returning s.*, array(
            select coalesce(other.state, '') || ' ' || p.payout_id from payouts.parts p
            left join lateral (
                select o.id, o.state from payouts.shares h cross join lateral (
                    select id, state from payouts.swaps where id = h.swap_id limit 1) o
                where h.payout_id = p.payout_id and h.part = p.part and h.active limit 1) other on true
            where p.payout_id = any(array(select payout_id from payouts.shares where swap_id = s.id))
              and other.id is distinct from s.id) as beside
        """,
        swap.id,
        swap.state,
        after,
        after not in REPLACED,
        cn_api_id,
        payin_address,
        payin_extra_id,
        reason,
        valid_until,
    )
    if row is None:
        raise Retry(f"swap {swap.id} is no longer {swap.state}", after_s=0.0)
    return row
