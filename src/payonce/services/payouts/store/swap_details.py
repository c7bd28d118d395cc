"""A swap with everything that its handlers need to know, read in one query."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from payonce.engine.messages.transaction import Reader, Tx
from payonce.services.payouts.model import Lead, Payout, Swap, SwapState, swap_from


class SwapDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A swap about to be ordered or paid."""

    swap: Swap
    lead: Lead
    lanes: list[str]
    """The channels of its payouts. A swap's payouts never change, so this may be read before a commit."""
    held_payout: str | None
    """The id of one of its payouts that is held or in review."""
    left_s: float | None
    """Seconds for which the exchange still accepts the deposit; None if it gave no limit."""
    has_prior_attempt: bool
    """Whether another swap of the same payouts failed after hostpay was triggered for it."""


_DETAILS: Final = """
    select s.*, lead.id as lead_id, lead.user_id as lead_user_id, lead.closed_channel_id as lead_channel_id,
        served.lanes, served.held_payout, extract(epoch from s.valid_until - payonce.due_now())::float8 as left_s,
        exists (
            select from payouts.shares mine
            cross join lateral (
                select swap_id from payouts.shares where payout_id = mine.payout_id and not active offset 0) h
            cross join lateral (select id, state from payouts.swaps where id = h.swap_id limit 1) other
            where mine.swap_id = s.id and other.id <> s.id
              and other.state in ('lapsed', 'returned')) as has_prior_attempt
    from payouts.swaps s join payouts.payouts lead on lead.unique_id = s.unique_id cross join lateral (
        select array_agg(distinct p.closed_channel_id order by p.closed_channel_id) as lanes,
            min(p.id) filter (where p.held_from is not null) as held_payout
        from payouts.shares h join payouts.payouts p on p.id = h.payout_id where h.swap_id = s.id) served
"""


async def details_of_part(read: Reader, unique_id: str, part: int) -> SwapDetails | None:
    """The active swap of a part."""
    row = await read.fetchrow(f"{_DETAILS} where s.unique_id = $1 and s.part = $2 and s.active", unique_id, part)
    return None if row is None else _details(row)


async def has_part(read: Reader, unique_id: str, part: int) -> bool:
    """Whether the part ever had a swap; the first one begins in the transaction that requests it."""
    found: bool = await read.fetchval(
        "select exists (select from payouts.swaps where unique_id = $1 and part = $2)", unique_id, part
    )
    return found


async def details_of_exchange(read: Reader, unique_id: str, cn_api_id: str) -> SwapDetails | None:
    """The swap by the ids in hostpay's message."""
    row = await read.fetchrow(f"{_DETAILS} where s.unique_id = $1 and s.cn_api_id = $2", unique_id, cn_api_id)
    return None if row is None else _details(row)


async def details_of_swap(read: Reader, swap_id: str) -> SwapDetails | None:
    row = await read.fetchrow(f"{_DETAILS} where s.id = $1", swap_id)
    return None if row is None else _details(row)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a payout, with its active swap."""

    payout_id: str
    swap: Swap | None
    """None if it waits for another one."""
    lead: Lead | None
    queued: bool
    """Whether the swap's exchange is in `split_payout_que`."""

    @property
    def swap_id(self) -> str | None:
        return None if self.swap is None else self.swap.id

    @property
    def state(self) -> SwapState | None:
        return None if self.swap is None else self.swap.state


async def parts_of(tx: Tx, payouts: Sequence[Payout]) -> list[Part]:
    """All parts of these payouts, which the caller has locked, so that their swaps stay until the transaction ends."""
    # Looked up one by one: a join would be planned for an empty table, and read all of a full one.
    rows = await tx.fetch(
        """
        select p.payout_id, carrier.* from payouts.parts p left join lateral (
            select s.*, lead.id as lead_id, lead.user_id as lead_user_id, lead.closed_channel_id as lead_channel_id,
                exists (select from payouts.split_payout_que q
                        where q.unique_id = s.unique_id and q.cn_api_id = s.cn_api_id) as queued
            from payouts.shares h
            cross join lateral (select * from payouts.swaps where id = h.swap_id limit 1) s
            cross join lateral (select * from payouts.payouts where unique_id = s.unique_id limit 1) lead
            where h.payout_id = p.payout_id and h.part = p.part and h.active limit 1) carrier on true
        where p.payout_id = any($1::text[]) order by p.payout_id, p.part
        """,
        [payout.id for payout in payouts],
    )
    return [_part(row) for row in rows]


def _part(row: Any) -> Part:
    if row["id"] is None:
        return Part(payout_id=row["payout_id"], swap=None, lead=None, queued=False)
    return Part(payout_id=row["payout_id"], swap=swap_from(row), lead=_lead(row), queued=row["queued"])


def _details(row: Any) -> SwapDetails:
    return SwapDetails(
        swap=swap_from(row),
        lead=_lead(row),
        lanes=row["lanes"],
        held_payout=row["held_payout"],
        left_s=row["left_s"],
        has_prior_attempt=row["has_prior_attempt"],
    )


def _lead(row: Any) -> Lead:
    return Lead(row["lead_id"], row["lead_user_id"], row["lead_channel_id"])
