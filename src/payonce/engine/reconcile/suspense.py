"""Suspense: unmatched items, held against the mirror account, with their age, until they are explained.

The mirror account always equals the vendor's balance; the suspense account holds its unexplained part.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from payonce.engine.audit import Severity, note
from payonce.engine.effects.model import State
from payonce.engine.ledger.model import Account, Posting, Reads, Reference, moved
from payonce.engine.messages.model import clean_text
from payonce.engine.messages.transaction import Tx
from payonce.engine.reconcile.source import suspense_account
from payonce.kit.ids import new_id
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, Stale
from payonce.kit.redact import redact

PAGE_ITEMS: Final = 100
PAGE_ITEMS_MAX: Final = 500


class Direction(StrEnum):
    THEIRS = "theirs"
    """On the vendor's statement, but explained by nothing of ours."""
    OURS = "ours"
    """Performed by our record, but not on the vendor's statement although its lag has passed."""
    DIFFERENCE = "difference"
    """Known to both, with different amounts."""


class ItemState(StrEnum):
    OPEN = "open"
    MATCHED = "matched"
    WRITTEN_OFF = "written_off"


@dataclass(frozen=True)
class Subject:
    """What an item is about: a line of the vendor, or an effect of ours."""

    vendor: str
    mirror: str
    kind: str
    vendor_ref: str | None
    reference: str | None
    effect_id: UUID | None
    at: datetime


@dataclass(frozen=True)
class Item:
    id: UUID
    subject: Subject
    direction: Direction
    amount: Amount
    """The amount by which the mirror account was corrected."""
    state: ItemState
    first_seen_at: datetime
    age_s: float
    explanation: str | None
    account: str | None
    """The account it was written off to."""


async def unmatched(
    read: Reads, vendor: str | None = None, limit: int = PAGE_ITEMS, after: UUID | None = None
) -> list[Item]:
    """Open items, oldest first; `after` is the last id of the previous page."""
    if not 1 <= limit <= PAGE_ITEMS_MAX:
        raise Invalid(f"limit is {limit}; a page has 1 to {PAGE_ITEMS_MAX} items")
    rows = await read.fetch(
        """
        select *, extract(epoch from payonce.due_now() - first_seen_at)::float8 as age_s from payonce.unmatched
        where state = 'open' and ($1::text is null or vendor = $1) and ($2::uuid is null or id > $2)
        order by id limit $3
        """,
        vendor,
        after,
        limit,
    )
    return [_item(row) for row in rows]


@dataclass(frozen=True)
class SuspenseTotal:
    """The open items of one vendor and asset."""

    vendor: str
    count: int
    unexplained: int
    amount: Amount
    oldest_s: float


async def suspense_totals(read: Reads) -> list[SuspenseTotal]:
    """By vendor and asset. Opposite items cancel out in the amount, but not in the count."""
    rows = await read.fetch(
        """
        select vendor, asset, exponent, count(*) as count, count(*) filter (where explanation is null) as unexplained,
            sum(amount_minor) as minor,
            greatest(0, extract(epoch from payonce.due_now() - min(first_seen_at)))::float8 as oldest_s
        from payonce.unmatched where state = 'open' group by vendor, asset, exponent order by vendor, asset, exponent
        """
    )
    return [
        SuspenseTotal(
            row["vendor"],
            row["count"],
            row["unexplained"],
            Amount(int(row["minor"]), Asset(row["asset"], row["exponent"])),
            row["oldest_s"],
        )
        for row in rows
    ]


async def item_of(read: Reads, item_id: UUID) -> Item:
    row = await read.fetchrow(f"{_SELECT} where id = $1", item_id)
    if row is None:
        raise Invalid(f"there is no unmatched item {item_id}; see: payonce reconcile list")
    return _item(row)


async def hold_in_suspense(tx: Tx, subject: Subject, direction: Direction, expected: Amount, by: str) -> bool:
    """Ensures that exactly `expected` is in suspense for the subject. Returns whether anything changed."""
    current = await _open_item(tx, subject)
    if current is not None:
        if current.direction is direction and current.amount == expected:
            return False
        await settle(tx, current, by, "replaced by what is known now")
    if expected:
        await _open(tx, subject, direction, expected, by)
    return current is not None or bool(expected)


async def settle(tx: Tx, item: Item, by: str, why: str) -> None:
    """Closes a matched item: reverses its posting into suspense, or its write-off."""
    counter = item.account if item.state is ItemState.WRITTEN_OFF else suspense_account(item.subject.vendor)
    assert counter is not None
    await tx.post(_posting(item, "matched", moved(item.amount, item.subject.mirror, counter), why))
    await _close(tx, item, ItemState.MATCHED, by, why)
    await note(tx.connection, "reconcile.matched", str(item.id), f"{describe(item)}: {why}", actor=by)


async def settle_missing(tx: Tx, effect_id: UUID, by: str, why: str) -> bool:
    """Closes the item of an effect that was missing on the statement. False when there is none."""
    row = await tx.fetchrow(
        f"{_SELECT} where effect_id = $1 and direction = 'ours' and state in ('open', 'written_off') for update",
        effect_id,
    )
    if row is None:
        return False
    await settle(tx, _item(row), by, why)
    return True


