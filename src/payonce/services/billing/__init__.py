"""Subscription billing: two services, subscriptions and payments, that talk by queue and signed webhook."""

from typing import Final

from payonce.engine.messages.work import Handler
from payonce.service import Demo, Option, Service, Simulators, lazily
from payonce.services.billing import payments, subscriptions
from payonce.services.billing.payments.decisions import refund_action
from payonce.services.billing.policies import QUEUES
from payonce.services.billing.scopes import NO_TENANTS, SCOPES
from payonce.services.billing.settings import BillingSettings
from payonce.services.billing.subscriptions.decisions.credit import credit_action
from payonce.services.billing.subscriptions.decisions.subscriptions import subscription_action

ROLES: dict[str, tuple[Handler, ...]] = {
    "subscriptions": subscriptions.HANDLERS,
    "payments": payments.HANDLERS,
}
INVARIANTS = {**subscriptions.INVARIANTS, **payments.INVARIANTS, **payments.SHARED_INVARIANTS}
"""Invariants of a database that both services share."""

OPERATIONS = lazily("payonce.services.billing.api.operations:build_routes")
IS_OPERATOR = lazily("payonce.services.billing.api.callers:is_operator")
OPERATOR_SCHEME = lazily("payonce.services.billing.api.callers:operator_scheme")
SIMULATED_CARDS = lazily("payonce.services.billing.resources:simulated_cards")

MODULES: Final = ("babel", "bidi", "jwt", "reportlab", "uharfbuzz")
"""Of the extra."""

SUBSCRIPTIONS = Service(
    "billing",
    "payonce.services.billing",
    {"subscriptions": subscriptions.HANDLERS},
    subscriptions.INVARIANTS,
    subscriptions.SCHEDULES,
    settings=BillingSettings,
    requires=MODULES,
    distribution="payonce[billing]",
    resources=lazily("payonce.services.billing.resources:open_subscriptions"),
    references=subscriptions.REFERENCES,
    names=subscriptions.NAMES,
    scenarios=lazily("payonce.services.billing.crash:scenarios"),
    ablations=lazily("payonce.services.billing.crash:ablations"),
    explored_when_named=True,
    routes=lazily("payonce.services.billing.subscriptions.api:build_routes"),
    short_routes=lazily("payonce.services.billing.subscriptions.api:build_short_routes"),
    shared_routes=OPERATIONS,
    is_operator=IS_OPERATOR,
    operator_scheme=OPERATOR_SCHEME,
    scopes=SCOPES,
    tenant_refusal=NO_TENANTS,
    observes=subscriptions.observe_subscriptions,
    lookups=subscriptions.LOOKUPS,
    console=lazily("payonce.services.billing.console.pages:service_pages"),
    actions=(subscription_action, refund_action, credit_action),
    in_database=lazily("payonce.services.billing.resources:subscriptions_in"),
    held_again_by="BILLING_DATABASE=both",
    routes_with_role=True,
    usual_ports={"subscriptions": 8001},
    listens=lazily("payonce.services.billing.resources:notify_this_process"),
    commands=lazily("payonce.services.billing.cli.commands:build_commands"),
    demos=(
        Demo(
            "billing",
            lazily("payonce.services.billing.demo.run:demonstrate"),
            "500 customers over two years, each on a test clock of their own: they subscribe, start trials, "
            "change plans, pause and cancel; some cards are declined for a while, some for good. 15 % of the "
            "gateway calls fail, and both services are killed repeatedly. At the end the gateway's records and "
            "plain calendar arithmetic must confirm that every period was invoiced once and paid once. A full run "
            "takes minutes; --customers 20 --months 3 is a shorter one.",
            options=(
                Option("--customers", "Number of customers.", min=1, max=2_000),
                Option("--months", "Number of months that each customer is simulated.", min=3, max=30),
            ),
        ),
    ),
)
PAYMENTS = Service(
    "billing",
    None,
    {"payments": payments.HANDLERS},
    payments.INVARIANTS,
    payments.SCHEDULES,
    settings=BillingSettings,
    requires=MODULES,
    distribution="payonce[billing]",
    resources=lazily("payonce.services.billing.resources:open_payments"),
    references=payments.REFERENCES,
    names=payments.NAMES,
    statements=payments.statements,
    routes=lazily("payonce.services.billing.payments.api.routes:build_routes"),
    short_routes=lazily("payonce.services.billing.payments.api.inbound_messages:build_short_routes"),
    shared_routes=OPERATIONS,
    mounts={"/simulated-gateway": SIMULATED_CARDS},
    is_operator=IS_OPERATOR,
    operator_scheme=OPERATOR_SCHEME,
    observes=payments.observe_payments,
    lookups=payments.LOOKUPS,
    in_database=lazily("payonce.services.billing.resources:payments_in"),
    held_again_by="BILLING_DATABASE=both",
    routes_with_role=True,
    check_held=lazily("payonce.services.billing.resources:check_billing_held"),
    usual_ports={"payments": 8002},
    simulators=Simulators(
        ("card gateway",),
        (
            Option("--gateway-port", "Port of the card gateway; 0 picks a free one.", default=9103, min=0, max=65535),
            Option(
                "--gateway-webhooks",
                "URL to which the card gateway posts its webhooks; without it, none are sent.",
                str,
                metavar="URL",
            ),
        ),
        lazily("payonce.services.billing.demo.simulator_server:serve"),
        "--gateway-webhooks http://127.0.0.1:8002/v1/webhooks/gateway",
    ),
)
SERVICE = (SUBSCRIPTIONS, PAYMENTS)
"""Two deployables, each with its role."""

__all__ = [
    "INVARIANTS",
    "NO_TENANTS",
    "QUEUES",
    "ROLES",
    "SCOPES",
    "SERVICE",
    "credit_action",
    "refund_action",
    "subscription_action",
]
