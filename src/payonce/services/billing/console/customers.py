"""Customers: the list by e-mail address, state and plan, and the page of one customer."""

from typing import Final

from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, choice_of, name_of, text_of
from payonce.console.links import link
from payonce.console.page import Visit
from payonce.console.reads import bounded
from payonce.services.billing.console.queries import PAYMENTS, has, id_from, not_found
from payonce.services.billing.payments.store import queries
from payonce.services.billing.subscriptions.model import State
from payonce.services.billing.subscriptions.store import invoice_queries
from payonce.services.billing.subscriptions.store import queries as subscription_queries
from payonce.services.billing.subscriptions.store.invoice_queries import InvoiceFilter
from payonce.services.billing.subscriptions.store.queries import CustomerFilter

FILTERS: Final = ("reference", "plan", "clock")
LAST_ROWS: Final = 12
"""Invoices and charges on a customer's page; the lists have all."""


async def list_customers(visit: Visit) -> Response:
    asked = visit.query
    state = choice_of(asked, "state", ("all", *State), "all")
    wanted = CustomerFilter(
        state=None if state == "all" else State(state),
        plan=name_of(asked, "plan"),
        reference=name_of(asked, "reference"),
        clock=name_of(asked, "clock"),
    )
    before = name_of(asked, "before")
    async with bounded(visit) as read:
        totals = await subscription_queries.totals(read, wanted)
        found = await subscription_queries.customers(read, wanted, before, PAGE_ROWS + 1)
        plans = await subscription_queries.plan_codes(read)
    rows, typed = found[:PAGE_ROWS], {name: text_of(asked, name) for name in FILTERS}
    here = "/billing/customers"
    return visit.page(
        "billing/customers.html",
        "Customers",
        rows=rows,
        typed=typed,
        chosen=state,
        totals=totals,
        plans=plans,
        filtered=any(typed.values()),
        first=link(here, **typed, state=state) if before else None,
        next=link(here, **typed, state=state, before=rows[-1].cursor) if len(found) > PAGE_ROWS else None,
    )


async def show_customer(visit: Visit) -> Response:
    given = id_from(visit, "customer")
    with_payments = await has(visit, PAYMENTS)
    async with bounded(visit) as read:
        customer = await subscription_queries.customer(read, given)
        if customer is None:
            raise not_found("customer", given)
        subscriptions = await subscription_queries.subscriptions_of(read, customer.id)
        invoices = await invoice_queries.listed(read, InvoiceFilter(account_id=customer.id), None, LAST_ROWS + 1)
        credit = await subscription_queries.credit(read, customer.id)
        cards = await queries.cards(read, customer.id) if with_payments else []
        charges = await queries.charges_of_account(read, customer.id, LAST_ROWS + 1) if with_payments else []
    return visit.page(
        "billing/customer.html",
        customer.email,
        customer=customer,
        subscriptions=subscriptions,
        credit=credit,
        invoices=invoices[:LAST_ROWS],
        more_invoices=len(invoices) > LAST_ROWS,
        cards=cards,
        charges=charges[:LAST_ROWS],
        more_charges=len(charges) > LAST_ROWS,
        with_payments=with_payments,
    )
