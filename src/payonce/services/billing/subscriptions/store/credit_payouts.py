"""Credit payouts: the customer gets money instead of the credit.

A payout deducts the credit first, in the commit that requests the refund from payments. Payments answers by webhook:
the money was refunded, or the credit is restored. A manual payout is recorded after it was made.
"""

from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from payonce.engine.ledger.model import Reads
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.ids import new_id
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Retry
from payonce.services.billing.policies import REFUND_INITIATION
from payonce.services.billing.subscriptions import ledger
from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.model import (
    PAYOUT_MOVES,
    CreditPayout,
    EntryKind,
    PayoutState,
    PayoutWay,
)
from payonce.services.billing.subscriptions.store import credit
from payonce.services.billing.subscriptions.store.credit import NewEntry
from payonce.services.billing.wire import CREDIT_KEY, Action, Notification, Status

LISTED_MAX: Final = 200
FAILURE_MAX_CHARS: Final = 500
_COLUMNS: Final = """
    id, account_id, currency, exponent, amount_minor, way, invoice_id, transaction_id, state, refund_id, failure,
    reason, asked_by, at, trace_id, created_at, ended_at"""


@dataclass(frozen=True)
class PayoutSource:
    """A charge that can be refunded, and its refundable amount."""

    invoice_id: str
    number: str
    transaction_id: str
    subscription_id: str
    left: Amount


async def pay_out(
    tx: Tx, account_id: str, amount: Amount, way: PayoutWay, reason: str, by: str, invoice: str | None = None
) -> CreditPayout:
    """Deducts the credit, and requests a refund from payments or records a manual payout. `invoice`, by id or number,
    selects the charge to refund; by default one with enough left is chosen. Raises Conflict for too little credit, or
    without a suitable charge."""
    now = await credit.now_of(tx, account_id)
    if now is None:
        raise NotFound(f"there is no account {account_id!r}")
    source = None if way is PayoutWay.BY_HAND else await _source(tx, account_id, amount, invoice)
    payout = await _insert(tx, account_id, amount, way, source, reason, by)
    await tx.post(ledger.payout_begun(payout))
    taken = NewEntry(
        account_id, EntryKind.PAID_OUT, -amount, f"payout:{payout.id}", reason, now, by, payout_id=payout.id
    )
    await credit.book(tx, taken)
    if source is not None:
        await ask_payments(tx, payout, source.subscription_id)
    return payout


async def ask_payments(tx: Tx, payout: CreditPayout, about: str, *, again: bool = False) -> UUID:
    """Returns the message id. Pass `again` if the message was lost: its key is remembered, and payments recognises the
    refund by the key in the payload."""
    key = f"{CREDIT_KEY}{payout.id}"
    wanted = {
        "transaction_id": payout.transaction_id,
        "key": key,
        "reason": payout.reason,
        "amount_minor": payout.amount.minor,
        "currency": payout.amount.asset.code,
        "from_credit": True,
        "account_id": payout.account_id,
    }
    return await tx.send(
        REFUND_INITIATION, wanted, action=Action.REFUND, key=None if again else key, correlation_id=about
    )


async def apply(tx: Tx, notification: Notification, refund_key: str) -> str | None:
    """Applies the outcome reported by payments. Returns None, or a sentence about a mismatch or failure."""
    payout_id = refund_key.removeprefix(CREDIT_KEY)
    payout = await _locked(tx, payout_id)
    if payout is None:
        return f"there is no payout {payout_id[:100]!r}"
    if payout.state is not PayoutState.PENDING:
        return f"{notification.status} of payout {payout.id} arrived when it was {payout.state}"
    if (notification.amount, notification.currency) != (payout.amount.to_text(), payout.amount.asset.code):
        return f"{notification.amount} {notification.currency} is not the amount of payout {payout.id}"
    if notification.status is Status.FAILED:
        why = str(notification.metadata.get("reason") or "payments gave no reason")[:FAILURE_MAX_CHARS]
        await _fail(tx, payout, why)
        return f"payout {payout.id} of {payout.amount} failed, and the credit was restored: {why}"
    if notification.transaction_id != payout.transaction_id:
        return f"payout {payout.id} refunds transaction {payout.transaction_id}, not {notification.transaction_id}"
    await tx.post(ledger.payout_arrived(payout))
    await _end(tx, payout, PayoutState.SUCCEEDED, refund_id=str(notification.metadata.get("refund_id")))
    return None


