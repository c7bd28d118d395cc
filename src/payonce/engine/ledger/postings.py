"""Writes to the ledger, always in the transaction of the business rows."""

import json
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from payonce.engine.database.connections import Connection
from payonce.engine.ledger.model import Account, Overdrawn, Posting, PostingId
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, Unavailable


class OpenTransaction(Protocol):
    """Implemented by Tx."""

    @property
    def connection(self) -> Connection: ...


async def post(within: Connection | OpenTransaction, posting: Posting, trace_id: str | None = None) -> PostingId:
    """Writes the posting, or returns the id it already has: the same key, reference and lines are the same posting.

    Accounts are opened by their first posting. Guarded accounts are locked, in the order of their ids, until the
    transaction ends. Two postings of one transaction lock one after the other, so put related lines into one
    posting. After a refusal (Invalid, Overdrawn) the transaction cannot continue, so nothing of it is written.
    """
    [posting_id] = await post_all(within, [posting], trace_id)
    return posting_id


async def post_all(
    within: Connection | OpenTransaction, postings: Sequence[Posting], trace_id: str | None = None
) -> list[PostingId]:
    """Writes several postings in one statement, each checked as if those before it were written."""
    connection = _inside_a_transaction(within)
    entries = [_Entry(posting, posting.trace_id or trace_id) for posting in postings]
    try:
        # For a single posting, the function for many takes longer.
        return (
            [await _post_one(connection, *entry) for entry in entries]
            if len(entries) < 2
            else (await _post_many(connection, entries))
        )
    except asyncpg.PostgresError as error:
        raise _refusal(error) from error


class _Entry(NamedTuple):
    posting: Posting
    trace_id: str | None


async def _post_many(connection: Connection, entries: Sequence[_Entry]) -> list[PostingId]:
    places: dict[tuple[str, Asset], int] = {}
    lines = [
        (number, places.setdefault((line.path, line.amount.asset), len(places) + 1), line.amount.minor)
        for number, entry in enumerate(entries, 1)
        for line in entry.posting.lines
    ]
    ids: list[PostingId] = await connection.fetchval(
        "select payonce.post_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        *map(list, zip(*map(_head, entries), strict=True)),
        [path for path, _ in places],
        [asset.code for _, asset in places],
        [asset.exponent for _, asset in places],
        *map(list, zip(*lines, strict=True)),
    )
    return ids


def _head(entry: _Entry) -> tuple[str, str, str, str | None, str]:
    posting, trace_id = entry
    return posting.key, posting.reference.kind, posting.reference.id, trace_id, posting.text


async def _post_one(connection: Connection, posting: Posting, trace_id: str | None) -> PostingId:
    lines, assets = posting.lines, [line.amount.asset for line in posting.lines]
    posting_id: PostingId = await connection.fetchval(
        "select payonce.post($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        posting.key,
        posting.reference.kind,
        posting.reference.id,
        trace_id,
        posting.text,
        [line.path for line in lines],
        [asset.code for asset in assets],
        [asset.exponent for asset in assets],
        [line.amount.minor for line in lines],
    )
    return posting_id


async def declare(within: Connection | OpenTransaction, *accounts: Account) -> None:
    """Opens accounts ahead of their first posting. Until the transaction that opens an account commits, others that
    need it wait: declare shared accounts at the start."""
    assets = [account.asset for account in accounts]
    await _inside_a_transaction(within).execute(
        "select payonce.open_accounts($1, $2, $3)",
        [account.path for account in accounts],
        [asset.code for asset in assets],
        [asset.exponent for asset in assets],
    )


async def guard(
    within: Connection | OpenTransaction,
    account: Account,
    minimum: Amount | None = None,
    maximum: Amount | None = None,
) -> None:
    """Opens an account whose balance never goes below `minimum` nor above `maximum`, or changes its limits.

    Without any limit, the balance stays at zero or more. Claims on others are positive, our debts to them negative: a
    customer's credit is kept at or below zero by `maximum`.
    """
    connection = _inside_a_transaction(within)
    if minimum is None and maximum is None:
        minimum = Amount.zero(account.asset)
    for limit in (minimum, maximum):
        if limit is not None and limit.asset != account.asset:
            raise Invalid(f"account {account} cannot be limited to {limit}: state the limit in its own asset")
    try:
        await connection.fetchval(
            "select payonce.guard_account($1, $2, $3, $4, $5)",
            account.path,
            account.asset.code,
            account.asset.exponent,
            _minor(minimum),
            _minor(maximum),
        )
    except asyncpg.PostgresError as error:
        raise _refusal(error) from error


def _inside_a_transaction(within: Connection | OpenTransaction) -> Connection:
    connection = within if isinstance(within, (asyncpg.Connection, PoolConnectionProxy)) else within.connection
    if not connection.is_in_transaction():
        raise Invalid("postings are written in the transaction of the business rows: begin one first")
    return connection


def _minor(limit: Amount | None) -> int | None:
    return None if limit is None else limit.minor


def _refusal(error: asyncpg.PostgresError) -> Exception:
    """The ledger's own refusals as our exceptions; other errors of the server are returned unchanged."""
    match error.sqlstate:
        case "LG001" | "LG002":
            return Invalid(str(error))
        case "LG003":
            return _overdrawn(error)
        case "LG004":
            return Unavailable(str(error))
        case _:
            return error


def _overdrawn(error: asyncpg.PostgresError) -> Overdrawn:
    path, code, exponent, balance, change, minimum, maximum = json.loads(error.detail or "")
    asset = Asset(code, exponent)
    moved_by = Amount.from_minor(change, asset)
    limit = minimum if moved_by.minor < 0 else maximum
    return Overdrawn(Account(path, asset), Amount.from_minor(balance, asset), moved_by, Amount.from_minor(limit, asset))
