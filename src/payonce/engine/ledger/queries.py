"""Reading the ledger: current and past balances, statements page by page, and the trial balance."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from payonce.engine.ledger.model import Account, PostingId, Reads, Reference
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid

PAGE_ENTRIES: Final = 100
PAGE_ENTRIES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Cursor:
    """The line after which a page begins, and the balance there."""

    xact: str
    posting_id: PostingId
    number: int
    minor: int


@dataclass(frozen=True, slots=True)
class Entry:
    posting_id: PostingId
    posted_at: datetime
    amount: Amount
    balance: Amount
    """After this line."""
    key: str
    reference: Reference
    text: str
    trace_id: str | None


@dataclass(frozen=True, slots=True)
class Page:
    opening: Amount
    """Opening plus entries equals closing, on every page."""
    entries: tuple[Entry, ...]
    closing: Amount
    after: Cursor | None
    """Where to continue, also later when more lines exist; None while there was no line at all."""
    more: bool


async def balance(read: Reads, account: Account, at: datetime | None = None) -> Amount:
    """The balance of all lines visible to `read`, or of those posted before a moment; zero for an unused account."""
    if at is not None:
        return await _balance_before(read, account, at)
    minor = await read.fetchval(
        "select balance from payonce.balances where path = $1 and asset = $2 and exponent = $3", *_named(account)
    )
    return Amount(int(minor or 0), account.asset)


async def statement(
    read: Reads,
    account: Account,
    begin: datetime | None = None,
    end: datetime | None = None,
    limit: int = PAGE_ENTRIES,
    after: Cursor | None = None,
) -> Page:
    """The lines posted from `begin` to before `end`, in the order in which their transactions began to write.

    Only lines with no running transaction before them are included: a cursor that passed a running transaction would
    miss its lines.
    """
    if not 1 <= limit <= PAGE_ENTRIES_MAX:
        raise Invalid(f"limit is {limit}; a page has 1 to {PAGE_ENTRIES_MAX} entries")
    if after is None:
        opening = Amount.zero(account.asset) if begin is None else await _balance_before(read, account, begin, True)
    else:
        opening = Amount(after.minor, account.asset)
    rows = await read.fetch(
        """
        select l.xact::text as xact, l.posting_id, l.number, l.minor, l.posted_at,
            p.key, p.reference_kind, p.reference_id, p.description, p.trace_id
        from (
            select * from payonce.posting_lines
            where account_id = (select id from payonce.accounts where path = $1 and asset = $2 and exponent = $3)
              and (xact, posting_id, number) > ($4::text::xid8, $5::bigint, $6::smallint)
              and xact < pg_snapshot_xmin(pg_current_snapshot())
              and posted_at >= coalesce($7::timestamptz, '-infinity')
              and posted_at < coalesce($8::timestamptz, 'infinity')
            order by account_id, xact, posting_id, number
            limit $9
        ) l join payonce.postings p on p.id = l.posting_id
        order by l.xact, l.posting_id, l.number
        """,
        *_named(account),
        *(("0", 0, 0) if after is None else (after.xact, after.posting_id, after.number)),
        begin,
        end,
        limit + 1,
    )
    entries, running = [], opening
    for row in rows[:limit]:
        entry = _entry(row, running)
        entries.append(entry)
        running = entry.balance
        after = Cursor(row["xact"], entry.posting_id, row["number"], running.minor)
    return Page(opening, tuple(entries), running, after, more=len(rows) > limit)


async def trial_balance(read: Reads) -> dict[Asset, Amount]:
    """The sum of all balances by asset. Any sum but zero means that the ledger was damaged."""
    rows = await read.fetch(
        "select asset, exponent, sum(balance) as total from payonce.balances group by asset, exponent order by 1, 2"
    )
    assets = [Asset(row["asset"], row["exponent"]) for row in rows]
    return {asset: Amount(int(row["total"]), asset) for asset, row in zip(assets, rows, strict=True)}


async def _balance_before(read: Reads, account: Account, moment: datetime, settled_only: bool = False) -> Amount:
    """Starts from the last snapshot whose lines are all earlier than the moment."""
    minor = await read.fetchval(
        """
        select coalesce(s.balance, 0) + coalesce(
            (select sum(l.minor) from payonce.posting_lines l
             where l.account_id = a.id and l.xact >= coalesce(s.horizon, '0') and l.posted_at < $4
               and (not $5 or l.xact < pg_snapshot_xmin(pg_current_snapshot()))), 0)
        from payonce.accounts a
        left join lateral (
            select b.balance, b.horizon from payonce.balance_snapshots b
            where b.account_id = a.id and b.posted_until < $4 order by b.horizon desc limit 1
        ) s on true
        where a.path = $1 and a.asset = $2 and a.exponent = $3
        """,
        *_named(account),
        moment,
        settled_only,
    )
    return Amount(int(minor or 0), account.asset)


def _named(account: Account) -> tuple[str, str, int]:
    return account.path, account.asset.code, account.asset.exponent


def _entry(row: Any, before: Amount) -> Entry:
    amount = Amount(int(row["minor"]), before.asset)
    return Entry(
        posting_id=PostingId(row["posting_id"]),
        posted_at=row["posted_at"],
        amount=amount,
        balance=before + amount,
        key=row["key"],
        reference=Reference(row["reference_kind"], row["reference_id"]),
        text=row["description"],
        trace_id=row["trace_id"],
    )
