"""The services of an installation: what each declares, and what follows from all of them together.

Adding a service is one folder with the rooms of its neighbours, and one line in SERVICES.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from payonce.app.assembly import (
    roles_of,
    scopes_of,
    services_in,
)
from payonce.app.lazy_parts import (
    billing_scenarios,
    payments_routes,
    payments_short_routes,
    payouts_routes,
    payouts_scenarios,
    subscriptions_routes,
    subscriptions_short_routes,
    transfers_routes,
    transfers_scenarios,
)
from payonce.app.resources import open_banks, open_task_server, open_webhooks, payout_targets
from payonce.engine import controls, webhooks
from payonce.engine.database.migrate import Migration, known_migrations
from payonce.engine.messages.policy import override_from_environment
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.work import Handler
from payonce.engine.outbox import LogRelay, Relay
from payonce.examples import tally, transfers
from payonce.http.kit.scopes import ScopeCatalogue
from payonce.kit.outcomes import Invalid
from payonce.service import Service
from payonce.services import billing, payouts
from payonce.services.billing import payments, subscriptions
from payonce.services.billing.resources import (
    check_billing_held,
    open_payments,
    open_subscriptions,
    payments_in,
    subscriptions_in,
)
from payonce.services.payouts.resources import open_payouts
from payonce.settings import Settings
from payonce.taskserver.metrics import observe_tasks

SERVICES: Final = (
    Service("tally", "payonce.examples.tally", tally.ROLES, tally.INVARIANTS),
    Service(
        "transfers", "payonce.examples.transfers", transfers.ROLES, transfers.INVARIANTS, resources=open_banks,
        references=transfers.REFERENCES, statements=transfers.statements, scenarios=transfers_scenarios,
        routes=transfers_routes, scopes=transfers.SCOPES, tenant_scopes=tuple(transfers.SCOPES),
    ),
    Service(
        "payouts", "payonce.services.payouts", payouts.ROLES, payouts.INVARIANTS, payouts.SCHEDULES,
        resources=open_payouts, references=payouts.REFERENCES, statements=payouts.statements,
        scenarios=payouts_scenarios, routes=payouts_routes, scopes=payouts.SCOPES, pushes=payout_targets,
        observes=payouts.observe_payouts, names=payouts.NAMES, lookups=payouts.LOOKUPS,
        attention=payouts.waiting_payouts,
    ),
    Service(
        "billing", "payonce.services.billing", {"subscriptions": subscriptions.HANDLERS}, subscriptions.INVARIANTS,
        subscriptions.SCHEDULES, resources=open_subscriptions, references=subscriptions.REFERENCES,
        names=subscriptions.NAMES, scenarios=billing_scenarios, routes=subscriptions_routes,
        short_routes=subscriptions_short_routes, scopes=billing.SCOPES, tenant_refusal=billing.NO_TENANTS,
        observes=subscriptions.observe_subscriptions, lookups=subscriptions.LOOKUPS, in_database=subscriptions_in,
        routes_with_role=True,
    ),
    Service(
        "billing", None, {"payments": payments.HANDLERS}, payments.INVARIANTS, payments.SCHEDULES,
        resources=open_payments, references=payments.REFERENCES, names=payments.NAMES, statements=payments.statements,
        routes=payments_routes, short_routes=payments_short_routes, observes=payments.observe_payments,
        lookups=payments.LOOKUPS, in_database=payments_in, routes_with_role=True, check_held=check_billing_held,
    ),
    Service("webhooks", None, {"sender": [webhooks.deliver]}, resources=open_webhooks),
    Service(
        "cloudtasks", "payonce.taskserver", {"server": ()}, runs={"server": open_task_server},
        observes=observe_tasks,
    ),
)  # fmt: skip

RELAYS: Final[Sequence[Relay]] = (LogRelay(),)

ACTIONS: Final[Sequence[Callable[[Admin], controls.Action[Any]]]] = (
    controls.answering,
    controls.redriving,
    controls.writing_off,
    controls.bounding,
    payouts.deciding,
    payouts.clearing,
    payouts.limiting,
    billing.deciding,
    billing.giving_back,
    billing.changing_credit,
)
"""What may need a second person."""


def scope_catalogue() -> ScopeCatalogue:
    return scopes_of(SERVICES)


def role_names(settings: Settings | None = None) -> list[str]:
    """Of every service; with settings, of those whose tables the database holds."""
    return roles_of(SERVICES if settings is None else services_in(SERVICES, settings))


def handlers_of(roles: Sequence[str]) -> list[Handler]:
    """The handlers of these roles, with the environment's changes to their policies."""
    known = {
        f"{service.name}.{role}": [replace(handler, service=service.name) for handler in handlers]
        for service in SERVICES
        for role, handlers in service.roles.items()
    }
    for role in roles:
        if role not in known:
            raise Invalid(f"there is no role {role!r}; known are: {', '.join(known)}")
    chosen = [handler for role in dict.fromkeys(roles) for handler in known[role]]
    return [replace(handler, policy=override_from_environment(handler.policy)) for handler in chosen]


def all_migrations() -> list[Migration]:
    return known_migrations((service.name, service.package) for service in SERVICES if service.package is not None)
