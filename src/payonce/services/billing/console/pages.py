"""Billing's pages: customers, subscriptions, invoices, dunning, deliveries and figures."""

from pathlib import Path
from typing import Final

from payonce.console.page import Page, ServicePages, get, post
from payonce.services.billing.console.credit import change_credit, show_credit
from payonce.services.billing.console.customers import list_customers, show_customer
from payonce.services.billing.console.deliveries import list_deliveries, send_again, show_delivery
from payonce.services.billing.console.dunning import show_dunning
from payonce.services.billing.console.figures import show_figures
from payonce.services.billing.console.invoices import list_invoices, print_invoice, show_invoice
from payonce.services.billing.console.queries import PAYMENTS, where_held
from payonce.services.billing.console.refunds import refund
from payonce.services.billing.console.subscription import decide, show_subscription

PAGES: Final = (
    Page(
        "Customers",
        "/billing/customers",
        (
            get("/billing/customers", where_held("Customers", list_customers)),
            get("/billing/customers/{id}", where_held("Customer", show_customer)),
            get("/billing/customers/{id}/credit", where_held("Credit", show_credit)),
            post("/billing/customers/{id}/credit/decide", where_held("Credit", change_credit)),
            get("/billing/subscriptions/{id}", where_held("Subscription", show_subscription)),
            post("/billing/subscriptions/{id}/decide", where_held("Subscription", decide)),
        ),
        group="Billing",
    ),
    Page(
        "Invoices",
        "/billing/invoices",
        (
            get("/billing/invoices", where_held("Invoices", list_invoices)),
            get("/billing/invoices/{id}", where_held("Invoice", show_invoice)),
            get("/billing/invoices/{id}/pdf", where_held("Invoice", print_invoice)),
            post("/billing/invoices/{id}/refund", where_held("Invoice", where_held("Invoice", refund, PAYMENTS))),
        ),
        group="Billing",
    ),
    Page(
        "Dunning",
        "/billing/dunning",
        (get("/billing/dunning", where_held("Dunning", show_dunning)),),
        group="Billing",
    ),
    Page(
        "Deliveries",
        "/billing/deliveries",
        (
            get("/billing/deliveries", where_held("Deliveries", list_deliveries, PAYMENTS)),
            get("/billing/deliveries/{id}", where_held("Notification", show_delivery, PAYMENTS)),
            post("/billing/deliveries/{id}/resend", where_held("Notification", send_again, PAYMENTS)),
        ),
        group="Billing",
    ),
    Page(
        "Figures",
        "/billing/figures",
        (get("/billing/figures", where_held("Figures", show_figures)),),
        group="Billing",
    ),
)

TONES: Final = {
    "incomplete": "warn",
    "incomplete_expired": "plain",
    "trialing": "calm",
    "active": "good",
    "past_due": "bad",
    "unpaid": "bad",
    "paused": "warn",
    "canceled": "plain",
    "open": "warn",
    "paid": "good",
    "void": "plain",
    "uncollectible": "bad",
    "pending": "calm",
    "succeeded": "good",
    "failed": "bad",
    "refunded": "warn",
    "partially_refunded": "warn",
    "delivered": "good",
    "waiting": "warn",
}
KINDS: Final = ("subscription", "event", "invoice", "charge", "refund", "notification")


def service_pages() -> ServicePages:
    return ServicePages(PAGES, Path(__file__).parent / "templates", dict.fromkeys(KINDS, TONES))