async def find(read: Reader | Tx, payout_id: str) -> CreditPayout | None:
    row = await read.fetchrow(f"select {_COLUMNS} from subscriptions.credit_payouts where id = $1", payout_id)
    return None if row is None else payout_from(row)


async def of_account(
    read: Reads, account_id: str, before: str | None = None, limit: int = LISTED_MAX
) -> list[CreditPayout]:
    """Newest first; `before` is the last id of the previous page."""
    rows = await read.fetch(
        f"""
        select {_COLUMNS} from subscriptions.credit_payouts where account_id = $1 and ($2::text is null
            or (created_at, id) < (
                select created_at, id from subscriptions.credit_payouts where id = $2 and account_id = $1))
        order by created_at desc, id desc limit $3
        """,
        account_id,
        before,
        min(limit, LISTED_MAX),
    )
    return [payout_from(row) for row in rows]


async def sources(read: Reads, account_id: str, asset: Asset) -> list[PayoutSource]:
    """Refundable charges: first those that the credit came from, then the newest. Payments may know of further refunds
    in progress, and refuse."""
    rows = await read.fetch(
        """
        select i.id, i.number, i.transaction_id, i.subscription_id,
            i.due_minor - i.refunded_minor - coalesce(paid.minor, 0) as left_minor
        from subscriptions.invoices i
        left join lateral (
            select sum(p.amount_minor)::bigint as minor from subscriptions.credit_payouts p
            where p.invoice_id = i.id and p.state <> 'failed') paid on true
        where i.account_id = $1 and i.currency = $2 and i.exponent = $3 and i.state = 'paid' and i.action <> 'trial'
          and i.transaction_id is not null and i.due_minor > i.refunded_minor + coalesce(paid.minor, 0)
        order by exists (
            select from subscriptions.invoice_lines l
            where l.invoice_id = i.id and l.closed_at < l.service_end) desc, i.issued_at desc, i.id desc
        limit $4
        """,
        account_id,
        asset.code,
        asset.exponent,
        LISTED_MAX,
    )
    return [
        PayoutSource(
            row["id"], row["number"], row["transaction_id"], row["subscription_id"], Amount(row["left_minor"], asset)
        )
        for row in rows
    ]


async def forgotten(tx: Tx, after_s: float, queues: list[str], limit: int) -> list[tuple[CreditPayout, str]]:
    """Pending payouts that have had no message for this long, each with its subscription. They count as requested
    now."""
    rows = await tx.fetch(
        """
        update subscriptions.credit_payouts p set updated_at = payonce.due_now()
        from (
            select c.id, i.subscription_id from subscriptions.credit_payouts c
            join subscriptions.invoices i on i.id = c.invoice_id
            where c.state = 'pending' and c.updated_at < payonce.due_now() - make_interval(secs => $1::float8)
              and not exists (select from payonce.live_messages m
                              where m.correlation_id = i.subscription_id and m.queue = any($2::text[]))
            limit $3 for update of c skip locked
        ) lost where p.id = lost.id returning p.*, lost.subscription_id
        """,
        after_s,
        queues,
        limit,
    )
    return [(payout_from(row), row["subscription_id"]) for row in rows]


