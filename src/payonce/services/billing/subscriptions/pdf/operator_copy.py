"""Any invoice as PDF, for operators."""

import asyncio

from payonce.engine.messages.transaction import Reader
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.pdf import content
from payonce.services.billing.subscriptions.pdf.render import to_pdf
from payonce.services.billing.subscriptions.store import credit_notes, customers, invoices, subscriptions


async def operator_pdf(read: Reader, invoice_id: str, config: SubscriptionConfig) -> bytes | None:
    """The same PDF that the customer gets; None if there is no such invoice."""
    invoice = await invoices.find(read, invoice_id)
    if invoice is None:
        return None
    subscription = await subscriptions.find(read, invoice.subscription_id)
    assert subscription is not None
    account = await customers.as_invoiced(read, invoice)
    notes = await credit_notes.of_invoice(read, invoice)
    document = content.printed_invoice(invoice, notes, account, config.seller, subscription.time_zone)
    return await asyncio.to_thread(to_pdf, document, config.fonts)
