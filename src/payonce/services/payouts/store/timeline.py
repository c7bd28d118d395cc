"""The timeline of one payout from our record: price, swaps, deposits, postings and notes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from payonce.engine.ledger.model import Reads
from payonce.engine.monitoring.timeline import TimelineEntry, notes_about, postings_about
from payonce.kit.money import Amount, Asset
from payonce.services.payouts.decisions.payouts import Verdict
from payonce.services.payouts.model import ETH, REPLACED, UNDER_WAY, Payout, State, Swap, SwapState, swap_from


@dataclass(frozen=True)
class Deposit:
    """The wallet's payment of a swap."""

    status: str
    tx_hash: str | None
    is_final: bool
    gas_used: int | None
    block_number: int | None
    at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class CarryingSwap:
    """A present or former swap of the payout."""

    swap: Swap
    part: int
    share: Amount
    payouts: int
    """The number of payouts that it serves."""
    lead_id: str
    """The leading payout, under whose name it runs."""
    gets: Decimal | None
    """The client's amount according to the exchange, in the client's currency."""
    in_doubt: bool
    """Whether it is still unknown if the exchange created it."""
    deposit: Deposit | None
    came_in: str | None
    """The transaction that paid the exchange, according to the exchange."""
    went_out: str | None
    """The transaction that paid the client, likewise."""
    created_at: datetime
    updated_at: datetime


async def carrying_swaps(read: Reads, payout: Payout) -> list[CarryingSwap]:
    """The payout's swaps, including replaced ones, oldest first."""
    rows = await read.fetch(
        """
        select s.*, h.part as own_part, h.amount_minor as share_minor, lead.id as lead_id, q.to_amount as gets,
            (select count(distinct payout_id) from payouts.shares where swap_id = s.id) as payouts,
            exists (select from payonce.effects e where e.kind = 'changenow.create' and e.key = s.id
                and e.state in ('intended', 'unknown', 'review')) as in_doubt,
            d.tx_status, d.tx_hash, d.is_complete, d.gas_used, d.block_number, d.created_at as paid_at,
            d.updated_at as paid_updated_at
        from payouts.shares h join payouts.swaps s on s.id = h.swap_id
        join payouts.payouts lead on lead.unique_id = s.unique_id
        left join payouts.split_payout_que q on q.unique_id = s.unique_id and q.cn_api_id = s.cn_api_id
        left join payouts.split_payout_hostpay d on d.unique_id = s.unique_id and d.cn_api_id = s.cn_api_id
        where h.payout_id = $1 order by s.created_at, h.part, s.round
        """,
        payout.id,
    )
    return [_carried(row) for row in rows]


async def timeline_entries(read: Reads, payout: Payout, swaps: Sequence[CarryingSwap]) -> list[TimelineEntry]:
    """In time order."""
    found = [
        TimelineEntry(
            payout.created_at,
            "payout",
            f"{payout.price} paid for channel {payout.closed_channel_id}",
            "received",
            f"{payout.fee} is our fee, {payout.adjusted} is paid out",
        ),
        *await _priced(read, payout),
        *(fact for each in swaps for fact in _of_swap(each)),
        *await _signed(read, swaps),
        # By their reference: the postings of a batched payout are in another trace.
        *await postings_about(read, [("payout", payout.id), *(("payout_swap", each.swap.id) for each in swaps)]),
        *await notes_about(
            read, [payout.id, *{each.swap.unique_id: None for each in swaps}, *(each.swap.id for each in swaps)]
        ),
    ]
    return sorted(found, key=lambda fact: fact.at)


async def effects_in_review(read: Reads, swaps: Sequence[CarryingSwap]) -> list[Any]:
    """Effects that an operator must answer before any decision."""
    return await read.fetch(
        """
        select id, kind, key, generation from payonce.effects
        where state = 'review' and kind in ('changenow.create', 'evm.pay', 'evm.bump', 'hostpay.task')
          and regexp_replace(key, '/(pay|bump/[0-9]+)$', '') = any($1::text[]) order by id
        """,
        [each.swap.id for each in swaps],
    )


def available_verdicts(payout: Payout, swaps: Sequence[CarryingSwap]) -> list[Verdict]:
    """The decisions that are possible now. `decisions` checks them again; those it would refuse are not offered."""
    active = [each for each in swaps if each.swap.state not in REPLACED]
    kept = payout.state in (State.HELD, State.REVIEW)
    offered = []
    if payout.state in UNDER_WAY:
        offered.append(Verdict.HOLD)
    if kept:
        offered.append(Verdict.RELEASE)
    if kept and all(_is_unordered(payout, each) for each in active):
        offered.append(Verdict.READDRESS)
    told = any(each.swap.triggered_at is not None or each.payouts > 1 or each.in_doubt for each in active)
    if (kept or payout.state is State.ACCUMULATING) and not told:
        offered += [Verdict.REFUND, Verdict.REJECT]
    if kept and any(each.swap.state is SwapState.PAID_IN and not each.swap.direct for each in active):
        offered += [Verdict.RETURNED, Verdict.WRITE_OFF]
    if kept and any(each.swap.state is SwapState.CREATED and each.swap.handed_over_at is not None for each in active):
        offered.append(Verdict.UNPAID)
    return offered


