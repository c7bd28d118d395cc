"""Customers list, download and pay their invoices."""

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response

from payonce.engine.messages.transaction import Tx
from payonce.http.kit.context import AppContext, AppContextDep
from payonce.http.kit.idempotency import Once
from payonce.http.kit.problems import not_found
from payonce.http.kit.values import PAGE_DEFAULT, Limit
from payonce.services.billing.api.callers import (
    BillingCaller,
    account_of,
    caller_of,
    limit_attempts,
    require_idempotent,
    require_resource,
)
from payonce.services.billing.scopes import OPERATE
from payonce.services.billing.subscriptions.api.common_routes import (
    CHANGES,
    ID,
    READS,
    Cursor,
    Id,
    OfAccount,
    Viewer,
    only_of,
    page_after,
    refusing,
)
from payonce.services.billing.subscriptions.api.documents import InvoiceDetails, InvoiceDocument, InvoicePage
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.handlers import dunning
from payonce.services.billing.subscriptions.model import Account, Invoice, InvoiceState
from payonce.services.billing.subscriptions.pdf import content
from payonce.services.billing.subscriptions.pdf.render import PrintedDocument, to_pdf
from payonce.services.billing.subscriptions.store import credit_notes, customers, invoices, pages, subscriptions
from payonce.services.billing.subscriptions.store.credit_notes import CreditNote

PREFIX: Final = "/v1/invoices"
PDF: Final = "application/pdf"
PRINTS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The document.", "content": {PDF: {"schema": {"type": "string", "format": "binary"}}}},
    **READS,
}


def invoice_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["invoices"])
    _add_reading(routes)
    _add_printing(routes)

    @routes.post(
        "/{invoice_id}/pay",
        status_code=202,
        summary="Charge an unpaid invoice now",
        response_model=InvoiceDocument,
        responses=CHANGES,
    )
    async def pay_invoice(
        invoice_id: Id, context: AppContextDep, once: Annotated[Once, require_idempotent(OPERATE)]
    ) -> Response:
        require_resource(context, SubscriptionConfig)

        async def act(tx: Tx) -> InvoiceDocument:
            await limit_attempts(tx, caller_of(once))
            return InvoiceDocument.of(await dunning.pay_invoice(tx, only_of(caller_of(once)), invoice_id))

        return await once.answer(refusing(act), status=202, location=lambda made: f"{PREFIX}/{made.id}")

    return routes


def _add_reading(routes: APIRouter) -> None:
    @routes.get("", summary="List invoices, newest first", responses=READS)
    async def list_invoices(
        context: AppContextDep,
        caller: Viewer,
        account_id: OfAccount = None,
        state: InvoiceState | None = None,
        subscription_id: Annotated[str | None, Query(pattern=ID)] = None,
        limit: Limit = PAGE_DEFAULT,
        after: Cursor = None,
    ) -> InvoicePage:
        require_resource(context, SubscriptionConfig)
        whose = account_id if caller.operator else account_of(caller, account_id)
        found = await pages.invoices(context.read, whose, subscription_id, state, after, limit)
        shown = [InvoiceDocument.of(each) for each in found]
        return InvoicePage(invoices=shown, next_after=page_after(found, limit))

    @routes.get("/{invoice_id}", summary="Get an invoice by id or number, with its credit notes", responses=READS)
    async def show_invoice(invoice_id: Id, context: AppContextDep, caller: Viewer) -> InvoiceDetails:
        invoice, notes = await _visible_invoice(context, caller, invoice_id)
        return InvoiceDetails.told(invoice, notes)


def _add_printing(routes: APIRouter) -> None:
    @routes.get("/{invoice_id}/pdf", summary="Download an invoice as PDF", responses=PRINTS, response_class=Response)
    async def print_invoice(invoice_id: Id, context: AppContextDep, caller: Viewer) -> Response:
        invoice, notes = await _visible_invoice(context, caller, invoice_id)
        account, zone = await _customer(context, invoice)
        config = require_resource(context, SubscriptionConfig)
        return await _printed(content.printed_invoice(invoice, notes, account, config.seller, zone), config)

    @routes.get(
        "/{invoice_id}/credit-notes/{credit_note_id}/pdf",
        summary="Download a credit note as PDF",
        responses=PRINTS,
        response_class=Response,
    )
    async def print_credit_note(invoice_id: Id, credit_note_id: Id, context: AppContextDep, caller: Viewer) -> Response:
        invoice, notes = await _visible_invoice(context, caller, invoice_id)
        place = next((at for at, note in enumerate(notes) if credit_note_id in (note.id, note.number)), None)
        if place is None:
            raise not_found(f"credit note {credit_note_id!r} of invoice {invoice_id!r}")
        account, zone = await _customer(context, invoice)
        config, before = require_resource(context, SubscriptionConfig), notes[:place]
        printed = content.printed_note(notes[place], before, invoice, account, config.seller, zone)
        return await _printed(printed, config)


async def _visible_invoice(
    context: AppContext, caller: BillingCaller, invoice_id: str
) -> tuple[Invoice, list[CreditNote]]:
    require_resource(context, SubscriptionConfig)
    found = await invoices.find(context.read, invoice_id)
    if found is None or not caller.may_see(found.account_id):
        raise not_found(f"invoice {invoice_id!r}")
    return found, await credit_notes.of_invoice(context.read, found)


async def _customer(context: AppContext, invoice: Invoice) -> tuple[Account, str]:
    subscription = await subscriptions.find(context.read, invoice.subscription_id)
    assert subscription is not None
    return await customers.as_invoiced(context.read, invoice), subscription.time_zone


async def _printed(document: PrintedDocument, config: SubscriptionConfig) -> Response:
    body = await asyncio.to_thread(to_pdf, document, config.fonts)
    named = {"Content-Disposition": f'inline; filename="{document.number}.pdf"'}
    return Response(body, media_type=PDF, headers=named)
