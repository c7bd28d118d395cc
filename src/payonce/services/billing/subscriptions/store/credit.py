"""Credit in the database: a customer's balance per currency, and its entries.

Every change locks the balance's row until the end of the transaction, so its entries are ordered. A subscription's lock
is taken before it, never after.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount, Asset
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.model import CreditEntry, EntryKind

LISTED_MAX: Final = 200
REASON_MAX_CHARS: Final = 500
ACTOR_MAX_CHARS: Final = 400
BILLING: Final = "billing"
"""The actor of entries from invoices and schedules."""


@dataclass(frozen=True)
class Balance:
    amount: Amount
    revision: int
    """Grows with every entry; zero without entries."""


@dataclass(frozen=True)
class NewEntry:
    account_id: str
    kind: EntryKind
    amount: Amount
    key: str
    """Identifies the event; the database rejects a second entry with the same key."""
    reason: str
    at: datetime
    actor: str = BILLING
    invoice_id: str | None = None
    payout_id: str | None = None


async def book(tx: Tx, new: NewEntry) -> Amount:
    """Writes an entry and returns the new balance. An amount of zero writes nothing. Raises Conflict if the balance is
    too low."""
    asset, minor = new.amount.asset, new.amount.minor
    if not minor:
        return (await balance(tx, new.account_id, asset)).amount
    changed = (
        """
        insert into subscriptions.credits as c (account_id, currency, exponent, minor, revision)
        values ($1, $2, $3, $4, 1)
        on conflict (account_id, currency) do update
        set minor = c.minor + $4, revision = c.revision + 1, updated_at = payonce.due_now() where c.exponent = $3
        returning c.minor
        """
        if minor > 0
        else """
        update subscriptions.credits set minor = minor + $4, revision = revision + 1, updated_at = payonce.due_now()
        where account_id = $1 and currency = $2 and exponent = $3 and minor + $4 >= 0 returning minor
        """
    )
    after: int | None = await tx.fetchval(
        f"""
        with changed as ({changed})
        insert into subscriptions.credit_entries (account_id, currency, exponent, kind, minor, balance_minor, entry_key,
            invoice_id, payout_id, reason, actor, at, trace_id)
        select $1, $2, $3, $5, $4, changed.minor, $6, $7, $8, $9, $10, $11, $12 from changed returning balance_minor
        """,
        new.account_id,
        asset.code,
        asset.exponent,
        minor,
        new.kind,
        new.key,
        new.invoice_id,
        new.payout_id,
        new.reason[:REASON_MAX_CHARS],
        new.actor[:ACTOR_MAX_CHARS],
        new.at,
        tx.trace_id,
    )
    if after is None:
        left = await balance(tx, new.account_id, asset)
        raise Conflict(f"account {new.account_id} has {left.amount} of credit, which is less than {-new.amount}")
    return Amount(after, asset)


async def locked(tx: Tx, account_id: str, asset: Asset) -> Balance:
    """Locks the balance until this transaction ends. Without a row there is nothing to lock and nothing to use."""
    row = await tx.fetchrow(
        """
        select minor, revision from subscriptions.credits
        where account_id = $1 and currency = $2 and exponent = $3 for no key update
        """,
        account_id,
        asset.code,
        asset.exponent,
    )
    return _balance(row, asset)


async def locked_or_created(tx: Tx, account_id: str, asset: Asset) -> Balance:
    """Like `locked`, but creates a missing row, so that concurrent decisions about it are serialised."""
    await tx.execute(
        """
        insert into subscriptions.credits (account_id, currency, exponent, minor) values ($1, $2, $3, 0)
        on conflict (account_id, currency) do nothing
        """,
        account_id,
        asset.code,
        asset.exponent,
    )
    return await locked(tx, account_id, asset)


async def balance(read: Reader | Tx, account_id: str, asset: Asset) -> Balance:
    row = await read.fetchrow(
        "select minor, revision from subscriptions.credits where account_id = $1 and currency = $2 and exponent = $3",
        account_id,
        asset.code,
        asset.exponent,
    )
    return _balance(row, asset)


async def balances(read: Reads, account_id: str) -> list[Balance]:
    """In every currency in which the customer ever had credit."""
    rows = await read.fetch(
        "select minor, revision, currency, exponent from subscriptions.credits where account_id = $1 order by currency",
        account_id,
    )
    return [_balance(row, Asset(row["currency"], row["exponent"])) for row in rows]


async def entries(
    read: Reads, account_id: str, before: int | None = None, limit: int = LISTED_MAX
) -> list[CreditEntry]:
    """Newest first; `before` is the last id of the previous page."""
    rows = await read.fetch(
        """
        select e.*, i.number from subscriptions.credit_entries e
        left join subscriptions.invoices i on i.id = e.invoice_id
        where e.account_id = $1 and ($2::bigint is null or e.id < $2) order by e.id desc limit $3
        """,
        account_id,
        before,
        min(limit, LISTED_MAX),
    )
    return [_entry(row) for row in rows]


async def now_of(read: Reader | Tx, account_id: str) -> datetime | None:
    """The customer's time, by the database's clock or their test clock; None if there is no such account."""
    now: datetime | None = await read.fetchval(
        "select subscriptions.time_of(test_clock_id) from subscriptions.accounts where id = $1", account_id
    )
    return now


def _balance(row: Any, asset: Asset) -> Balance:
    return Balance(Amount.zero(asset), 0) if row is None else Balance(Amount(row["minor"], asset), row["revision"])


def _entry(row: Any) -> CreditEntry:
    asset = Asset(row["currency"], row["exponent"])
    return CreditEntry(
        id=row["id"],
        account_id=row["account_id"],
        kind=EntryKind(row["kind"]),
        amount=Amount(row["minor"], asset),
        balance=Amount(row["balance_minor"], asset),
        invoice_id=row["invoice_id"],
        invoice_number=row["number"],
        payout_id=row["payout_id"],
        reason=row["reason"],
        actor=row["actor"],
        at=row["at"],
    )
