"""Pages of subscriptions and invoices, of one account or of all.

A page starts after an object of the same account: its position must not reveal when another account's object was
created.
"""

from typing import Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.services.billing.subscriptions.model import Invoice, InvoiceState, State, Subscription
from payonce.services.billing.subscriptions.store.invoices import WITH_LINES, invoice_from
from payonce.services.billing.subscriptions.store.subscriptions import subscription_from

LISTED_MAX: Final = 500


async def subscriptions(
    read: Reader | Tx, account_id: str | None, state: State | None, after: str | None, limit: int
) -> list[Subscription]:
    """Newest first; `after` is the last id of the previous page."""
    rows = await read.fetch(
        """
        select * from subscriptions.subscriptions
        where ($1::text is null or account_id = $1) and ($2::text is null or state = $2) and ($3::text is null
            or (created_at, id) < (select created_at, id from subscriptions.subscriptions
                where id = $3 and ($1::text is null or account_id = $1)))
        order by created_at desc, id desc limit $4
        """,
        account_id,
        state,
        after,
        min(limit, LISTED_MAX),
    )
    return [subscription_from(row) for row in rows]


async def invoices(
    read: Reader | Tx,
    account_id: str | None,
    subscription_id: str | None,
    state: InvoiceState | None,
    after: str | None,
    limit: int,
) -> list[Invoice]:
    """Newest first; `after` is the last id of the previous page."""
    rows = await read.fetch(
        f"""
        {WITH_LINES}
        where ($1::text is null or i.account_id = $1) and ($2::text is null or i.subscription_id = $2)
          and ($3::text is null or i.state = $3) and ($4::text is null
            or (i.issued_at, i.id) < (select issued_at, id from subscriptions.invoices
                where id = $4 and ($1::text is null or account_id = $1)))
        order by i.issued_at desc, i.id desc limit $5
        """,
        account_id,
        subscription_id,
        state,
        after,
        min(limit, LISTED_MAX),
    )
    return [invoice_from(row) for row in rows]
