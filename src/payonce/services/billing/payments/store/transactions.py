"""Transactions in the database, each function with its SQL."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Retry
from payonce.services.billing.payments.effects import ChargeFailure
from payonce.services.billing.payments.model import State, Transaction
from payonce.services.billing.payments.store.notifications import Notice
from payonce.services.billing.wire import Action

REFERENCES: Final = {
    "billing_transaction": "select id from payments.transactions where id = any($1::text[])",
    "billing_refund": "select id from payments.refunds where id = any($1::text[])",
}
"""Queries that return which of the given reference ids exist, by reference kind."""
NAMES: Final = """
    select coalesce(subscription_id, id) from payments.transactions where $1 in (id, invoice_id, gateway_id, charge_key)
    union select coalesce(t.subscription_id, t.id) from payments.refunds r
        join payments.transactions t on t.id = r.transaction_id where $1 in (r.id, r.gateway_id)"""
"""The correlation ids of a transaction or refund, found by any of its names."""
LISTED_MAX: Final = 200
REASON_MAX_CHARS: Final = 500


@dataclass(frozen=True)
class ChargedCard:
    """The part of a payment method that a charge needs."""

    id: str
    token: str
    brand: str
    last4: str


@dataclass(frozen=True)
class ChargeContext:
    """The state of a charge before it is executed."""

    transaction: Transaction | None
    card: ChargedCard | None
    """The card chosen for the transaction, or else the account's default."""
    paid_by: str | None
    """Another transaction that has paid the invoice."""
    now: datetime


async def charge_context(read: Reader, charge_key: str, account_id: str, invoice_id: str | None) -> ChargeContext:
    """In one query, since every renewal runs it."""
    row = await read.fetchrow(
        """
        select t.*, m.id as card_id, m.token as card_token, m.brand as card_brand, m.last4 as card_last4,
            payonce.due_now() as now, (
                select o.id from payments.transactions o
                where o.invoice_id = $3 and o.charge_key <> $1 and o.state in ('succeeded', 'partially_refunded')
                limit 1) as paid_by
        from (select $1::text as asked) a
        left join payments.transactions t on t.charge_key = a.asked
        left join payments.payment_methods m
            on m.id = t.payment_method_id or t.payment_method_id is null and m.account_id = $2 and m.is_default
        """,
        charge_key,
        account_id,
        invoice_id,
    )
    card = None
    if row["card_id"] is not None:
        card = ChargedCard(row["card_id"], row["card_token"], row["card_brand"], row["card_last4"])
    return ChargeContext(
        None if row["id"] is None else transaction_from(row),
        card,
        row["paid_by"],
        row["now"],
    )


async def begin(tx: Tx, transaction: Transaction, card: ChargedCard) -> None:
    """In the commit that records the order: stores the transaction with its card, which cannot be removed from now
    on."""
    begun = await tx.fetchval(
        """
        insert into payments.transactions (
            id, charge_key, account_id, subscription_id, invoice_id, generation, action, payment_method_id, currency,
            exponent, amount_minor, metadata, trace_id)
        select $1, $2, $3, $4, $5, $6::integer, $7, m.id, $9, $10::smallint, $11::bigint, $12::text::jsonb, $13
        from payments.payment_methods m where m.id = $8 and m.removed_at is null for share
        on conflict (charge_key) do update set payment_method_id = excluded.payment_method_id,
            updated_at = payonce.due_now()
        where transactions.id = excluded.id and transactions.state = 'pending'
          and coalesce(transactions.payment_method_id, excluded.payment_method_id) = excluded.payment_method_id
        returning true
        """,
        *_columns(transaction)[:7],
        card.id,
        *_columns(transaction)[7:],
    )
    if begun is None:
        raise Retry(
            f"the card of {transaction.charge_key} was removed, or another run has started the charge", after_s=0.0
        )


async def open_pending(tx: Tx, transaction: Transaction) -> None:
    """Stores a transaction without a card yet; an existing one stays unchanged."""
    await tx.execute(
        """
        insert into payments.transactions (
            id, charge_key, account_id, subscription_id, invoice_id, generation, action, currency, exponent,
            amount_minor, metadata, trace_id, payment_method_id)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::text::jsonb, $12, $13) on conflict do nothing
        """,
        *_columns(transaction),
        transaction.payment_method_id,
    )


