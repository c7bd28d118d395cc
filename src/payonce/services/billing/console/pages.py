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
from payonce.services.billing.console.queries import PAYMENTS, page_of
from payonce.services.billing.console.refunds import refund
from payonce.services.billing.console.subscription import decide_subscription, show_subscription

PAGES: Final = (
    Page(
        "Customers",
        "/billing/customers",
        (
            get("/billing/customers", page_of("Customers", list_customers)),
            get("/billing/customers/{id}", page_of("Customer", show_customer)),
            get("/billing/customers/{id}/credit", page_of("Credit", show_credit)),
            post("/billing/customers/{id}/credit/decide", page_of("Credit", change_credit)),
            get("/billing/subscriptions/{id}", page_of("Subscription", show_subscription)),
            post("/billing/subscriptions/{id}/decide", page_of("Subscription", decide_subscription)),
        ),
        group="Billing",
    ),
    Page(
        "Invoices",
        "/billing/invoices",
        (
            get("/billing/invoices", page_of("Invoices", list_invoices)),
            get("/billing/invoices/{id}", page_of("Invoice", show_invoice)),
            get("/billing/invoices/{id}/pdf", page_of("Invoice", print_invoice)),
            post("/billing/invoices/{id}/refund", page_of("Invoice", page_of("Invoice", refund, PAYMENTS))),
        ),
        group="Billing",
    ),
    Page(
        "Dunning",
        "/billing/dunning",
        (get("/billing/dunning", page_of("Dunning", show_dunning)),),
        group="Billing",
    ),
    Page(
        "Deliveries",
        "/billing/deliveries",
        (
            get("/billing/deliveries", page_of("Deliveries", list_deliveries, PAYMENTS)),
            get("/billing/deliveries/{id}", page_of("Notification", show_delivery, PAYMENTS)),
            post("/billing/deliveries/{id}/resend", page_of("Notification", send_again, PAYMENTS)),
        ),
        group="Billing",
    ),
    Page(
        "Figures",
        "/billing/figures",
        (get("/billing/figures", page_of("Figures", show_figures)),),
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
