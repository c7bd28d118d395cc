"""The HTTP routes of subscriptions, one module per resource."""

from collections.abc import Sequence

from fastapi import APIRouter, Depends
from starlette.routing import Route

from payonce.services.billing.api.card_numbers import refuse_card_numbers
from payonce.services.billing.subscriptions.api.account_roles import account_role_routes
from payonce.services.billing.subscriptions.api.auth import auth_routes
from payonce.services.billing.subscriptions.api.clocks import clock_routes
from payonce.services.billing.subscriptions.api.credit import credit_routes
from payonce.services.billing.subscriptions.api.customers import customer_routes
from payonce.services.billing.subscriptions.api.entitlements import entitlement_routes
from payonce.services.billing.subscriptions.api.invoices import invoice_routes
from payonce.services.billing.subscriptions.api.plan_migrations import plan_migration_routes
from payonce.services.billing.subscriptions.api.plans import plan_routes
from payonce.services.billing.subscriptions.api.subscriptions import subscription_routes
from payonce.services.billing.subscriptions.api.usage import short_usage_routes, usage_routes
from payonce.services.billing.subscriptions.api.webhooks import short_webhook_routes, webhook_routes

ROUTES = (
    account_role_routes,
    auth_routes,
    customer_routes,
    plan_routes,
    plan_migration_routes,
    subscription_routes,
    invoice_routes,
    credit_routes,
    entitlement_routes,
    usage_routes,
    clock_routes,
)


def build_routes() -> APIRouter:
    routes = APIRouter()
    for build in ROUTES:
        routes.include_router(build(), dependencies=[Depends(refuse_card_numbers)])
    # Notifications from payments are signed, and payments has already checked for card numbers: rejected here, they
    # would be retried forever.
    routes.include_router(webhook_routes())
    return routes


def build_short_routes() -> Sequence[Route]:
    return [*short_usage_routes(), *short_webhook_routes()]