async def end(
    tx: Tx,
    transaction_id: str,
    state: State,
    notice: Notice | None,
    *,
    gateway_id: str | None = None,
    failure: ChargeFailure | None = None,
) -> None:
    """Compare-and-set, together with the notification."""
    ended = await tx.fetchval(
        """
        with ended as (
            update payments.transactions
            set state = $2, gateway_id = $3, decline_code = $4, hard = $5, reason = $6, ended_at = payonce.due_now(),
                updated_at = payonce.due_now()
            where id = $1 and state = 'pending' returning id, trace_id
        ), told as (
            insert into payments.notifications (event_id, transaction_id, account_id, action, body, trace_id)
            select $7, id, $8, $9, $10, trace_id from ended where $7::text is not null
        )
        select true from ended
        """,
        transaction_id,
        state,
        gateway_id,
        None if failure is None else failure.code,
        failure is not None and failure.hard,
        None if failure is None else failure.reason[:REASON_MAX_CHARS],
        *(
            (None, None, None, None)
            if notice is None
            else (notice.event_id, notice.account_id, notice.action, notice.body)
        ),
    )
    if ended is None:
        raise Retry(f"transaction {transaction_id} is no longer pending", after_s=0.0)


async def find(read: Reader | Tx, transaction_id: str) -> Transaction | None:
    row = await read.fetchrow("select * from payments.transactions where id = $1", transaction_id)
    return None if row is None else transaction_from(row)


async def by_charge_key(read: Reader | Tx, charge_key: str) -> Transaction | None:
    row = await read.fetchrow("select * from payments.transactions where charge_key = $1", charge_key)
    return None if row is None else transaction_from(row)


async def locked(tx: Tx, transaction_id: str) -> Transaction | None:
    """Locks the transaction against other refunds until this database transaction ends."""
    row = await tx.fetchrow("select * from payments.transactions where id = $1 for update", transaction_id)
    return None if row is None else transaction_from(row)


async def record_credit(tx: Tx, transaction: Transaction, credited_minor: int) -> Transaction:
    """For a transaction that the caller has locked. The total is cumulative: repeated or late reports change
    nothing."""
    row = await tx.fetchrow(
        """
        update payments.transactions
        set credited_minor = greatest(credited_minor, least($2, amount_minor)), updated_at = payonce.due_now()
        where id = $1 returning *
        """,
        transaction.id,
        credited_minor,
    )
    return transaction_from(row)


async def listed(
    read: Reader, account_id: str | None, state: State | None, after: str | None, limit: int
) -> list[Transaction]:
    """Newest first; `after` is the last id of the previous page, of the same account: a page's start must not reveal
    when another account was charged. None lists all accounts."""
    rows = await read.fetch(
        """
        select * from payments.transactions
        where ($1::text is null or account_id = $1) and ($2::text is null or state = $2)
          and ($3::text is null or (created_at, id) < (
            select created_at, id from payments.transactions
            where id = $3 and ($1::text is null or account_id = $1)))
        order by created_at desc, id desc limit $4
        """,
        account_id,
        state,
        after,
        min(limit, LISTED_MAX),
    )
    return [transaction_from(row) for row in rows]


async def now(read: Reader | Tx) -> datetime:
    moment: datetime = await read.fetchval("select payonce.due_now()")
    return moment


def transaction_from(row: Any) -> Transaction:
    asset = Asset(row["currency"], row["exponent"])
    return Transaction(
        id=row["id"],
        charge_key=row["charge_key"],
        account_id=row["account_id"],
        subscription_id=row["subscription_id"],
        invoice_id=row["invoice_id"],
        generation=row["generation"],
        action=Action(row["action"]),
        payment_method_id=row["payment_method_id"],
        amount=Amount(row["amount_minor"], asset),
        state=State(row["state"]),
        gateway_id=row["gateway_id"],
        decline_code=row["decline_code"],
        hard=row["hard"],
        reason=row["reason"],
        refunded=Amount(row["refunded_minor"], asset),
        refunding=Amount(row["refunding_minor"], asset),
        metadata=json.loads(row["metadata"]),
        trace_id=row["trace_id"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        credited_minor=row["credited_minor"],
        paid_out_minor=row["paid_out_minor"],
    )


def _columns(transaction: Transaction) -> tuple[Any, ...]:
    amount = transaction.amount
    return (
        transaction.id,
        transaction.charge_key,
        transaction.account_id,
        transaction.subscription_id,
        transaction.invoice_id,
        transaction.generation,
        transaction.action,
        amount.asset.code,
        amount.asset.exponent,
        amount.minor,
        json.dumps(dict(transaction.metadata)),
        transaction.trace_id,
    )
