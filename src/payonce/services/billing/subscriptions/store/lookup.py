"""Customers, subscriptions and invoices by any id, number or address."""

from typing import Final

from payonce.engine.ledger.model import Reads
from payonce.engine.monitoring.lookup import MATCHES_MAX, LookupResult
from payonce.services.billing.subscriptions.store.queries import is_installed

CUSTOMERS: Final = "/billing/customers"
SUBSCRIPTIONS: Final = "/billing/subscriptions"
INVOICES: Final = "/billing/invoices"


async def find_subscriptions(read: Reads, what: str) -> list[LookupResult]:
    """A customer by id, external id or e-mail address, a subscription by id, an invoice by id or number, its own or a
    credit note's; newest first within each kind."""
    if not await is_installed(read):
        return []
    rows = await read.fetch(
        f"""
        (select 'customer' as kind, email as name, '{CUSTOMERS}/' || id as path, null as state,
            case when id = $1 then 'id' when external_id = $1 then 'external id' else 'e-mail address' end as matched,
            (select s.id from subscriptions.subscriptions s where s.account_id = a.id
             order by s.created_at desc limit 1) as correlation_id
         from subscriptions.accounts a where id = $1 or external_id = $1 or email = lower($1))
        union all
        (select 'subscription', s.id, '{SUBSCRIPTIONS}/' || s.id, s.state, 'id', s.id
         from subscriptions.subscriptions s where s.id = $1)
        union all
        (select 'invoice', i.number, '{INVOICES}/' || i.id, i.state,
            case when i.id = $1 then 'id' else 'number' end, i.subscription_id
         from subscriptions.invoices i where i.id = $1 or i.number = upper($1))
        union all
        (select 'invoice', i.number, '{INVOICES}/' || i.id, i.state, 'credit note ' || c.number, i.subscription_id
         from subscriptions.credit_notes c join subscriptions.invoices i on i.id = c.invoice_id
         where c.id = $1 or c.number = upper($1))
        limit {MATCHES_MAX}
        """,
        what,
    )
    return [LookupResult(**row) for row in rows]
