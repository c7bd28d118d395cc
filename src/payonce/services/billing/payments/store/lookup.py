"""Charges, refunds and notifications by any id or key."""

from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.engine.monitoring.lookup import MATCHES_MAX, LookupResult
from payonce.services.billing.payments.store.queries import is_installed

CUSTOMERS: Final = "/billing/customers"
INVOICES: Final = "/billing/invoices"
DELIVERIES: Final = "/billing/deliveries"


async def find_payments(read: Reads, what: str) -> list[LookupResult]:
    """A charge or a refund by its id, its key or the gateway's id, and a notification by its event id. A charge has no
    page of its own: the result links to its invoice or customer."""
    if not await is_installed(read):
        return []
    rows = await read.fetch(
        f"""
        (select 'charge' as kind, t.id as name, t.invoice_id, t.account_id, null as event_id, t.state,
            case when t.id = $1 then 'id' when t.gateway_id = $1 then 'id at the gateway' else 'key' end as matched,
            coalesce(t.subscription_id, t.id) as correlation_id
         from payments.transactions t where t.id = $1 or t.gateway_id = $1 or t.charge_key = $1)
        union all
        (select 'refund', r.id, t.invoice_id, t.account_id, null, r.state,
            case when r.id = $1 then 'id' when r.gateway_id = $1 then 'id at the gateway' else 'key' end,
            coalesce(t.subscription_id, t.id)
         from payments.refunds r join payments.transactions t on t.id = r.transaction_id
         where r.id = $1 or r.gateway_id = $1 or r.refund_key = $1)
        union all
        (select 'notification', n.event_id, null, n.account_id, n.event_id,
            case when n.delivered_at is null then 'waiting' else 'delivered' end, 'event id', null
         from payments.notifications n where n.event_id = $1)
        limit {MATCHES_MAX}
        """,
        what,
    )
    return [
        LookupResult(row["kind"], row["name"], _path(row), row["state"], row["matched"], row["correlation_id"])
        for row in rows
    ]


def _path(row: Any) -> str:
    if row["event_id"] is not None:
        return f"{DELIVERIES}/{row['event_id']}"
    if row["invoice_id"] is not None:
        return f"{INVOICES}/{row['invoice_id']}"
    return f"{CUSTOMERS}/{row['account_id']}"
