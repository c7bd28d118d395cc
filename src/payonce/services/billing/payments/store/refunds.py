"""Refunds in the database, each function with its SQL."""

from typing import Any, Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.ids import new_id
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Retry
from payonce.services.billing.payments.model import Refund, RefundState, State, Transaction
from payonce.services.billing.payments.store.notifications import Notice

REASON_MAX_CHARS: Final = 500

_REFUNDS: Final = """
    select r.*, t.currency, t.exponent
    from payments.refunds r join payments.transactions t on t.id = r.transaction_id"""


async def open_pending(
    tx: Tx,
    transaction: Transaction,
    amount: Amount,
    reason: str,
    key: str,
    *,
    outside: bool = False,
    from_credit: bool = False,
) -> Refund:
    """Records a pending refund; the transaction, which the caller has locked, already counts it."""
    row = await tx.fetchrow(
        """
        with promised as (
            update payments.transactions
            set refunding_minor = refunding_minor + $3,
                paid_out_minor = paid_out_minor + case when $10 then $3 else 0 end, updated_at = payonce.due_now()
            where id = $2
        )
        insert into payments.refunds
            (id, transaction_id, amount_minor, refund_key, reason, trace_id, outside, from_credit)
        values ($1, $2, $3, $4, $5, $6, $9, $10) returning *, $7::text as currency, $8::smallint as exponent
        """,
        str(new_id()),
        transaction.id,
        amount.minor,
        key,
        reason[:REASON_MAX_CHARS],
        tx.trace_id,
        amount.asset.code,
        amount.asset.exponent,
        outside,
        from_credit,
    )
    return refund_from(row)


async def end(
    tx: Tx,
    refund: Refund,
    state: RefundState,
    notice: Notice | None,
    *,
    gateway_id: str | None = None,
    failure: str | None = None,
) -> None:
    """Compare-and-set: updates refund and transaction and stores the notification in one statement."""
    given = refund.amount.minor if state is RefundState.SUCCEEDED else 0
    ended = await tx.fetchval(
        """
        with ended as (
            update payments.refunds
            set state = $2, gateway_id = $3, failure = $4, ended_at = payonce.due_now(), updated_at = payonce.due_now()
            where id = $1 and state = 'pending' returning id, transaction_id, amount_minor, trace_id, from_credit
        ), counted as (
            update payments.transactions t
            set refunding_minor = refunding_minor - e.amount_minor, refunded_minor = refunded_minor + $5,
                paid_out_minor = paid_out_minor - case when e.from_credit then e.amount_minor - $5 else 0 end,
                state = case when refunded_minor + $5 = 0 then $6
                    when refunded_minor + $5 = t.amount_minor then $7 else $8 end,
                updated_at = payonce.due_now()
            from ended e where t.id = e.transaction_id
        ), told as (
            insert into payments.notifications
                (event_id, transaction_id, refund_id, account_id, action, body, trace_id)
            select $9, transaction_id, id, $10, $11, $12, trace_id from ended where $9::text is not null
        )
        select true from ended
        """,
        refund.id,
        state,
        gateway_id,
        None if failure is None else failure[:REASON_MAX_CHARS],
        given,
        State.SUCCEEDED,
        State.REFUNDED,
        State.PARTIALLY_REFUNDED,
        *(
            (None, None, None, None)
            if notice is None
            else (notice.event_id, notice.account_id, notice.action, notice.body)
        ),
    )
    if ended is None:
        raise Retry(f"refund {refund.id} is no longer pending", after_s=0.0)


async def record_refusal(tx: Tx, notice: Notice) -> bool:
    """Records that a refund request was refused. False if that is recorded already."""
    inserted: bool | None = await tx.fetchval(
        """
        insert into payments.notifications (event_id, account_id, action, body, trace_id) values ($1, $2, $3, $4, $5)
        on conflict (event_id) do nothing returning true
        """,
        notice.event_id,
        notice.account_id,
        notice.action,
        notice.body,
        tx.trace_id,
    )
    return inserted is not None


async def was_refused(read: Reader | Tx, event_id: str) -> bool:
    found: bool = await read.fetchval(
        "select exists (select from payments.notifications where event_id = $1)", event_id
    )
    return found


async def find(read: Reader | Tx, refund_id: str) -> Refund | None:
    row = await read.fetchrow(f"{_REFUNDS} where r.id = $1", refund_id)
    return None if row is None else refund_from(row)


async def by_key(read: Reader | Tx, key: str) -> Refund | None:
    row = await read.fetchrow(f"{_REFUNDS} where r.refund_key = $1", key)
    return None if row is None else refund_from(row)


async def of_transaction(read: Reader | Tx, transaction_id: str) -> list[Refund]:
    rows = await read.fetch(f"{_REFUNDS} where r.transaction_id = $1 order by r.created_at, r.id", transaction_id)
    return [refund_from(row) for row in rows]


def refund_from(row: Any) -> Refund:
    return Refund(
        id=row["id"],
        refund_key=row["refund_key"],
        transaction_id=row["transaction_id"],
        amount=Amount(row["amount_minor"], Asset(row["currency"], row["exponent"])),
        reason=row["reason"],
        state=RefundState(row["state"]),
        gateway_id=row["gateway_id"],
        failure=row["failure"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        outside=row["outside"],
        from_credit=row["from_credit"],
    )
