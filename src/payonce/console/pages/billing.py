"""Billing's pages: customers, subscriptions, invoices, dunning, deliveries and figures."""

from typing import Final

from payonce.console.page import Page, get, post
from payonce.console.pages.billing_customers import list_customers, show_customer
from payonce.console.pages.billing_deliveries import list_deliveries, send_again, show_delivery
from payonce.console.pages.billing_dunning import show_dunning
from payonce.console.pages.billing_figures import show_figures
from payonce.console.pages.billing_invoices import list_invoices, print_invoice, show_invoice
from payonce.console.pages.billing_reading import where_installed
from payonce.console.pages.billing_refunds import refund
from payonce.console.pages.billing_subscription import decide, show_subscription

PAGES: Final = (
    Page(
        "Customers", "/billing/customers",
        (
            get("/billing/customers", where_installed("Customers", list_customers)),
            get("/billing/customers/{id}", where_installed("Customer", show_customer)),
            get("/billing/subscriptions/{id}", where_installed("Subscription", show_subscription)),
            post("/billing/subscriptions/{id}/decide", where_installed("Subscription", decide)),
        ),
        group="Billing",
    ),
    Page(
        "Invoices", "/billing/invoices",
        (
            get("/billing/invoices", where_installed("Invoices", list_invoices)),
            get("/billing/invoices/{id}", where_installed("Invoice", show_invoice)),
            get("/billing/invoices/{id}/pdf", where_installed("Invoice", print_invoice)),
            post("/billing/invoices/{id}/refund", where_installed("Invoice", refund)),
        ),
        group="Billing",
    ),
    Page(
        "Dunning", "/billing/dunning", (get("/billing/dunning", where_installed("Dunning", show_dunning)),),
        group="Billing",
    ),
    Page(
        "Deliveries", "/billing/deliveries",
        (
            get("/billing/deliveries", where_installed("Deliveries", list_deliveries)),
            get("/billing/deliveries/{id}", where_installed("Notification", show_delivery)),
            post("/billing/deliveries/{id}/resend", where_installed("Notification", send_again)),
        ),
        group="Billing",
    ),
    Page(
        "Figures", "/billing/figures", (get("/billing/figures", where_installed("Figures", show_figures)),),
        group="Billing",
    ),
)  # fmt: skip