async def _source(tx: Tx, account_id: str, amount: Amount, invoice: str | None) -> PayoutSource:
    found = await sources(tx, account_id, amount.asset)
    if invoice is not None:
        found = [each for each in found if invoice in (each.invoice_id, each.number)]
        if not found:
            raise Conflict(
                f"invoice {invoice[:100]!r} of account {account_id} has no refundable charge in {amount.asset}; "
                "name another one, or pay out by hand"
            )
    fitting = [each for each in found if each.left >= amount]
    if not fitting:
        most = max(found, key=lambda each: each.left, default=None)
        room = (
            ""
            if most is None
            else f"; at most {most.left} is refundable, through invoice {most.number}: pay out in parts"
        )
        raise Conflict(
            f"no charge of account {account_id} has {amount} left to refund to its card{room}, or pay out by hand"
        )
    return fitting[0]


async def _insert(
    tx: Tx, account_id: str, amount: Amount, way: PayoutWay, source: PayoutSource | None, reason: str, by: str
) -> CreditPayout:
    state = PayoutState.PENDING if way is PayoutWay.CARD else PayoutState.SUCCEEDED
    row = await tx.fetchrow(
        f"""
        insert into subscriptions.credit_payouts (id, account_id, currency, exponent, amount_minor, way, invoice_id,
            transaction_id, state, reason, asked_by, at, trace_id, ended_at)
        select $1, a.id, $3, $4, $5, $6, $7, $8, $9, $10, $11, subscriptions.time_of(a.test_clock_id), $12,
            case when $9 = 'pending' then null else payonce.due_now() end
        from subscriptions.accounts a where a.id = $2 returning {_COLUMNS}
        """,
        str(new_id()),
        account_id,
        amount.asset.code,
        amount.asset.exponent,
        amount.minor,
        way,
        None if source is None else source.invoice_id,
        None if source is None else source.transaction_id,
        state,
        reason[: credit.REASON_MAX_CHARS],
        by[: credit.ACTOR_MAX_CHARS],
        tx.trace_id,
    )
    return payout_from(row)


async def _fail(tx: Tx, payout: CreditPayout, why: str) -> None:
    now = await credit.now_of(tx, payout.account_id)
    assert now is not None
    await tx.post(ledger.payout_failed(payout))
    await credit.book(
        tx,
        NewEntry(
            payout.account_id,
            EntryKind.PAID_OUT,
            payout.amount,
            f"payout_failed:{payout.id}",
            f"the payout failed: {why}",
            now,
            payout_id=payout.id,
        ),
    )
    await _end(tx, payout, PayoutState.FAILED, failure=why)


async def _end(
    tx: Tx, payout: CreditPayout, state: PayoutState, *, refund_id: str | None = None, failure: str | None = None
) -> CreditPayout:
    assert state in PAYOUT_MOVES[payout.state]
    ended = await tx.fetchval(
        """
        update subscriptions.credit_payouts set state = $2, refund_id = $3, failure = $4, ended_at = payonce.due_now(),
            updated_at = payonce.due_now()
        where id = $1 and state = 'pending' returning ended_at
        """,
        payout.id,
        state,
        refund_id,
        failure,
    )
    if ended is None:
        raise Retry(f"payout {payout.id} is no longer pending", after_s=0.0)
    return replace(payout, state=state, refund_id=refund_id, failure=failure, ended_at=ended)


async def _locked(tx: Tx, payout_id: str) -> CreditPayout | None:
    row = await tx.fetchrow(
        f"select {_COLUMNS} from subscriptions.credit_payouts where id = $1 for no key update", payout_id
    )
    return None if row is None else payout_from(row)


def payout_from(row: Any) -> CreditPayout:
    return CreditPayout(
        id=row["id"],
        account_id=row["account_id"],
        amount=Amount(row["amount_minor"], Asset(row["currency"], row["exponent"])),
        way=PayoutWay(row["way"]),
        invoice_id=row["invoice_id"],
        transaction_id=row["transaction_id"],
        state=PayoutState(row["state"]),
        refund_id=row["refund_id"],
        failure=row["failure"],
        reason=row["reason"],
        asked_by=row["asked_by"],
        at=row["at"],
        trace_id=row["trace_id"],
        created_at=row["created_at"],
        ended_at=row["ended_at"],
    )
