"""Invoices: the list by any filter, and one with its lines, credit notes and charges."""

from typing import Final

from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, choice_of, moment_of, name_of, text_of
from payonce.console.links import link
from payonce.console.page import Visit
from payonce.console.reads import bounded
from payonce.engine.controls import waiting_approval
from payonce.kit.outcomes import Invalid, PayonceError, Stale
from payonce.services.billing.console.queries import PAYMENTS, has, id_from, not_found
from payonce.services.billing.payments.decisions import ACTION as REFUND
from payonce.services.billing.payments.store import queries
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.model import InvoiceState
from payonce.services.billing.subscriptions.pdf.operator_copy import operator_pdf
from payonce.services.billing.subscriptions.store import invoice_queries
from payonce.services.billing.subscriptions.store.invoice_queries import InvoiceFilter, InvoiceSummary
from payonce.services.billing.wire import Action

FILTERS: Final = ("reference", "action", "failed", "since", "until")
ACTIONS: Final = (Action.INITIAL, Action.TRIAL, Action.RENEWAL, Action.UPGRADE, Action.DOWNGRADE)


async def list_invoices(visit: Visit) -> Response:
    asked = visit.query
    state = choice_of(asked, "state", ("all", *InvoiceState), "all")
    action = choice_of(asked, "action", ("all", *ACTIONS), "all")
    wanted = InvoiceFilter(
        state=None if state == "all" else InvoiceState(state),
        action=None if action == "all" else Action(action),
        reference=name_of(asked, "reference"),
        failed=choice_of(asked, "failed", ("no", "yes"), "no") == "yes",
        since=moment_of(asked, "since"),
        until=moment_of(asked, "until"),
    )
    before = name_of(asked, "before")
    async with bounded(visit) as read:
        sums = await invoice_queries.sums(read, wanted)
        found = await invoice_queries.listed(read, wanted, before, PAGE_ROWS + 1)
    rows, typed = found[:PAGE_ROWS], {name: text_of(asked, name) for name in FILTERS}
    here = "/billing/invoices"
    return visit.page(
        "billing/invoices.html",
        "Invoices",
        rows=rows,
        typed=typed,
        chosen=state,
        sums=sums,
        actions=ACTIONS,
        everything=sum(each.count for each in sums),
        filtered=any(typed.values()),
        first=link(here, **typed, state=state) if before else None,
        next=link(here, **typed, state=state, before=rows[-1].id) if len(found) > PAGE_ROWS else None,
    )


async def show_invoice(visit: Visit) -> Response:
    return await invoice_page(visit, await known_invoice(visit))


async def print_invoice(visit: Visit) -> Response:
    """Needs a process that runs subscriptions, which knows the seller."""
    bill = await known_invoice(visit)
    config = next((each for each in visit.context.resources if isinstance(each, SubscriptionConfig)), None)
    if config is None:
        raise Invalid(
            "this process does not run billing.subscriptions; print the invoice in the console of one that does"
        )
    body = await operator_pdf(visit.context.read, bill.id, config)
    assert body is not None
    named = {"Content-Disposition": f'inline; filename="{bill.number}.pdf"'}
    return Response(body, media_type="application/pdf", headers=named)


async def known_invoice(visit: Visit) -> InvoiceSummary:
    """The invoice in the URL, by id or number."""
    given = id_from(visit, "invoice")
    found = await invoice_queries.invoice(visit.context.read, given)
    if found is None:
        raise not_found("invoice", given)
    return found


async def invoice_page(visit: Visit, bill: InvoiceSummary, problem: PayonceError | None = None) -> Response:
    with_payments = await has(visit, PAYMENTS)
    async with bounded(visit) as read:
        notes = await invoice_queries.credit_notes(read, bill)
        charges = await queries.charges_of_invoice(read, bill.id) if with_payments else []
    waiting = [found for each in charges if (found := await waiting_approval(visit.context.read, REFUND, each.id))]
    may_go_back = (
        [each for each in charges if each.left.minor] if REFUND in visit.context.actions and not waiting else []
    )
    status = 200 if problem is None else 409 if isinstance(problem, Stale) else 400
    return visit.page(
        "billing/invoice.html",
        f"Invoice {bill.number}",
        status=status,
        bill=bill,
        notes=notes,
        charges=charges,
        waiting=waiting,
        may_go_back=may_go_back,
        with_payments=with_payments,
        problem="" if problem is None else str(problem),
        typed={name: text_of(visit.form, name) for name in ("amount", "why", "outside")},
    )