async def write_off(tx: Tx, item_id: UUID, account: str, by: str, why: str) -> Item:
    """Writes an item off, by a person's decision that the money is lost or ours: from suspense to the given account.

    For a payment that was never made, name the account it was posted to, which reverses its posting; or, if the ledger
    does not have it, the mirror account.
    """
    item = await _locked(tx, item_id, by, why)
    Account(account, item.amount.asset)
    suspense = suspense_account(item.subject.vendor)
    if account == item.subject.mirror and await _did_not_happen(tx, item):
        await settle(tx, item, by, why)
        return item
    if account in (suspense, item.subject.mirror):
        raise Invalid(f"{account} is where the item comes from; name the account of the loss or gain")
    await tx.post(_posting(item, "written off", moved(item.amount, account, suspense), why))
    await _close(tx, item, ItemState.WRITTEN_OFF, by, why, account)
    text = f"{describe(item)} to {account}: {why}"
    await note(tx.connection, "reconcile.write_off", str(item_id), text, actor=by, severity=Severity.WARNING)
    return item


async def explain(tx: Tx, item_id: UUID, by: str, why: str) -> Item:
    """Records a person's explanation. The item stays in suspense but no longer blocks a release."""
    item = await _locked(tx, item_id, by, why)
    await tx.execute(
        "update payonce.unmatched set explained_by = $2, explanation = $3 where id = $1",
        item_id,
        clean_text(by),
        clean_text(redact(why)),
    )
    await note(tx.connection, "reconcile.explain", str(item_id), f"{describe(item)}: {why}", actor=by)
    return item


def describe(item: Item) -> str:
    reference = item.subject.vendor_ref or item.subject.effect_id
    return f"{item.subject.vendor} {item.subject.kind} {reference}, {item.direction}, {item.amount}"


async def _open(tx: Tx, subject: Subject, direction: Direction, amount: Amount, by: str) -> None:
    row = await tx.fetchrow(
        """
        insert into payonce.unmatched (
            id, vendor, mirror, direction, kind, vendor_ref, reference, effect_id, asset, exponent, amount_minor, at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
        returning *, 0::float8 as age_s
        """,
        new_id(),
        subject.vendor,
        subject.mirror,
        direction,
        subject.kind,
        subject.vendor_ref,
        subject.reference,
        subject.effect_id,
        amount.asset.code,
        amount.asset.exponent,
        amount.minor,
        subject.at,
    )
    item = _item(row)
    lines = moved(amount, suspense_account(subject.vendor), subject.mirror)
    await tx.post(_posting(item, "unmatched", lines, f"{direction}: {subject.reference or subject.kind}"))
    await note(tx.connection, "reconcile.unmatched", str(item.id), describe(item), actor=by, severity=Severity.WARNING)


async def _close(tx: Tx, item: Item, to: ItemState, by: str, why: str, account: str | None = None) -> None:
    closed = await tx.fetchval(
        """
        update payonce.unmatched
        set state = $3, closed_by = $4, closed_at = payonce.due_now(), note = $5, account = coalesce($6, account)
        where id = $1 and state = $2 returning true
        """,
        item.id,
        item.state,
        to,
        clean_text(by),
        clean_text(redact(why)),
        account,
    )
    if closed is None:
        raise Stale(f"unmatched item {item.id} has changed since it was read; nothing was posted")


async def _locked(tx: Tx, item_id: UUID, by: str, why: str) -> Item:
    if not by.strip() or not why.strip():
        raise Invalid("changing an unmatched item needs a name and a reason; give both")
    row = await tx.fetchrow(f"{_SELECT} where id = $1 for update", item_id)
    if row is None:
        raise Invalid(f"there is no unmatched item {item_id}; see: payonce reconcile list")
    item = _item(row)
    if item.state is not ItemState.OPEN:
        raise Stale(f"unmatched item {item_id} is now {item.state}; nothing was changed")
    return item


async def _did_not_happen(tx: Tx, item: Item) -> bool:
    """Whether the item is an effect of ours that has ended otherwise since."""
    state = "select state from payonce.effects where id = $1 for update"
    return item.direction is Direction.OURS and await tx.fetchval(state, item.subject.effect_id) in (
        State.ABANDONED,
        State.REFUSED,
    )


async def _open_item(tx: Tx, subject: Subject) -> Item | None:
    mine = "vendor = $1 and kind = $2 and vendor_ref = $3" if subject.vendor_ref else "effect_id = $1"
    arguments = (subject.vendor, subject.kind, subject.vendor_ref) if subject.vendor_ref else (subject.effect_id,)
    which = "direction <> 'ours'" if subject.vendor_ref else "direction = 'ours'"
    row = await tx.fetchrow(
        f"{_SELECT} where {mine} and {which} and state in ('open', 'written_off') for update", *arguments
    )
    return None if row is None else _item(row)


_SELECT: Final = (
    "select *, extract(epoch from payonce.due_now() - first_seen_at)::float8 as age_s from payonce.unmatched"
)


def _posting(item: Item, step: str, lines: Any, text: str) -> Posting:
    key = f"suspense:{item.id}:{step}"
    return Posting(key, Reference("unmatched", str(item.id)), lines, clean_text(redact(text))[:1_000])


def _item(row: Any) -> Item:
    names = ("vendor", "mirror", "kind", "vendor_ref", "reference", "effect_id", "at")
    return Item(
        id=row["id"],
        subject=Subject(**{name: row[name] for name in names}),
        direction=Direction(row["direction"]),
        amount=Amount(int(row["amount_minor"]), Asset(row["asset"], row["exponent"])),
        state=ItemState(row["state"]),
        first_seen_at=row["first_seen_at"],
        age_s=row["age_s"],
        explanation=row["explanation"],
        account=row["account"],
    )
