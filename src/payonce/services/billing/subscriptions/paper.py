"""An invoice on paper for people who look at it here, whoever's it is."""

import asyncio

from payonce.engine.transaction import Reader
from payonce.services.billing.subscriptions import customers, invoice_store, printing, store
from payonce.services.billing.subscriptions.document import to_pdf
from payonce.services.billing.subscriptions.terms import Terms


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
