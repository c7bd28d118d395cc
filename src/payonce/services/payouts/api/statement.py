"""Payouts as CSV for accountants: one row each, with exact amounts."""

import csv
import io
import re
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.services.payouts.model import payout_from

PAGE: Final = 1_000
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_NUMBER: Final = re.compile(r"-[0-9]+")
COLUMNS: Final = (
    "created_at",
    "updated_at",
    "payout_id",
    "payment_id",
    "unique_id",
    "user_id",
    "closed_channel_id",
    "state",
    "price_usdt",
    "fee_usdt",
    "adjusted_usdt",
    "value_eth",
    "payout_currency",
    "payout_network",
    "wallet_address",
    "exchanges",
    "received",
    "reason",
)


async def statement(read: Reads, since: datetime, until: datetime) -> AsyncIterator[str]:
    """CSV (RFC 4180) of the payouts received from `since` to before `until`, oldest first."""
    yield _written([COLUMNS])
    after: tuple[datetime | None, str] = (None, "")
    while rows := await _page(read, since, until, after):
        yield _written([_cells(row) for row in rows])
        after = (rows[-1]["created_at"], rows[-1]["id"])


async def _page(read: Reads, since: datetime, until: datetime, after: tuple[datetime | None, str]) -> list[Any]:
    return await read.fetch(
        """
        select p.*, swapped.exchanges, swapped.received from payouts.payouts p
        left join lateral (
            select string_agg(s.cn_api_id, ' ' order by s.part) as exchanges,
                string_agg(trim_scale(q.to_amount)::text, ' ' order by s.part) as received
            from payouts.shares h join payouts.swaps s on s.id = h.swap_id
            left join payouts.split_payout_que q on q.unique_id = s.unique_id and q.cn_api_id = s.cn_api_id
            where h.payout_id = p.id and h.active) swapped on true
        where p.created_at >= $1 and p.created_at < $2
          and ($3::timestamptz is null or (p.created_at, p.id) > ($3, $4))
        order by p.created_at, p.id limit $5
        """,
        since,
        until,
        *after,
        PAGE,
    )


def _cells(row: Any) -> Sequence[str]:
    payout = payout_from(row)
    cells = (
        payout.created_at.isoformat(),
        payout.updated_at.isoformat(),
        payout.id,
        payout.payment_id or "",
        payout.unique_id,
        str(payout.user_id),
        payout.closed_channel_id,
        payout.state.value,
        payout.price.to_text(),
        payout.fee.to_text(),
        payout.adjusted.to_text(),
        "" if payout.value is None else payout.value.to_text(),
        payout.payout_currency,
        payout.payout_network,
        payout.wallet_address,
        row["exchanges"] or "",
        row["received"] or "",
        payout.reason or "",
    )
    return [_plain(cell) for cell in cells]


def _plain(text: str) -> str:
    """Escapes text that a spreadsheet would run as a formula. Negative numbers, such as channel ids, stay as they
    are."""
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def _written(rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()
