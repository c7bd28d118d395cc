"""An invoice on paper for people who look at it here, whoever's it is."""

import asyncio

from payonce.engine.messages.transaction import Reader
from payonce.services.billing.subscriptions.domain.config import Terms
from payonce.services.billing.subscriptions.pdf import content as printing
from payonce.services.billing.subscriptions.pdf.render import to_pdf
from payonce.services.billing.subscriptions.store import customers
from payonce.services.billing.subscriptions.store import invoices as invoice_store
from payonce.services.billing.subscriptions.store import subscriptions as store


async def on_paper(read: Reader, invoice_id: str, terms: Terms) -> bytes | None:
    """The same PDF that its customer gets; None when there is no such invoice."""
    invoice = await invoice_store.find(read, invoice_id)
    if invoice is None:
        return None
    subscription = await store.find(read, invoice.subscription_id)
    assert subscription is not None
    account = await customers.as_invoiced(read, invoice)
    notes = await invoice_store.credit_notes(read, invoice)
    printable = printing.printed_invoice(invoice, notes, account, terms.seller, subscription.time_zone)
    return await asyncio.to_thread(to_pdf, printable, terms.fonts)