def _is_unordered(payout: Payout, each: CarryingSwap) -> bool:
    """Whether the swap was never ordered; the first order moves the payout on from priced."""
    begun = each.swap.state is SwapState.CREATING and payout.held_from is State.PRICED
    return begun and each.payouts == 1 and not each.in_doubt


def _carried(row: Any) -> CarryingSwap:
    deposit = None
    if row["paid_at"] is not None:
        gas = None if row["gas_used"] is None else int(row["gas_used"])
        deposit = Deposit(
            row["tx_status"] or "signed",
            row["tx_hash"],
            row["is_complete"],
            gas,
            row["block_number"],
            row["paid_at"],
            row["paid_updated_at"],
        )
    return CarryingSwap(
        swap_from(row),
        row["own_part"],
        Amount(int(row["share_minor"]), ETH),
        row["payouts"],
        row["lead_id"],
        row["gets"],
        row["in_doubt"],
        deposit,
        row["payin_hash"],
        row["payout_hash"],
        row["created_at"],
        row["updated_at"],
    )


async def _priced(read: Reads, payout: Payout) -> list[TimelineEntry]:
    at = await read.fetchval(
        "select created_at from payouts.split_payout_request where unique_id = $1", payout.unique_id
    )
    if at is None or payout.value is None:
        return []
    return [
        TimelineEntry(
            at,
            "estimate",
            f"{payout.adjusted} is worth {payout.value}",
            "priced",
            "the pure market value: ChangeNOW's estimate without its fees",
        )
    ]


def _of_swap(each: CarryingSwap) -> list[TimelineEntry]:
    swap = each.swap
    shared = f", for a batch of {each.payouts} payouts" if each.payouts > 1 else ""
    what = f"{swap.currency} on {swap.network}"
    found = [TimelineEntry(each.created_at, "swap", f"swap {swap.id} to {what}{shared}", "begun", None, swap.amount)]
    if swap.triggered_at is not None:
        gets = "" if each.gets is None or swap.direct else f"; the client gets {shown(each.gets)} {swap.currency}"
        made = "no exchange is needed" if swap.direct else f"exchange {swap.cn_api_id}"
        found.append(
            TimelineEntry(
                swap.triggered_at,
                "swap",
                f"hostpay is triggered to pay {swap.payin_address}",
                "swapped",
                f"{made}{gets}",
                swap.amount,
            )
        )
    if swap.handed_over_at is not None:
        found.append(
            TimelineEntry(
                swap.handed_over_at,
                "swap",
                f"swap {swap.id} is handed over to your own GCHostPay",
                "handed over",
                f"exchange {swap.cn_api_id}",
                swap.amount,
            )
        )
    if swap.state in REPLACED:
        found.append(
            TimelineEntry(each.updated_at, "swap", f"swap {swap.id} has ended", swap.state, swap.reason, swap.amount)
        )
    if each.deposit is not None and each.deposit.is_final:
        paid = each.deposit
        used = "" if paid.gas_used is None else f", {paid.gas_used:,} gas"
        found.append(
            TimelineEntry(
                paid.updated_at,
                "wallet",
                f"transaction {paid.tx_hash}",
                "final",
                f"in block {paid.block_number}{used}",
                swap.amount,
            )
        )
    return found


async def _signed(read: Reads, swaps: Sequence[CarryingSwap]) -> list[TimelineEntry]:
    rows = await read.fetch(
        """
        select a.hash, a.nonce, a.attempt, a.created_at, p.to_address, p.asset, p.exponent, p.amount_minor
        from payouts.wallet_payments p join payouts.wallet_attempts a using (wallet, nonce)
        where p.swap_id = any($1::text[]) order by a.created_at
        """,
        [each.swap.id for each in swaps],
    )
    return [
        TimelineEntry(
            row["created_at"],
            "wallet",
            f"transaction {row['hash']}",
            "signed",
            f"nonce {row['nonce']}, attempt {row['attempt']}, to {row['to_address']}",
            Amount(int(row["amount_minor"]), Asset(row["asset"], row["exponent"])),
        )
        for row in rows
    ]


def shown(value: Decimal) -> str:
    """The amount without the trailing zeros of its column."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
